"""
Rows reach the driver while tasks still make others, and the COPY takes them as they come.

Covers: sink.foreach_batch.frame_rows, sink.foreach_batch.jvm_rows.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import psycopg
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.audit import open_transactions, what_is_wrong
from support.fixtures.driver import wait_until
from support.inbox import Inbox, create_events, events
from support.patience import PATIENCE_SECONDS
from support.ways_in import WAYS, Sink

from pgonce.offsets_store.errors import CommitError
from pgonce.sink.foreach_batch import frame_rows
from pgonce.sink.foreach_batch.frame_rows import ArrivingBatches

pytestmark = pytest.mark.spark

(WRITER,) = (way for way in WAYS if way.name == "writer_append")
ROWS = 200_000
Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def at_once(monkeypatch):
    """The transaction may begin with the first rows."""
    monkeypatch.setattr(frame_rows, "BEFORE_BEGIN_BYTES", 1)


def ids_of(arriving: ArrivingBatches) -> list[int]:
    """All ids, in order."""
    return sorted(number for batch in arriving for number in batch.column(0).to_pylist())


def test_rows_can_be_had_again(spark, at_once, monkeypatch):
    """A second try gets the same rows, those that memory holds and those that wait in a file."""
    monkeypatch.setattr(frame_rows, "IN_MEMORY_BYTES", 500_000)
    arriving = ArrivingBatches(spark.range(ROWS, numPartitions=4))
    assert ids_of(arriving) == list(range(ROWS))
    assert ids_of(arriving) == list(range(ROWS))
    assert arriving.rows() == ROWS


def test_nobody_waits_for_a_slow_reader(spark, at_once, monkeypatch):
    """While nobody takes the rows, other jobs run: Spark sends rows from the thread that schedules its tasks."""
    monkeypatch.setattr(frame_rows, "IN_MEMORY_BYTES", 0)
    wide = spark.range(20_000, numPartitions=8).selectExpr("id", "repeat('x', 2000) AS text")
    arriving = ArrivingBatches(wide)
    assert spark.range(10, numPartitions=2).count() == 10
    assert arriving.rows() == 20_000


def test_a_driver_without_room_for_the_rows_names_the_cause(spark, at_once, monkeypatch):
    """Where the driver has no room for the rows, that is what is raised, and not what Spark says when nobody reads."""
    monkeypatch.setattr(frame_rows, "IN_MEMORY_BYTES", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CommitError, match=r"\[DISK_FULL\].*File too large"):
            ArrivingBatches(spark.range(ROWS, numPartitions=4)).rows()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def failing_late(folder: str) -> Callable[[Batches], Batches]:
    """The task of the second partition fails once it is told that rows of the first have arrived."""

    def fail(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column(0)[0].as_py() >= ROWS // 2:
                while not (Path(folder) / "go").exists():
                    time.sleep(0.02)
                raise RuntimeError("this task fails, as it should")
            yield batch

    return fail


def test_a_task_that_fails_late(spark, at_once, tmp_path):
    """What Spark raises is raised where the missing rows are waited for."""
    frame = spark.range(ROWS, numPartitions=2)
    arriving = ArrivingBatches(frame.mapInArrow(failing_late(str(tmp_path)), frame.schema))
    rows = iter(arriving)
    assert next(rows).num_rows
    (tmp_path / "go").touch()
    with pytest.raises(PySparkException, match="this task fails, as it should"):
        list(rows)
    with pytest.raises(PySparkException, match="this task fails, as it should"):
        arriving.rows()


def test_a_job_that_fails_at_once(spark):
    """What fails before any row is there is raised where enough rows to begin with are waited for."""
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        ArrivingBatches(spark.range(1).selectExpr("1 / id AS broken")).wait()


def test_a_small_batch_is_waited_for_in_whole(spark, tmp_path):
    """Of a small batch, rows of one task are not enough to begin with."""
    frame = spark.range(10, numPartitions=2)
    arriving = ArrivingBatches(frame.mapInArrow(held_until_copied(str(tmp_path), 9), frame.schema))
    waiting = Thread(target=arriving.wait)
    waiting.start()
    assert wait_until((tmp_path / "waiting").exists, PATIENCE_SECONDS)
    waiting.join(0.1)
    assert waiting.is_alive()
    (tmp_path / "go").touch()
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()
    assert ids_of(arriving) == list(range(10))


def held_until_copied(folder: str, last: int) -> Callable[[Batches], Batches]:
    """The task that has the last row waits until it is told that others are being copied."""

    def hold(batches: Batches) -> Batches:
        for batch in batches:
            if last in batch.column(0).to_pylist():
                (Path(folder) / "waiting").touch()
                while not (Path(folder) / "go").exists():
                    time.sleep(0.02)
            yield batch

    return hold


def test_rows_that_nobody_wants_are_not_made(spark, at_once, tmp_path):
    """Once closed, Spark's job is cancelled, and a thread that still waits for rows is told so."""
    frame = spark.range(ROWS, numPartitions=2)
    arriving = ArrivingBatches(frame.mapInArrow(held_until_copied(str(tmp_path), ROWS - 1), frame.schema))
    assert wait_until((tmp_path / "waiting").exists, PATIENCE_SECONDS)
    tracker = spark.sparkContext.statusTracker()
    assert tracker.getActiveJobsIds()
    arriving.close()
    assert wait_until(lambda: not tracker.getActiveJobsIds(), PATIENCE_SECONDS)
    # In Spark's words: cancelled, or that nobody takes the rows, where the other task ended just then.
    with pytest.raises((PySparkException, Py4JJavaError), match="cancelled|Broken pipe|Connection reset"):
        arriving.rows()
    # A task in Python looks up only when it is told.
    (tmp_path / "go").touch()
    assert spark.range(10).count() == 10


