"""
A Spark Connect server that is killed, a second one on the same checkpoint, and workers that are left behind.

Covers: sink.identity.from_server, sink.foreach_batch.frame_rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.audit import query_id, replays, what_is_wrong, wrong_rows
from support.fixtures.driver import wait_until
from support.inbox import Inbox, create_events, events
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish
from support.signals import strike
from support.ways_in import WAYS, BatchFunction, Sink

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WRITER, FUNCTION = (way for way in WAYS if way.name in {"writer_append", "function"})


@pytest.fixture
def sink(url, checkpoint):
    """An empty table for the rows, and a checkpoint to be."""
    create_events(url, "events", keyed=False)
    return Sink(url, "events", checkpoint)


def waiting(write: BatchFunction, signs: Path, *, before: bool = False) -> BatchFunction:
    """Batch 1 waits behind its COMMIT, or before anything was asked, for as long as there is a file ``wait``."""

    def wait() -> None:
        (signs / "waiting").touch()
        while (signs / "wait").exists():
            time.sleep(0.02)

    def write_and_wait(batch: DataFrame, batch_id: int) -> None:
        if before and batch_id == 1:
            wait()
        write(batch, batch_id)
        if not before and batch_id == 1:
            wait()

    return write_and_wait


def stream(frame: DataFrame, sink: Sink, function: BatchFunction) -> DataStreamWriter:
    """A query that calls the function."""
    return frame.writeStream.foreachBatch(function).option("checkpointLocation", sink.checkpoint)


@pytest.fixture
def signs(tmp_path):
    """Where functions in the server's workers tell that they wait."""
    (tmp_path / "signs").mkdir()
    (tmp_path / "signs/wait").touch()
    return tmp_path / "signs"


def reach_batch_1(query_of: Callable[[], DataStreamWriter], inbox: Inbox, signs: Path) -> None:
    """Run batch 0 and begin batch 1, which waits."""
    query = query_of().start()
    inbox.add(20)
    reached = wait_until((signs / "waiting").exists, PATIENCE_SECONDS)
    assert reached, query.exception()


@pytest.mark.parametrize("way", [WRITER, FUNCTION], ids=lambda way: way.name)
def test_server_is_killed_between_commit_and_its_note(way, sink, inbox, signs, start_server, client, observer):
    """The batch is not written again by the next server, which counts the replay; what comes then is written."""
    server = start_server()
    spark = client(server)
    function = waiting(way.appending(sink), signs)
    reach_batch_1(lambda: stream(events(spark, inbox.folder), sink, function), inbox, signs)
    assert wrong_rows(observer, "events", inbox.rows) == []
    assert not (Path(sink.checkpoint) / "commits/1").exists()
    server.sigkill()
    server.start()
    inbox.add(30)
    finish(way.append(events(client(server), inbox.folder), sink))
    assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
    assert replays(observer, sink.checkpoint) == [1]


def test_second_server_on_the_same_checkpoint(sink, inbox, signs, start_server, client, observer):
    """It is refused before it plans a batch, by the name of the process that is there; the first one goes on."""
    one, other = start_server(), start_server()
    spark = client(one)
    function = waiting(WRITER.appending(sink), signs)
    reach_batch_1(lambda: stream(events(spark, inbox.folder), sink, function), inbox, signs)
    before = sorted(path.name for path in (Path(sink.checkpoint) / "offsets").iterdir())
    (holder,) = one.foreach_batch_workers()
    with pytest.raises(PySparkException, match=rf"\[CHECKPOINT_IN_USE\].*process {holder.pid}\b"):
        finish(WRITER.append(events(client(other), inbox.folder), sink))
    assert sorted(path.name for path in (Path(sink.checkpoint) / "offsets").iterdir()) == before
    (signs / "wait").unlink()
    inbox.add(30)
    noted = (Path(sink.checkpoint) / "commits/2").exists
    assert wait_until(noted, PATIENCE_SECONDS)
    assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
    assert replays(observer, sink.checkpoint) == []


