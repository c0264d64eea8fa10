"""
What goes on over Spark Connect, and what foreachBatch refuses because rows and entry might not belong together.

Covers: sink.identity.from_server.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from guarantee.test_conformance import TestRestarts as Restarts
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from support.audit import query_id, wrong_rows
from support.fixtures.driver import wait_until
from support.fixtures.skips import unavailable
from support.inbox import Inbox, create_events, events
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish
from support.ways_in import WAYS, Sink

from pgonce.sink.errors import SparkError
from pgonce.sink.identity import from_server
from pgonce.sink.identity.from_server import ServerSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WRITER = next(way for way in WAYS if way.name == "writer_append")


@pytest.fixture
def sink(url, checkpoint):
    """An empty table for the rows, and a checkpoint to be."""
    create_events(url, "events", keyed=False)
    return Sink(url, "events", checkpoint)


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way.name in {"inline", "writer_append", "function"}], ids=lambda way: way.name
)
def test_a_replay_is_skipped(way, connect, sink, inbox, observer):
    """By one way in of each kind: what test_connect_conformance.py shows of all of them, with much else."""
    Restarts().test_replay_is_skipped_and_counted(connect, way, sink, inbox, observer)


@pytest.fixture
def copied(sink, inbox, connect, tmp_path):
    """A copy of the checkpoint, made after batch 0; the second batch's rows have come since."""
    finish(WRITER.append(events(connect, inbox.folder), sink))
    copy = tmp_path / "copy"
    shutil.copytree(sink.checkpoint, copy)
    inbox.add(20)
    return copy


def on_the_copy(connect, inbox, sink, copied):
    """A query that runs on the copy, and whose writer is told of the original."""
    function = WRITER.appending(sink)
    return events(connect, inbox.folder).writeStream.foreachBatch(function).option("checkpointLocation", str(copied))


def test_a_batch_that_is_finished_in_the_checkpoint(sink, inbox, connect, copied, observer):
    """The writer is told of a checkpoint that is ahead of the query's own: nothing is written, and nothing skipped."""
    finish(WRITER.append(events(connect, inbox.folder), sink))
    assert_refused(on_the_copy(connect, inbox, sink, copied), "CHECKPOINT_IN_USE")
    assert wrong_rows(observer, "events", inbox.rows) == []


def test_an_entry_that_was_planned_after_the_batch_was_handed_over(sink, inbox, connect, copied, observer):
    """Such an entry is another server's, whatever it says: the batch's own rows would be recorded under it."""
    original = Path(sink.checkpoint) / "offsets"
    version, metadata, *sources = (original / "0").read_text().split("\n")
    later = json.loads(metadata) | {"batchTimestampMs": int(time.time() * 1000) + 3_600_000}
    (original / "1").write_text("\n".join([version, json.dumps(later), *sources]))
    assert_refused(on_the_copy(connect, inbox, sink, copied), "CHECKPOINT_IN_USE")
    assert wrong_rows(observer, "events", inbox.rows[:10]) == []


def test_a_stream_instead_of_its_batch(sink, inbox, connect, observer):
    """A writer that is handed a stream says so, before it asks anybody for rows."""
    writer = WRITER.appending(sink)

    def write_a_stream(batch: DataFrame, batch_id: int) -> None:
        writer(batch.sparkSession.readStream.format("rate").load(), batch_id)

    query = events(connect, inbox.folder).writeStream.foreachBatch(write_a_stream)
    assert_refused(query.option("checkpointLocation", sink.checkpoint), "NOT_CALLED_BY_SPARK")
    assert wrong_rows(observer, "events", []) == []


def test_a_checkpoint_of_a_query_that_runs_already(sink, inbox, connect, tmp_path, observer):
    """Its batches have the same numbers: rows would be recorded as its batch, and others taken for a replay of them."""
    with another_query_in_batch_0(sink, inbox, connect, tmp_path):
        function = WRITER.appending(sink)
        told_another = events(connect, inbox.folder).writeStream.foreachBatch(function)
        assert_refused(told_another.option("checkpointLocation", str(tmp_path / "own")), "QUERY_NOT_RUNNING")
    assert wrong_rows(observer, "events", []) == []


