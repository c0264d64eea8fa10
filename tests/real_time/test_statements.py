"""
What tasks in real-time and continuous mode may write, and when they are refused: the statements, on a real Postgres.

Covers: pgonce.real_time.statements, pgonce.real_time.run, pgonce.real_time.positions.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from types import SimpleNamespace

import psycopg
import pytest
from support.fixtures.driver import wait_until
from support.fixtures.postgres import url_with
from support.patience import PATIENCE_SECONDS
from support.real_time_tasks import QUERY, Task, a_run, begun, start
from support.recoveries import only_sink

from pgonce import OffsetsStore
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import NOTHING, ConnectError, RefusedBatch, TargetError
from pgonce.offsets_store.ledger.migrations import grants
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Span
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies
from pgonce.real_time import recorder as recorder_module
from pgonce.real_time import run as run_module
from pgonce.real_time.offsets import stored_positions
from pgonce.real_time.positions import begin_in_tx
from pgonce.real_time.recorder import Recorder
from pgonce.real_time.start import new_checkpoint, query_id_of
from pgonce.recovery.by_hand import retire_sink
from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.fence import StoppedQuery, take_over
from pgonce.recovery.recover import recover_checkpoint

OTHER = "22222222-0000-0000-0000-000000000000"


@pytest.fixture
def orders(admin):
    """The ids that the table has, in the order in which they came."""
    admin.execute("CREATE TABLE orders (id bigint, name text, n bigint GENERATED ALWAYS AS IDENTITY)")
    return lambda: [row[0] for row in admin.execute("SELECT id FROM orders ORDER BY n").fetchall()]


@pytest.fixture
def run(url, orders):
    """A run that has begun."""
    return begun(url)


@pytest.fixture
def task(url, run):
    """A task of the run, which has claimed partition 0."""
    task = Task(url, run)
    task.claims()
    return task


def position(url):
    """Where partition 0 stands, for everybody who asks the ledger."""
    return OffsetsStore(url).latest(QUERY).end_offsets["0"]["orders"]["0"]


def test_rows_and_their_position_are_written_together(url, orders):
    """A task claims its partition, and each flush moves the position past its rows."""
    task = Task(url, begun(url, start(p0=5)))
    assert task.claims(5)
    assert task.next == 5
    assert task.flushes(5, 6)
    assert task.flushes(9)
    assert orders() == [5, 6, 9]
    assert position(url) == 10


def test_a_value_that_the_column_would_round_is_refused(url, admin, orders):
    """A text is cast to the numeric or the time of the column, by the statement that moves the position, or neither."""
    admin.execute("ALTER TABLE orders ALTER name TYPE numeric(1,0) USING NULL")
    task = Task(url, begun(url))
    task.claims()
    assert task.flushes(5)
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        task.flushes(15)
    admin.execute("ALTER TABLE orders ALTER name TYPE time USING NULL")
    later = Task(url, begun(url), stage=1)
    assert later.claims()
    with pytest.raises(psycopg.errors.InvalidDatetimeFormat):
        later.flushes(6)
    assert orders() == [5]
    assert position(url) == 6


def test_nothing_is_written_without_the_claim(url, orders):
    """Rows are refused from a task that has not claimed the partition."""
    task = Task(url, begun(url))
    task.next = 0
    assert not task.flushes(0)
    assert orders() == []


def test_a_flush_is_done_once(orders, task):
    """A flush that is sent again, because its answer was lost, writes nothing; the position tells that it landed."""
    assert task.flushes(0, 1)
    assert not task.flushes(0, 1, next_known=0)
    is_owner, is_ours, at, *_ = task.looks()
    assert (is_owner, is_ours, at) == (True, True, 2)
    assert orders() == [0, 1]


@pytest.mark.parametrize("first", [[0], []], ids=["after a flush", "before the claim"])
def test_another_table_of_the_same_name(url, admin, orders, run, first):
    """What is composed for the tasks is for the table that the run has found: if it was exchanged, none is written."""
    task = Task(url, run)
    if first:
        task.claims()
        task.flushes(*first)
    admin.execute("ALTER TABLE orders RENAME TO old; CREATE TABLE orders (LIKE old INCLUDING ALL)")
    assert first or task.claims()
    assert not task.flushes(1)
    assert task.looks()[:3] == (True, True, len(first))
    assert orders() == []


PARTED = "DROP TABLE orders; CREATE TABLE orders (id bigint, name text, n serial) PARTITION BY RANGE (id); "


@pytest.mark.parametrize(
    ("make", "change", "undo", "offset"),
    [
        pytest.param("SELECT", "ALTER TABLE orders SET UNLOGGED", "ALTER TABLE orders SET LOGGED", 1, id="unlogged"),
        pytest.param(
            "CREATE TABLE archive (LIKE orders)",
            "CREATE RULE aside AS ON INSERT TO orders DO INSTEAD INSERT INTO archive VALUES (NEW.*)",
            # The constraint fails if a row has gone there.
            "DROP RULE aside ON orders; ALTER TABLE archive ADD CHECK (false)",
            1,
            id="a-rule",
        ),
        pytest.param(
            f"{PARTED}CREATE TABLE few PARTITION OF orders FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id); "
            "CREATE TABLE first PARTITION OF few FOR VALUES FROM (0) TO (5); "
            "CREATE TABLE others PARTITION OF orders DEFAULT",
            "ALTER TABLE first SET UNLOGGED",
            "ALTER TABLE first SET LOGGED",
            100,
            id="a-partition-unlogged",
        ),
        pytest.param(
            f"{PARTED}CREATE TABLE few PARTITION OF orders FOR VALUES FROM (0) TO (10); "
            "CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere; "
            "CREATE FOREIGN TABLE many (id bigint, name text, n integer NOT NULL) SERVER elsewhere",
            "ALTER TABLE orders ATTACH PARTITION many FOR VALUES FROM (10) TO (20)",
            "ALTER TABLE orders DETACH PARTITION many",
            1,
            id="a-foreign-partition",
        ),
    ],
)
def test_nothing_goes_into_a_table_that_may_not_keep_it(url, admin, orders, make, change, undo, offset):
    """
    A crash would empty it, or rows would go elsewhere, while the position moves: as a start does, a flush refuses it.

    That holds for a partition even if no row of the flush goes into it, and ends when the change is undone.
    """
    admin.execute(make)
    task = Task(url, begun(url))
    task.claims()
    task.flushes(0)
    admin.execute(change)
    assert not task.flushes(offset)
    assert task.looks()[:3] == (True, True, 1)
    admin.execute(undo)
    assert task.flushes(offset)
    assert orders() == [0, offset]


def test_a_column_that_gives_its_name_to_another(admin, orders, task):
    """As online migrations do it: values that were compared with the old one's type would be rounded."""
    assert task.flushes(0)
    admin.execute("ALTER TABLE orders RENAME id TO id_old; ALTER TABLE orders ADD id real")
    assert not task.flushes(16777217)