@pytest.fixture
def small_batches(spark):
    """Spark's JVM sends what it has once 64 KiB are there: of many small batches, all but the last few."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_rows_are_copied_while_others_are_made(spark, at_once, small_batches, url, observer, tmp_path):
    """The COPY has rows of one task while the other still runs, and gets them all."""
    inbox = Inbox(tmp_path / "inbox")
    inbox.add(20_000)
    with held_query(spark, inbox, url, tmp_path) as sink:
        assert wait_until(lambda: 0 < _copied(observer) < 20_000, PATIENCE_SECONDS)
    assert what_is_wrong(observer, sink.table, sink.checkpoint, inbox.rows) == []


def test_no_transaction_waits_for_a_small_batch(spark, url, observer, tmp_path):
    """While Spark's job makes the rows of a small batch, nobody holds its writer's row."""
    inbox = Inbox(tmp_path / "inbox")
    inbox.add(10)
    inbox.add(10)
    with held_query(spark, inbox, url, tmp_path) as sink:
        assert open_transactions(observer) == 0
    assert what_is_wrong(observer, sink.table, sink.checkpoint, inbox.rows) == []


@contextmanager
def held_query(spark: SparkSession, inbox: Inbox, url: str, tmp_path: Path) -> Iterator[Sink]:
    """A file a batch, of which the task that has the very last row is held while the block runs."""
    sink = Sink(url, "events", str(tmp_path / "checkpoint"))
    create_events(url, sink.table, keyed=False)
    rows = events(spark, inbox.folder).repartition(2)
    names = rows.columns
    plain = rows.toDF(*(f"c{number}" for number in range(len(names))))
    last = inbox.rows[-1][0]
    held = plain.mapInArrow(held_until_copied(str(tmp_path), last), plain.schema).toDF(*names)
    query = WRITER.append(held, sink).trigger(availableNow=True).start()
    try:
        assert wait_until((tmp_path / "waiting").exists, PATIENCE_SECONDS)
        yield sink
    finally:
        (tmp_path / "go").touch()
        assert query.awaitTermination(PATIENCE_SECONDS)


def _copied(observer: psycopg.Connection) -> int:
    found = observer.execute("SELECT max(tuples_processed) FROM pg_stat_progress_copy").fetchone()
    return int(found[0] or 0) if found else 0
