"""
Spark goes on from what recovery has written: after each repair the table equals the source, row by row.

The source is rate-micro-batch: batch N has the rows 10*N to 10*N+9, whenever it is planned.

Covers: pgonce.recovery.recover_and_start.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from support.audit import query_id, wrong_ledger, wrong_rows
from support.fixtures.driver import wait_until
from support.inbox import Inbox, create_events, events
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish

from pgonce import PostgresBatchWriter, recover_and_start
from pgonce.offsets_store.errors import RecoveryError
from pgonce.recovery import fence
from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.recover import recover_checkpoint

pytestmark = pytest.mark.spark


class Query:
    """A query that writes 10 rows a batch into its table, which it creates; one batch at every start."""

    def __init__(self, spark, url, checkpoint):
        self.url, self.checkpoint = url, checkpoint
        self._spark = spark
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE events (value bigint, timestamp timestamptz)")

    def stream(self, checkpoint=None, *, distinct=False):
        """The query, ready to start; ``distinct`` makes it keep state."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        frame = source.option("startTimestamp", 1000).load()
        frame = frame.dropDuplicates(["value"]) if distinct else frame
        writer = PostgresBatchWriter(self.url, table="events", retry_timeout=0)
        return frame.writeStream.foreachBatch(writer).option("checkpointLocation", checkpoint or self.checkpoint)

    def run(self, batches, checkpoint=None):
        """Run so many batches, each in a run of its own."""
        for _ in range(batches):
            finish(self.stream(checkpoint))

    def recover(self):
        """Recover at once."""
        return recover_checkpoint(self.checkpoint, self.url, quiet_seconds=0)

    def restore(self, last):
        """Set its table and its records back to batch ``last``."""
        set_back(self.url, last, f"value >= {10 * (last + 1)}")


def set_back(url, last, lost):
    """Set the table and its records back to batch ``last``, as a restore does, which loses these rows."""
    with psycopg.connect(url) as connection:
        connection.execute(f"DELETE FROM events WHERE {lost}")
        connection.execute(
            "UPDATE pgonce.writers AS w SET last_batch_id = b.batch_id, end_offsets = b.end_offsets, "
            "run_id = b.run_id FROM pgonce.batches AS b WHERE b.writer_id = w.writer_id AND b.batch_id = %s",
            [last],
        )
        connection.execute("DELETE FROM pgonce.batches WHERE batch_id > %s", [last])


def values(observer):
    """What is in the table, in order."""
    return [value for (value,) in observer.execute("SELECT value FROM events ORDER BY value").fetchall()]


@pytest.fixture
def query(spark, url, checkpoint):
    """The query; nothing has run yet."""
    return Query(spark, url, checkpoint)


def test_forward_from_an_older_copy(query, observer, tmp_path):
    """A checkpoint copied three batches ago is refused, recovered, and goes on; doctor knows it before and after."""
    query.run(3)
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    query.run(3)
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "copy", query.checkpoint)
    assert examine(query.checkpoint, query.url).finding is Finding.RECOVERABLE
    assert_refused(query.stream(), "CHANGED")
    recovered = query.recover()
    assert (recovered.stands_at, recovered.may_double) == (5, False)
    assert examine(query.checkpoint, query.url).finding is Finding.AGREE
    query.run(2)
    assert values(observer) == list(range(80))


def test_back_to_a_restored_database(query, observer):
    """A database set back to batch 2 is met by the checkpoint, and the rows in between come once more."""
    query.run(6)
    query.restore(2)
    assert_refused(query.stream(), "GAP")
    # Another function may have written the batches that the ledger lacks: a start does not decide that by itself.
    with pytest.raises(RecoveryError, match="RECOVERY_MAY_DOUBLE"):
        recover_and_start(query.stream(None), query.checkpoint, query.url, quiet_seconds=0)
    recovered = query.recover()
    assert (recovered.stands_at, recovered.may_double) == (2, True)
    query.run(4)
    assert values(observer) == list(range(70))
    assert wrong_ledger(observer, query.checkpoint) == []


@pytest.mark.parametrize("provider", ["HDFSBacked", "RocksDB"])
def test_a_stateful_query_whose_last_batch_a_failover_lost(provider, query, conf, observer):
    """State cannot be moved, and need not: Spark runs that batch again, from the state before it."""
    name = f"org.apache.spark.sql.execution.streaming.state.{provider}StateStoreProvider"
    conf("spark.sql.streaming.stateStore.providerClass", name)
    for _ in range(4):
        finish(query.stream(distinct=True))
    query.restore(2)
    assert_refused(query.stream(distinct=True), "GAP")
    recovered = query.recover()
    assert (recovered.stands_at, recovered.may_double) == (3, True)
    for _ in range(2):
        finish(query.stream(distinct=True))
    assert len(values(observer)) >= 50
    assert values(observer) == list(range(len(values(observer))))
    assert wrong_ledger(observer, query.checkpoint) == []