@pytest.mark.parametrize("change", ["ALTER name TYPE varchar(2)", "ALTER id TYPE real", "ALTER name TYPE short"])
def test_a_column_that_gets_another_type(url, admin, orders, change):
    """A start refuses values that the new type would cut or round, so nothing goes into the table before one."""
    admin.execute("CREATE DOMAIN short AS text; CREATE DOMAIN name AS text")
    admin.execute("ALTER TABLE orders ADD other numeric(4, 1), ALTER name TYPE public.name")
    task = Task(url, begun(url))
    task.claims()
    assert task.flushes(0)
    admin.execute("ALTER TABLE orders ALTER other TYPE real")
    assert task.flushes(1)
    admin.execute(f"ALTER TABLE orders {change}")
    assert not task.flushes(2)


def test_rows_that_the_table_refuses_leave_the_position(url, admin, orders):
    """If one row of a flush is refused, none is written and the position stays."""
    admin.execute("ALTER TABLE orders ADD CHECK (id <> 1)")
    task = Task(url, begun(url))
    task.claims()
    with pytest.raises(psycopg.errors.CheckViolation):
        task.flushes(0, 1)
    assert orders() == []
    assert position(url) == 0


def stored_for_a_micro_batch(url, query_id):
    """What a micro-batch that reads from the first record on is told to drop."""
    found = []

    def publish(_, __, below):
        found.append(below)
        return Published(0, "inline")

    batch = PlannedBatch(
        query_id=query_id,
        run_id="micro-batches",
        batch_id=1 if query_id == QUERY else 0,
        start=start(p0=0),
        end=start(p0=5),
        span=Span(start(p0=0), start(p0=5)),
        stateful=False,
    )
    remedies = Remedies() if query_id == QUERY else Remedies(replaces=QUERY)
    commit_batch(CommitSettings(url, remedies), batch, Work(lambda _: "public.orders", publish))
    return found[0]