def test_a_checkpoint_that_is_deleted_while_its_query_runs(sink, inbox, connect, tmp_path, observer):
    """Another query has begun in a folder of the same name; the first one's rows are not recorded as that one's."""
    writer, others = WRITER.appending(sink), Inbox(tmp_path / "others", first_id=1000)
    others.add(7)
    create_events(sink.url, "others", keyed=False)
    began, may_write = tmp_path / "began", tmp_path / "may_write"

    def late(batch: DataFrame, batch_id: int) -> None:
        began.touch()
        while not may_write.exists():
            time.sleep(0.02)
        writer(batch, batch_id)

    query = events(connect, inbox.folder).writeStream.foreachBatch(late).option("checkpointLocation", sink.checkpoint)
    first = query.start()
    assert wait_until(began.exists, PATIENCE_SECONDS), first.exception()
    shutil.rmtree(sink.checkpoint)
    with another_query_in_batch_0(sink, others, connect, tmp_path, replace(sink, table="others")):
        may_write.touch()
        with pytest.raises(StreamingQueryException, match=r"\[OTHER_CHECKPOINT\]"):
            first.awaitTermination(PATIENCE_SECONDS)
        assert wrong_rows(observer, "events", []) == []
    assert wait_until(lambda: wrong_rows(observer, "others", others.rows) == [], PATIENCE_SECONDS)


@contextmanager
def another_query_in_batch_0(sink, inbox, connect, tmp_path, into=None):
    """Another query at the checkpoint is inside batch 0, which it finishes afterwards: to nowhere, or into a table."""
    entered, wait = tmp_path / "entered", tmp_path / "wait"
    wait.touch()
    writer = WRITER.appending(into) if into else None

    def hold(batch: DataFrame, batch_id: int) -> None:
        entered.touch()
        while wait.exists():
            time.sleep(0.02)
        if writer:
            writer(batch, batch_id)

    query = events(connect, inbox.folder).writeStream.foreachBatch(hold).option("checkpointLocation", sink.checkpoint)
    running = query.start()
    assert wait_until(entered.exists, PATIENCE_SECONDS), running.exception()
    try:
        yield
    finally:
        wait.unlink()
    running.processAllAvailable()


def test_a_folder_that_other_machines_may_write_to(sink, inbox, connect, observer):
    """On a file system that is not known to be this machine's alone, a second server could not be kept away."""
    folder = Path(sink.checkpoint)
    folder.mkdir(parents=True)
    # Any kind that is not on the list: the kernel of a test machine seldom has NFS.
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", str(folder)], capture_output=True, check=False).returncode:
        unavailable("This test mounts a file system, which only root may do.")
    try:
        assert_refused(WRITER.append(events(connect, inbox.folder), sink), "NOT_EXCLUSIVE")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    assert wrong_rows(observer, "events", []) == []


def test_a_worker_serves_one_run_for_its_whole_life(checkpoint, inbox, connect, monkeypatch):
    """After a restart the server lists another run of the same query: a worker of the first run never takes it."""
    # What a worker finds when it unpickles the function. The store is one where no claim would keep it back.
    monkeypatch.setattr(from_server, "_session_of_this_worker", lambda: connect)
    monkeypatch.setattr(from_server, "end_with_server", lambda: None)
    monkeypatch.setattr(from_server, "_runs", {})
    worker, frame = ServerSession("hdfs://name-node/checkpoint"), connect.range(1)

    def start():
        rows = events(connect, inbox.folder).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = rows.queryName("orders").start()
        # One that is stopped while it writes its first entry may leave a checkpoint on which the next one ends.
        query.processAllAvailable()
        return query

    first = start()
    of_query = query_id(checkpoint)
    assert worker.run_of(of_query, frame) == (first.runId, "orders")
    first.stop()
    second = start()
    assert second.id == of_query
    assert second.runId != first.runId
    with pytest.raises(SparkError, match=rf"\[QUERY_NOT_RUNNING\].*{first.runId}"):
        worker.run_of(of_query, frame)
    # A worker that began with this run.
    monkeypatch.setattr(from_server, "_runs", {})
    assert worker.run_of(of_query, frame) == (second.runId, "orders")
    # One that has written batches of another query, whose checkpoint was here.
    monkeypatch.setattr(from_server, "_runs", {"another": "run"})
    with pytest.raises(SparkError, match=r"\[QUERY_NOT_RUNNING\].*another"):
        worker.run_of(of_query, frame)
    second.stop()
