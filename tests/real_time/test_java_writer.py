"""
The writer in Java, attempt by attempt, as Spark calls it in its tasks.

Covers: pgonce.real_time.java_writer.
"""

from __future__ import annotations

import itertools

import psycopg
import pytest
from py4j.protocol import Py4JJavaError
from support.fixtures.driver import wait_until
from support.real_time_tasks import begun

from pgonce.real_time.java_writer import load_classes, writer_settings
from pgonce.real_time.jdbc import jdbc_url

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def jvm(spark, kafka):
    """Spark's JVM, whose thread for this test runs a task."""
    load_classes(spark)
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    companion = jvm.java.lang.Class.forName("org.apache.spark.TaskContext$").getField("MODULE$").get(None)
    companion.setTaskContext(companion.empty())
    yield jvm
    companion.unset()


@pytest.fixture
def ids(admin):
    """The ids that the table has, in the order in which they came."""
    admin.execute("CREATE TABLE orders (id bigint, name text, n bigint GENERATED ALWAYS AS IDENTITY)")
    return lambda: [row[0] for row in admin.execute("SELECT id FROM orders ORDER BY n").fetchall()]


@pytest.fixture
def settings(jvm, tcp_url, ids):
    """Make a run's settings: whether its tasks report is said."""
    run = begun(tcp_url)
    jdbc = jdbc_url(tcp_url, run.run_id, run.settings.lock_timeout)
    return lambda tasks_report: writer_settings(run, jdbc, one_row_a_record=True, tasks_report=tasks_report)


@pytest.fixture
def writer(spark, jvm, settings):
    """
    Make writers of one run that began at record 0: the driver's, and those of tasks, which report to the driver's.

    Spark forgets what a task reports that fails.
    """
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001
    kept, forgotten = context.collectionAccumulator(), context.collectionAccumulator()
    return lambda fails=False: jvm.pgonce.RealTimeWriter(settings(True), forgotten if fails else kept, ["orders 0 0 0"])


@pytest.fixture
def planned_again(spark, jvm, settings):
    """Make a task's writer in continuous mode, as Spark sends it with each plan: it knows where the run began."""
    stages = itertools.count()

    def plan(stage_id=None):
        companion = jvm.java.lang.Class.forName("org.apache.spark.TaskContext$").getField("MODULE$").get(None)
        task = companion.empty()
        stage = task.getClass().getDeclaredField("stageId")
        stage.setAccessible(True)
        stage.setInt(task, next(stages) if stage_id is None else stage_id)
        companion.setTaskContext(task)
        plan.contexts.append(task)
        accumulator = spark.sparkContext._jsc.sc().collectionAccumulator()  # noqa: SLF001
        return jvm.pgonce.RealTimeWriter(settings(False), accumulator, ["orders 0 0 0"])

    plan.contexts = []
    yield plan
    # Their threads end with them.
    for context in plan.contexts:
        context.markTaskCompleted(jvm.scala.Option.empty())


def give(jvm, writer, *offsets):
    """Let a task have these records of partition 0."""
    for offset in offsets:
        values = jvm.java.util.ArrayList()
        for value in ("orders", 0, offset, offset, None):
            values.add(value)
        writer.process(jvm.org.apache.spark.sql.RowFactory.create(values.toArray()))


def test_a_column_that_changes_under_a_run(jvm, writer, ids, admin):
    """Its rows no longer fit the statement: the task is refused at once, and a start looks at the table anew."""
    task = writer()
    task.open(0, 0)
    give(jvm, task, 0)
    assert wait_until(lambda: ids() == [0])
    admin.execute("ALTER TABLE orders ALTER name TYPE integer USING 0")
    give(jvm, task, 1)
    with pytest.raises(Py4JJavaError, match=r"\[TARGET_CHANGED\].*42804"):
        task.close(None)
    assert ids() == [0]


def test_a_table_that_changes_before_the_first_flush_of_a_batch(jvm, writer, admin, ids):
    """The driver has moved the position past records without rows since the task has claimed it."""
    task = writer()
    task.open(0, 0)
    give(jvm, task, 0)
    assert wait_until(lambda: ids() == [0])
    admin.execute("UPDATE pgonce.positions SET next_offset = 3; ALTER TABLE orders ALTER name TYPE varchar(10)")
    give(jvm, task, 5)
    with pytest.raises(Py4JJavaError, match=r"\[TARGET_CHANGED\]"):
        task.close(None)