class TestRecovery:
    """Commands that fence a query keep what its tasks have stored."""

    def test_a_start_after_it_reads_nothing_that_is_stored(self, url, orders, task):
        """Though no batch has recorded it yet."""
        task.flushes(0, 1, 2)
        take_over(StoppedQuery(url, QUERY, [only_sink(url, QUERY)], 0, 0), "recover", None, {})
        assert not task.flushes(3)
        assert stored_positions(url, QUERY, "public.orders", None)[1] == {("orders", 0): 3}
        new = begun(url, last=0)
        assert new.positions == start(p0=3)
        assert orders() == [0, 1, 2]

    def test_there_is_nothing_to_repair(self, url, orders, tmp_path):
        """Each run makes a checkpoint of its own, so the place has none that could disagree with the ledger."""
        location = str(tmp_path / "query")
        query_id = query_id_of(location)
        new_checkpoint(location, query_id)
        run = begun(url, query_id=query_id)
        task = Task(url, run)
        task.claims()
        task.flushes(0, 1, 2)
        found = examine(location, url)
        assert (found.finding, found.next_batch_id, found.begins) == (Finding.AGREE, run.batch_id + 1, start(p0=3))
        assert [(sink.verdict, sink.sink_name) for sink in found.sinks] == [(Verdict.NEW, "public.orders")]
        assert not recover_checkpoint(location, url).is_needed
        retire_sink("orders", url, reason="it is over")
        assert examine(location, url).finding is Finding.NEEDS_PERSON

    def test_a_table_that_cannot_be_written(self, url, admin, orders, monkeypatch):
        """What fails when the statement is composed leaves the older run the owner."""
        older = Task(url, begun(url))

        def fails(*_):
            raise psycopg.errors.UndefinedColumn

        monkeypatch.setattr(run_module, "flush_of", fails)
        with pytest.raises(TargetError):
            begun(url, last=0)
        assert older.claims()
        assert older.flushes(0)

    def test_two_starts_at_once(self, url):
        """Both read the same last batch before they begin; the later one takes over."""
        first, second = (a_run(url) for _ in range(2))
        for run in (first, second):
            run.begin(None, start(p0=0), start(p0=5), None)
        assert (first.batch_id, second.batch_id) == (0, 1)
        assert not Task(url, first).claims()
        assert Task(url, second).claims()

    def test_the_recorder_is_a_thread_like_others(self):
        """Python calls methods of its threads by their names, in each process that is forked."""
        assert set(vars(Recorder)) & set(dir(threading.Thread)) <= {"__init__", "__module__", "__doc__", "run"}

    @pytest.mark.parametrize(("stages", "said"), [((1, 2, 3, 4), 0), ((1, 1, 1, 1), 1)], ids=["begins", "has_no_core"])
    def test_only_a_stage_that_waits_for_long_has_no_core(self, stages, said, url, orders, monkeypatch, caplog):
        """The tasks of each batch wait for a moment when it begins, and a look may come just then, again and again."""
        query = SimpleNamespace(runId="run")
        recorder = Recorder(query, begun(url), None, SimpleNamespace(statusTracker=lambda: None), None)
        for second, stage in zip(range(0, 20, 5), stages, strict=True):
            monkeypatch.setattr(recorder_module, "waiting_tasks", lambda *_, stage=stage: {stage: 2})
            recorder.look_at_tasks(second)
        assert caplog.text.count("no core left for 2 of its tasks") == said

    def test_a_record_whose_answer_is_lost(self, url, monkeypatch, run, task):
        """It was committed, so the next one goes on behind it, and the query with it."""
        task.flushes(0, 1)

        def lose_the_answer(*given):
            commit_batch(*given)
            raise ConnectError("CONNECT_FAILED", "The line broke.", NOTHING, "Look again.")

        monkeypatch.setattr(run_module, "commit_batch", lose_the_answer)
        with pytest.raises(ConnectError):
            run.record({}, start(p0=2))
        monkeypatch.undo()
        task.flushes(2)
        run.record({}, start(p0=3))
        assert run.batch_id == 2
        assert position(url) == 3

    def test_another_querys_place_is_taken_behind_what_it_has_stored_meanwhile(self, url, orders):
        """It may go on writing until the new run has begun, and the new one looked before."""
        old = Task(url, begun(url))
        old.claims()
        old.flushes(0, 1)
        _, stored = stored_positions(url, OTHER, "public.orders", QUERY)
        old.flushes(2, 3)
        at = start(p0=stored["orders", 0])
        new = begun(url, at, query_id=OTHER, remedies=Remedies(replaces=QUERY))
        assert not old.flushes(4)
        assert new.positions == start(p0=4)

    def test_a_person_is_told_the_partition_of_the_query_itself(self, url, admin, run):
        """Another query's mark of the same partition is left alone."""
        Task(url, run).claims()
        admin.execute("UPDATE pgonce.positions SET disputed_from = 0")
        with pytest.raises(RefusedBatch, match=f"WHERE writer_id = {run.writer_id} AND topic"):
            begun(url, last=0)