@pytest.mark.parametrize("is_refused_first", [False, True])
def test_files_whose_last_batch_a_failover_lost(is_refused_first, spark, url, checkpoint, observer, tmp_path):
    """Their list cannot be moved, and need not: that batch reads them again, and the refused one is planned again."""
    inbox = Inbox(tmp_path / "inbox")
    create_events(url, "events", keyed=False)
    writer = PostgresBatchWriter(url, table="events", retry_timeout=0)
    stream = events(spark, inbox.folder).writeStream.foreachBatch(writer).option("checkpointLocation", checkpoint)
    for _ in range(4):
        inbox.add(5)
        finish(stream)
    set_back(url, 2, "id >= 15")
    if is_refused_first:
        inbox.add(5)
        assert_refused(stream, "GAP")
    recovered = recover_checkpoint(checkpoint, url, quiet_seconds=0)
    assert (recovered.stands_at, recovered.may_double) == (3, True)
    inbox.add(5)
    finish(stream)
    assert wrong_rows(observer, "events", inbox.rows) == []
    assert wrong_ledger(observer, checkpoint) == []


def test_a_query_goes_on_from_a_lost_checkpoint(query, observer, tmp_path):
    """With the query's id alone it is written from the ledger, and the query goes on with nothing lost or doubled."""
    query.run(4)
    lost = query_id(query.checkpoint)
    shutil.rmtree(query.checkpoint)
    new = tmp_path / "new"
    new.mkdir()
    # With a line break, as `echo` writes it.
    (new / "metadata").write_text(f'{{"id":"{lost}"}}\n')
    recover_checkpoint(str(new), query.url, quiet_seconds=0)
    query.run(3, str(new))
    assert query_id(new) == lost
    assert values(observer) == list(range(70))


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_sparse_log_is_started_synchronously(is_committed, query, observer):
    """What asynchronous progress tracking leaves makes Spark fail ("batch N doesn't exist"); recovered, it goes on."""
    query.run(5)
    folder = Path(query.checkpoint)
    gone = ["offsets/2", "offsets/3", "commits/2", "commits/3", *([] if is_committed else ["commits/4"])]
    for name in gone:
        (folder / name).unlink()
        (folder / name).with_name(f".{Path(name).name}.crc").unlink()
    found = examine(query.checkpoint, query.url)
    assert found.finding is Finding.RECOVERABLE
    with pytest.raises(Exception, match="batch 3 (doesn't exist|not found in offset log)"):
        query.run(1)
    assert query.recover().written == ("offsets/3",)
    query.run(2)
    # A start that runs a batch again goes on with the next one.
    assert values(observer) == list(range(70))


def test_a_query_that_runs_is_seen_and_fenced(query, observer, monkeypatch):
    """A query of this process is seen; one that nobody saw is refused at its next batch, and goes on later."""
    query.run(3)
    running = query.stream().trigger(processingTime="3 seconds").start()
    try:
        assert wait_until(lambda: running.lastProgress or not running.isActive, PATIENCE_SECONDS)
        assert running.exception() is None
        (Path(query.checkpoint) / "offsets" / ".999.crc").touch()
        with pytest.raises(RecoveryError, match="QUERY_RUNNING"):
            query.recover()
        monkeypatch.setattr(fence, "refuse_running", lambda *_, **__: None)
        assert wait_until(lambda: is_recovered_between_batches(query), PATIENCE_SECONDS)
        with pytest.raises(Exception, match=r"\[FENCED\].*recovery-"):
            running.awaitTermination(PATIENCE_SECONDS)
    finally:
        running.stop()
    query.run(2)
    found = values(observer)
    assert found == list(range(len(found)))
    assert len(found) >= 50


def is_recovered_between_batches(query):
    """Recover a checkpoint that a query still works on; False where it published meanwhile, which is seen."""
    try:
        assert query.recover().is_done
    except RecoveryError as error:
        if "has moved since it was read" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("way", ["stateless", "stateful"])
def test_a_driver_killed_while_it_wrote_the_first_entry(way, query, observer):
    """Spark refuses what is left in offsets/, whether or not there is a checksum; taken aside, the query starts."""
    folder = Path(query.checkpoint)
    unfinished = f".0.{uuid4()}.tmp"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(uuid4())}))
    (folder / "offsets" / unfinished).write_text("v1")
    (folder / "offsets" / f".{unfinished}.crc").write_bytes(b"crc\0")
    stream = query.stream if way == "stateless" else lambda: query.stream(distinct=True)
    with pytest.raises(Exception, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        finish(stream())

    found = examine(query.checkpoint, query.url)
    assert found.finding is Finding.RECOVERABLE
    assert any("killed while it wrote the first entry" in remark for remark in found.remarks)
    assert "adoptCheckpoint" not in found.advice
    done = query.recover()
    assert len(done.kept) == 2
    assert (folder / done.kept_in / "offsets" / unfinished).read_text() == "v1"
    assert examine(query.checkpoint, query.url).finding is Finding.AGREE
    finish(stream())
    finish(stream())
    assert values(observer) == list(range(20))