def test_an_attempt_may_end_before_the_one_that_failed(jvm, writer, ids):
    """
    A task that takes the place of one that failed may read less, for it has less time.

    The next batch begins where it ended, and what was stored before is dropped; below that, no record may come.
    """
    driver, failed, second = writer(), writer(fails=True), writer()
    failed.open(0, 0)
    give(jvm, failed, *range(10))
    assert wait_until(lambda: ids() == list(range(10)))
    failed.close(jvm.java.lang.RuntimeException("the line broke"))
    # As of a later batch, because a task outside of a job has no number of its attempt.
    second.open(0, 1)
    give(jvm, second, 0, 1)
    second.close(None)
    assert list(driver.known()) == ["orders 0 10"]
    driver.open(0, 2)
    give(jvm, driver, *range(2, 12))
    driver.close(None)
    assert ids() == list(range(12))
    driver.open(0, 3)
    with pytest.raises(Exception, match="RECREATED"):
        give(jvm, driver, 11)


class TestPlannedAgain:
    """A continuous query whose topic has got a partition."""

    @pytest.fixture
    def stored(self, ids):
        """Wait for the first records: a close does not."""

        def wait(count):
            assert wait_until(lambda: ids() == list(range(count)))

        return wait

    @pytest.fixture
    def first(self, jvm, planned_again, stored):
        """A task of the first plan has stored ten records."""
        task = planned_again()
        task.open(0, 0)
        give(jvm, task, *range(10))
        task.close(None)
        stored(10)

    def test_a_query_that_is_planned_again_goes_on_in_its_process(self, jvm, first, planned_again, stored):
        """Its process knows what it has stored."""
        task = planned_again()
        task.open(1, 5)
        give(jvm, task, *range(8, 12))
        task.close(None)
        stored(12)

    def test_a_database_that_went_back(self, jvm, first, planned_again, ids, admin):
        """A failover has lost rows that Spark does not read again, so the query ends."""
        admin.execute("UPDATE pgonce.positions SET next_offset = 5; DELETE FROM orders WHERE id >= 5")
        task = planned_again()
        task.open(1, 5)
        with pytest.raises(Py4JJavaError, match=r"\[POSITION_WENT_BACK\].* is 5, but it was 10"):
            give(jvm, task, 10)
        assert ids() == list(range(5))

    def test_rows_that_are_still_being_written(self, jvm, first, planned_again, stored, tcp_url):
        """Spark takes an epoch for done before its tasks have closed it, and does not read its records again."""
        task = planned_again()
        task.open(1, 5)
        with psycopg.connect(tcp_url) as holder:
            holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            give(jvm, task, 10)
            task.close(None)
            again = planned_again()
            again.open(1, 6)
            with pytest.raises(Py4JJavaError, match=r"\[POSITION_WENT_BACK\].* is 10, but it was 11"):
                give(jvm, again, 11)
            # Where Spark has not taken the epoch for done, it reads the record again.
            over = planned_again()
            over.open(1, 5)
            give(jvm, over, 10)
            holder.rollback()
        stored(11)

    def test_one_claim_for_all_epochs(self, jvm, first, planned_again, ids, stored, admin):
        """A task goes on with it, and another task of the plan that has rows of its partition is found out."""
        task = planned_again()
        claims = []
        for epoch in range(1, 4):
            task.open(1, epoch)
            give(jvm, task, 9 + epoch)
            task.close(None)
            claims += admin.execute("SELECT claim, epoch FROM pgonce.positions").fetchall()
        stored(13)
        assert set(claims) == {claims[0]}
        another = planned_again(stage_id=1)
        another.open(2, 1)
        another.close(None)
        another.open(2, 7)
        with pytest.raises(Py4JJavaError, match=r"\[PARTITION_MIXED\]"):
            give(jvm, another, 20)
        task.open(1, 4)
        give(jvm, task, 13)
        # Whenever that row is refused, the end of an epoch says so.
        with pytest.raises(Py4JJavaError, match=r"\[FENCED\]"):
            wait_until(lambda: task.close(None))
        assert ids() == list(range(13))

    def test_a_task_that_has_ended(self, jvm, first, planned_again, stored):
        """Spark calls nothing after the last close, so it hears of the end of the task."""
        threads = jvm.java.lang.Thread.getAllStackTraces
        assert [one.getName() for one in threads().keySet() if one.getName().startswith("pgonce writes")]
        for context in planned_again.contexts:
            context.markTaskCompleted(jvm.scala.Option.empty())
        assert wait_until(
            lambda: not [one for one in threads().keySet() if one.getName().startswith("pgonce writes orders")]
        )

    def test_another_executor_goes_on_if_no_record_is_left_out(self, jvm, first, planned_again, ids, stored, admin):
        """It cannot know why records have no rows, so the query ends; where none is left out, it goes on."""
        admin.execute("UPDATE pgonce.positions SET claim = gen_random_uuid()")
        task = planned_again()
        task.open(1, 5)
        with pytest.raises(Py4JJavaError, match=r"\[POSITION_WENT_BACK\].* is 10, and the first row .* record 11"):
            give(jvm, task, 11)
        assert ids() == list(range(10))
        task = planned_again()
        task.open(1, 5)
        give(jvm, task, 9, 10, 11)
        task.close(None)
        stored(12)