class TestTakeover:
    def test_the_old_tasks_end(self, url, orders):
        """Once a new run begins, no task of the old one writes or claims, not even a partition that is new."""
        old = begun(url)
        zombie = Task(url, old)
        zombie.claims()
        zombie.flushes(0, 1)
        new = begun(url, last=0)
        assert new.positions == start(p0=2)
        assert not zombie.flushes(2)
        assert not Task(url, old, epoch=7).claims(2)
        assert not Task(url, old, partition=3).claims()
        assert zombie.looks()[0] is False
        task = Task(url, new)
        assert task.claims(2)
        assert task.flushes(2)
        assert orders() == [0, 1, 2]

    def waited(self, task, do):
        """What is answered by something that waits for the task's transaction."""
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(do)
            assert not wait({answer}, 1).done
            task.connection.commit()
            return answer.result(20)

    def test_a_flush_under_way_is_waited_for(self, url, orders, task):
        """A new run begins after a flush that is under way, and behind its rows."""
        task.connection.autocommit = False
        assert task.flushes(0, 1, 2)
        assert self.waited(task, lambda: begun(url, last=0)).positions == start(p0=3)
        assert orders() == [0, 1, 2]

    @pytest.mark.parametrize("successor", [QUERY, OTHER])
    def test_a_micro_batch_that_takes_over_knows_every_row(self, successor, url, orders, task):
        """A batch of the same query, or of one that replaces it, waits for flushes and drops what they have stored."""
        task.flushes(0)
        task.connection.autocommit = False
        assert task.flushes(1, 2)
        assert self.waited(task, lambda: stored_for_a_micro_batch(url, successor)) == start(p0=3)
        assert not task.flushes(3)
        task.connection.commit()
        assert orders() == [0, 1, 2]

    def test_a_role_whose_triggers_rest_takes_over_too(self, url, orders, task):
        """With session_replication_role=replica the triggers of tables do not fire, but this one of the ledger does."""
        task.flushes(0)
        resting = url_with(url, options="-csession_replication_role=replica")
        assert stored_for_a_micro_batch(resting, QUERY) == start(p0=1)
        assert not task.flushes(1)
        assert orders() == [0]

    def test_a_batch_sees_a_partition_that_was_claimed_while_it_waited(self, url, admin, run):
        """It takes that over, too: the task would write on, and the batch would write the same rows."""
        known, new = Task(url, run), Task(url, run, partition=1)
        known.claims()
        at_rest = url_with(url, options="-cdefault_transaction_isolation=serializable")
        with psycopg.connect(url) as busy:
            busy.execute("SELECT FROM pgonce.writers FOR SHARE")
            thread = threading.Thread(target=stored_for_a_micro_batch, args=[at_rest, QUERY])
            thread.start()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            assert wait_until(lambda: admin.execute(waiting).fetchone() == (1,), PATIENCE_SECONDS)
            assert new.claims()
        thread.join()
        assert not new.flushes(0)

    def test_who_does_not_see_all_claims_takes_nothing_over(self, url, task):
        """Somebody's own statement, under a snapshot: a task could have claimed a partition since it was taken."""
        with psycopg.connect(url) as by_hand:
            by_hand.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with pytest.raises(psycopg.errors.RaiseException):
                by_hand.execute("UPDATE pgonce.writers SET retired_at = now()")

    def test_a_retired_query_writes_nothing_more(self, url, orders, run, task):
        """`pgonce retire` ends the claims of running tasks, and no task claims afterwards."""
        task.flushes(0)
        retire_sink(QUERY, url, reason="it is over")
        assert not task.flushes(1)
        assert not Task(url, run, epoch=1).claims(1)
        assert orders() == [0]

    def test_the_old_driver_is_fenced(self, url, orders):
        """A driver whose run was taken over can record nothing."""
        old = begun(url)
        begun(url, last=0)
        with pytest.raises(RefusedBatch, match="FENCED"):
            old.record({}, start(p0=9))
        assert position(url) == 0

    def test_the_old_driver_is_fenced_by_a_micro_batch(self, url, orders, run, task):
        """A batch of another mode takes the positions away, which is no database that went back."""
        task.flushes(0, 1, 2)
        stored_for_a_micro_batch(url, QUERY)
        with pytest.raises(RefusedBatch, match="FENCED"):
            run.record({("orders", 0): 3}, start(p0=3))

    def test_a_login_that_becomes_the_role_of_the_stream(self, url, admin, orders, login):
        """What counts is the role that it has become, and not that it inherits nothing."""
        run, member = begun(url), f"{login.user}_member"
        admin.execute("; ".join(grants(login.user)).encode())
        admin.execute(f'CREATE ROLE "{member}" NOINHERIT IN ROLE "{login.user}"')
        take = "SELECT pgonce.take_positions(%s, 'another run')"
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f'SET SESSION AUTHORIZATION "{member}"; SET ROLE "{login.user}"')
                assert connection.execute(take, [run.writer_id]).fetchone() == (start(p0=0),)
                connection.execute(f'SET SESSION AUTHORIZATION "{login.user}"')
                assert connection.execute(take, [run.writer_id]).fetchone() == (start(p0=0),)
        finally:
            admin.execute(f'DROP ROLE "{member}"')