def test_worker_that_outlives_its_server(sink, inbox, signs, start_server, client, observer):
    """Frozen before it knew its run, it keeps the checkpoint; woken, it ends, and never adopts the next run."""
    server, session = start_server(), str(uuid.uuid4())
    first = client(server, session)
    function = waiting(WRITER.appending(sink), signs, before=True)
    reach_batch_1(lambda: stream(events(first, inbox.folder), sink, function), inbox, signs)
    (stale,) = server.foreach_batch_workers()
    strike(stale.pid, signal.SIGSTOP)
    server.sigkill(workers=False)
    (signs / "wait").unlink()
    # The same port, and the same session id: what the worker knows of its server is true of this one, too.
    server.start()
    second = client(server, session)
    with pytest.raises(PySparkException, match=rf"\[CHECKPOINT_IN_USE\].*process {stale.pid}\b"):
        finish(WRITER.append(events(second, inbox.folder), sink))
    assert wrong_rows(observer, "events", inbox.rows[:10]) == []
    stale.send_signal(signal.SIGCONT)
    assert wait_until(lambda: not stale.is_running(), PATIENCE_SECONDS)
    finish(WRITER.append(events(second, inbox.folder), sink))
    assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
    assert replays(observer, sink.checkpoint) == []
    # A client that belongs to the first server is told so by PySpark, or was closed by it for that reason: so would the
    # stale worker have been.
    with pytest.raises(PySparkException, match="server side session|NO_ACTIVE_SESSION|SESSION_CHANGED"):
        _ = first.streams.active


def test_other_entry_while_the_batch_is_written(sink, inbox, connect, observer):
    """A batch whose entry is replaced, as another server would do, is rolled back."""
    checkpoint = Path(sink.checkpoint)

    def overwrite(batch: DataFrame, tx) -> None:
        tx.append(batch, "events")
        entry = checkpoint / "offsets/0"
        entry.write_text(entry.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":2'))

    from pgonce import transactional_batch

    function = transactional_batch(sink.url, name="events", checkpoint_location=sink.checkpoint)(overwrite)
    assert_refused(stream(events(connect, inbox.folder), sink, function), "CHECKPOINT_IN_USE")
    assert wrong_rows(observer, "events", []) == []


def test_writer_that_does_not_know_its_checkpoint(sink, inbox, connect, tmp_path, observer):
    """Without a location, with another query's, or made in the batch itself, it says what is missing."""
    from pgonce import PostgresBatchWriter

    frame = events(connect, inbox.folder)
    finish(WRITER.append(frame, sink))
    elsewhere = Sink(sink.url, "events", str(tmp_path / "elsewhere"))
    url, location = sink.url, elsewhere.checkpoint
    told_nothing = PostgresBatchWriter(url, table="events")
    told_another = PostgresBatchWriter(url, table="events", checkpoint_location=sink.checkpoint)

    def too_late(batch: DataFrame, batch_id: int) -> None:
        PostgresBatchWriter(url, table="events", checkpoint_location=location)(batch, batch_id)

    assert_refused(stream(frame, elsewhere, told_nothing), "SPARK_CONNECT")
    assert_refused(stream(frame, elsewhere, told_another), "QUERY_NOT_RUNNING")
    assert_refused(stream(frame, elsewhere, too_late), "SPARK_CONNECT")
    assert wrong_rows(observer, "events", inbox.rows) == []
    assert query_id(elsewhere.checkpoint) != query_id(sink.checkpoint)


def test_client_without_a_jvm(tmp_path):
    """A writer and a function are made, and pickled, with what pyspark-client has: neither Py4J nor Spark's core."""
    (tmp_path / "pyspark").mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name not in {"core", "jars", "__pycache__"}:
            (tmp_path / "pyspark" / part.name).symlink_to(part)
    script = (
        "import sys; sys.modules['py4j'] = None\n"
        "from pgonce import PostgresBatchWriter\n"
        "from pgonce import transactional_batch\n"
        "from pyspark.cloudpickle import dumps\n"
        "from pyspark.util import is_remote_only\n"
        "assert is_remote_only()\n"
        "writer = PostgresBatchWriter('', table='t', checkpoint_location='/c')\n"
        "function = transactional_batch('', name='n', checkpoint_location='/c')(lambda batch, tx: None)\n"
        "print(len(dumps(writer)) > 0, len(dumps(function)) > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.stdout.strip(), done.returncode) == ("True True", 0), done.stderr