class TestTasksOfOneBatch:
    def test_a_later_attempt_takes_over(self, url, orders, run):
        """An attempt that Spark starts again goes on where the first one ended, which writes nothing more."""
        first, second = Task(url, run), Task(url, run)
        first.claims()
        first.flushes(0, 1)
        assert second.claims()
        assert second.next == 2
        assert not first.flushes(2)
        assert not first.claims(2)
        assert second.flushes(2)
        assert orders() == [0, 1, 2]

    def test_two_tasks_with_rows_of_one_partition(self, url, admin, orders, run):
        """The second is refused, and no run begins until a person has looked at what may be missing."""
        first, second = Task(url, run, spark_partition=0), Task(url, run, spark_partition=1)
        first.claims(3)
        first.flushes(3)
        assert not second.claims(1)
        second.disputes(1)
        assert not first.flushes(4)
        with pytest.raises(RefusedBatch, match="PARTITION_MIXED.*records 0 to 3"):
            begun(url, last=0)
        for successor in (QUERY, OTHER):
            with pytest.raises(RefusedBatch, match="PARTITION_MIXED"):
                stored_for_a_micro_batch(url, successor)
        with pytest.raises(psycopg.errors.RaiseException, match="may be missing"):
            admin.execute("UPDATE pgonce.writers SET run_id = 'another'")
        admin.execute("UPDATE pgonce.positions SET disputed_from = NULL")
        assert begun(url, last=0).positions == start(p0=4)
        assert orders() == [3]

    def test_the_next_batch_claims_again(self, url, run):
        """Another task may have the partition in the next batch; one of an earlier batch comes too late."""
        late = Task(url, run, epoch=0, spark_partition=0)
        first, second = Task(url, run, epoch=1, spark_partition=0), Task(url, run, epoch=2, spark_partition=1)
        first.claims()
        first.flushes(0)
        assert second.claims(1)
        assert second.flushes(1)
        assert not late.claims(1)

    def test_tasks_that_are_planned_again_within_an_epoch(self, url, run):
        """A continuous query that finds new partitions plans its tasks again: those of the later stage take over."""
        before = Task(url, run, epoch=5, stage=0, spark_partition=0)
        again = Task(url, run, epoch=4, stage=1, spark_partition=1, before=before.claim)
        before.claims()
        before.flushes(0)
        assert again.claims(1)
        assert not before.flushes(1)
        assert not Task(url, run, epoch=6, stage=0).claims(1)
        assert again.flushes(1)

    def test_a_partition_that_appears_while_the_query_runs(self, url, run):
        """Its first task makes its row, at the first record that comes."""
        task = Task(url, run, partition=3)
        assert task.claims(0)
        assert task.flushes(0)
        assert OffsetsStore(url).latest(QUERY).end_offsets == start(p0=0, p3=1)


class TestDatabaseThatWentBack:
    def test_a_task_whose_last_flush_is_gone_writes_nothing_more(self, admin, orders, task):
        """A task whose last flush is gone writes nothing more: rows between would be missing."""
        task.flushes(0, 1, 2)
        admin.execute("UPDATE pgonce.positions SET next_offset = 1; DELETE FROM orders WHERE id > 0")
        assert not task.flushes(3)
        assert orders() == [0]

    def test_a_task_does_not_claim_behind_what_the_one_before_stored(self, url, admin, orders, run, task):
        """The next task knows how far the one before it had come, and does not claim."""
        task.flushes(0, 1, 2)
        admin.execute("UPDATE pgonce.positions SET next_offset = 1; DELETE FROM orders WHERE id > 0")
        assert not Task(url, run, epoch=1, floor=3).claims(3)
        admin.execute("DELETE FROM pgonce.positions")
        assert not Task(url, run, epoch=1, floor=3).claims(3)
        assert orders() == [0]

    def test_a_stage_claims_only_behind_the_claim_that_it_knows(self, url, admin, orders, run):
        """A continuous query that is planned again claims behind the claim that it knows, and behind no other."""
        task = Task(url, run, epoch=5)
        task.claims()
        task.flushes(0, 1, 2)
        assert not Task(url, run, stage=1, before=uuid.uuid4()).claims(4)
        assert Task(url, run, stage=1, before=uuid.uuid4()).claims(3)
        admin.execute("UPDATE pgonce.positions SET next_offset = 1; DELETE FROM orders WHERE id > 0")
        assert not Task(url, run, stage=2, before=task.claim, floor=3).claims(3)
        assert orders() == [0]

    def test_between_two_stages_without_a_claim(self, url, run):
        """The failover may have lost the claim too, or the row of a partition that has appeared during the run."""
        assert not Task(url, run, stage=1, before=uuid.uuid4()).claims(100)
        assert not Task(url, run, stage=1, before=uuid.uuid4(), partition=1).claims(50)
        assert Task(url, run, stage=1, before=uuid.uuid4()).claims(0)
        assert Task(url, run, stage=1, before=uuid.uuid4(), partition=1).claims(0)

    def test_a_database_from_before_the_run_is_refused(self, url, admin, orders):
        """A database of before the run's start has another owner, and no batch that came later."""
        begun(url)
        run = begun(url, last=0)
        admin.execute("UPDATE pgonce.writers SET run_id = 'before', last_batch_id = 0")
        admin.execute("UPDATE pgonce.positions SET next_offset = 0")
        run.stored = replace(run.stored, positions=start(p0=3))
        with pytest.raises(RefusedBatch, match="POSITION_WENT_BACK"):
            run.record({}, start(p0=3))

    def test_rows_that_are_missing_below_the_position(self, admin, run, task):
        """Tasks have gone on from where the database went back to, and the position is further than before by now."""
        task.flushes(0, 1, 2)
        run.record({}, None)
        admin.execute("UPDATE pgonce.positions SET next_offset = 10, rows = 1")
        with pytest.raises(RefusedBatch, match="POSITION_WENT_BACK.*Compare the table"):
            run.record({}, None)

    @pytest.mark.parametrize("reports", [{("orders", 0): 3}, {}], ids=["reported", "continuous"])
    def test_the_driver_records_nothing(self, url, admin, orders, reports, run, task):
        """What is recorded counts as stored, so the driver is refused, and the next run reads what is missing."""
        task.flushes(0, 1, 2)
        if not reports:
            run.record({}, start(p0=3))
        admin.execute("UPDATE pgonce.positions SET next_offset = 1; DELETE FROM orders WHERE id > 0")
        with pytest.raises(RefusedBatch, match="POSITION_WENT_BACK"):
            run.record(reports, start(p0=9))
        if reports:
            again = begun(url, last=0)
            assert again.positions == start(p0=1)

    def test_as_far_as_rows_are_stored(self, url, run, task):
        """In continuous mode Spark does not say where a batch has ended; where no row has come, nothing is recorded."""
        run.record({}, None)
        assert run.batch_id == 0
        task.flushes(0, 1, 2)
        run.record({}, None)
        assert (run.batch_id, run.ends) == (1, start(p0=3))
        run.record({}, None)
        assert run.batch_id == 1
        added = Task(url, run, partition=1)
        added.claims(0)
        added.flushes(0)
        run.record({}, None)
        assert (run.batch_id, run.ends) == (2, start(p0=3, p1=1))

    def test_nothing_beyond_what_is_stored_is_recorded(self, url, run, task):
        """Without reports of tasks, the end of a batch is recorded only as far as rows are stored."""
        task.flushes(0, 1, 2)
        run.record({}, start(p0=9))
        assert position(url) == 3
        assert begun(url, last=1).positions == start(p0=3)


class TestBegin:
    def test_a_topic_that_is_read_no_more(self, url, orders):
        """Its positions stay for later, and Spark is not told of it."""
        begun(url, {"0": {"orders": {"0": 5}, "old": {"0": 7}}})
        run = begun(url, start(p0=5), last=0)
        assert run.positions == start(p0=5)
        run.record({("orders", 0): 5}, start(p0=6))
        assert OffsetsStore(url).latest(QUERY).end_offsets == {"0": {"orders": {"0": 6}, "old": {"0": 7}}}

    def test_rows_that_no_record_knows(self, url, orders, run, task):
        """It begins where the tasks of the run before have come to, whatever Spark's checkpoint says."""
        task.flushes(0, 1, 2)
        with psycopg.connect(url) as connection:
            found = begin_in_tx(connection, QUERY, "public.orders", "the next run", None, start(p0=1))
        assert found.positions == start(p0=3)

    def test_records_that_may_be_lost(self, url, run):
        """Where the user accepts that Kafka has deleted records, the run begins behind them."""
        Task(url, run)
        again = begun(url, last=0)
        again.begin(1, start(p0=0), start(p0=40), None)
        assert again.positions == start(p0=40)


class TestRecords:
    def test_filtered_records_are_passed_over(self, orders, run, task):
        """At the end of a batch, the position moves to where the batch has ended, and tasks go on from there."""
        task.flushes(0, 1)
        run.record({("orders", 0): 2}, start(p0=9))
        assert run.positions == start(p0=9)
        assert task.flushes(9, 10)
        assert orders() == [0, 1, 9, 10]

    def test_a_position_that_no_task_has_reported_is_not_moved(self, orders, run, task):
        """Otherwise a database that went back in that moment would lose the rows between."""
        task.flushes(0, 1, 2)
        run.record({("orders", 0): 2}, start(p0=9))
        assert run.positions == start(p0=3)

    def test_an_added_partition_of_which_all_records_were_filtered(self, url, orders, run):
        """It gets a position too, so that it is not read again from its beginning, and that no record is needed."""
        run.record({}, start(p0=0, p3=4))
        assert run.positions == run.ends == start(p0=0, p3=4)
        task = Task(url, run, partition=3)
        assert task.claims(4)
        assert task.flushes(4)
        run.record({("orders", 3): 5}, start(p0=0, p3=5))
        assert run.positions == start(p0=0, p3=5)
        assert orders() == [4]

    def test_each_record_counts_the_rows_since_the_one_before(self, url, orders, run, task):
        """`pgonce history` shows how many rows came, batch by batch."""
        task.flushes(0, 1)
        run.record({("orders", 0): 2}, start(p0=2))
        task.flushes(2)
        run.record({("orders", 0): 3}, start(p0=3))
        assert [(b.batch_id, b.rows, b.transport) for b in OffsetsStore(url).history(QUERY)] == [
            (2, 1, "real-time"),
            (1, 2, "real-time"),
            (0, 0, "real-time"),
        ]
