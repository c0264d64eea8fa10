"""
Two batches of a query with state run again after a failure, as with asynchronous state checkpointing: nothing is lost.

Open-source Spark runs one batch again. It runs two where the newest entry of ``offsets/`` is gone, and the newest two
of ``commits/``: the older batch over the range that is written down, the newer one planned again. The older one is a
proven replay. The newer one has another text, even where its range is the same, and so is refused. It goes on once its
recorded entry is put back.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psycopg
import pytest
from support.audit import replays, what_is_wrong, wrong_rows
from support.messages import Messages
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish, rewind
from support.recoveries import bring_back
from support.ways_in import WAYS, Sink

from pgonce import recover_and_start
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.recover import recover_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

INLINE, WRITER = (way for way in WAYS if way.name in {"inline", "writer_append"})
IN_FOUR_BATCHES = {"maxOffsetsPerTrigger": "10"}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STATE = "org.apache.spark.sql.execution.streaming.state."


@pytest.fixture
def sink(url, checkpoint):
    """An empty table for messages, without a key: a doubled row shows."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE messages (id bigint, text text)")
    return Sink(url, "messages", checkpoint)


@pytest.fixture
def messages(kafka, topic):
    """A topic with messages for four batches, 0 to 3."""
    sent = Messages(kafka.bootstrap_servers, topic(partitions=2))
    sent.send(40)
    return sent


def forget_two_batches(checkpoint):
    """Let Spark run the last batch but one again, and plan the last one again."""
    newest = rewind(checkpoint)
    assert rewind(checkpoint) == newest - 1
    for name in (str(newest), f".{newest}.crc"):
        (Path(checkpoint) / "offsets" / name).unlink()


def state_of(checkpoint, version):
    """The files of the query's state of one version, by their names in the checkpoint."""
    return sorted(
        str(file.relative_to(checkpoint))
        for file in (Path(checkpoint) / "state").rglob(f"{version}[._]*")
        if file.is_file() and file.suffix in {".delta", ".snapshot", ".changelog", ".zip"}
    )


def deduplicated(spark, messages, way, sink, **limits):
    """A query whose state is the keys that it has seen."""
    keyed = messages.frame(spark, "earliest", **limits).selectExpr("id DIV 15 AS id")
    return way.append(keyed.dropDuplicates(["id"]), sink)


def keys(rows):
    """What is left of messages of which each key has fifteen, in three batches or four."""
    return [(key, None) for key in sorted({number // 15 for number, _ in rows})]


IN_STATE = [(INLINE, "RocksDBStateStoreProvider", 31), (WRITER, "HDFSBackedStateStoreProvider", 0)]


class TestStateful:
    def recovered(self, sink, batch_id):
        """What doctor offers and recover does: the entry of this batch is written, and no commit is touched."""
        found = examine(sink.checkpoint, sink.url)
        assert found.finding is Finding.RECOVERABLE
        assert "pgonce recover" in found.advice
        done = recover_checkpoint(sink.checkpoint, sink.url, quiet_seconds=0)
        assert done.written == (f"offsets/{batch_id}",)
        assert [name for name in done.removed if name.startswith("commits/")] == []
        found = examine(sink.checkpoint, sink.url)
        assert (found.finding, found.sinks[0].verdict) == (Finding.AGREE, Verdict.REPLAY)
        return done

    @pytest.mark.parametrize(("way", "provider", "more"), IN_STATE, ids=lambda value: getattr(value, "name", value))
    def test_a_second_batch_needs_a_recovery(self, spark, messages, way, sink, observer, conf, provider, more):
        """The second is refused whatever its range; once its recorded entry is put back, it is a replay."""
        conf(PROVIDER, STATE + provider)

        stream = partial(deduplicated, spark, messages, way, sink)
        finish(stream(**IN_FOUR_BATCHES))
        forget_two_batches(sink.checkpoint)
        published = keys(messages.rows)
        says = examine(sink.checkpoint, sink.url).sinks[0].says
        assert "batch 3, which was published too" in says

        messages.send(more)
        assert_refused(stream(), "CHANGED")
        assert replays(observer, sink.checkpoint) == [2]
        assert wrong_rows(observer, "messages", published) == []

        with pytest.raises(RecoveryError, match=r"\[RECOVERY_STATEFUL\]"):
            recover_and_start(way.append(messages.frame(spark, "earliest"), sink), sink.checkpoint, sink.url)
        done = self.recovered(sink, 3)
        # Of the state that the refused planning made, nothing is left that Spark would read without its changes.
        assert [name for name in state_of(sink.checkpoint, 4) if name.endswith((".zip", ".snapshot"))] == []
        bring_back(sink.checkpoint)
        assert_refused(stream(), "CHANGED")
        self.recovered(sink, 3)
        assert done.is_done
        messages.send(9)
        finish(stream())
        assert replays(observer, sink.checkpoint) == [2, 3]
        assert what_is_wrong(observer, "messages", sink.checkpoint, keys(messages.rows)) == []

    def test_a_snapshot_of_the_refused_planning(self, spark, messages, sink, observer, conf):
        """State that the refused planning has written whole is taken aside: a later start would read it."""
        conf(PROVIDER, STATE + "RocksDBStateStoreProvider")
        conf(CHANGELOG, "true")

        stream = partial(deduplicated, spark, messages, INLINE, sink)
        finish(stream(**IN_FOUR_BATCHES))
        forget_two_batches(sink.checkpoint)
        messages.send(31)
        # Without a changelog each version is written whole, as maintenance does now and then with one.
        conf(CHANGELOG, "false")
        assert_refused(stream(), "CHANGED")
        conf(CHANGELOG, "true")
        of_refused = [name for name in state_of(sink.checkpoint, 4) if name.endswith(".zip")]
        assert of_refused
        assert set(of_refused) <= set(self.recovered(sink, 3).removed)
        # Batch 3 alone, so that the start after it reads the state that it made.
        again = stream().trigger(once=True).start()
        assert again.awaitTermination(PATIENCE_SECONDS)
        assert replays(observer, sink.checkpoint) == [2, 3]
        finish(stream())
        assert what_is_wrong(observer, "messages", sink.checkpoint, keys(messages.rows)) == []

    def test_state_named_in_commits(self, spark, messages, sink, observer, conf):
        """With checkpointFormatVersion 2 the batch before must be run again first, says doctor; then all is usual."""
        conf(PROVIDER, STATE + "RocksDBStateStoreProvider")
        conf(FORMAT, "2")

        stream = partial(deduplicated, spark, messages, INLINE, sink)
        finish(stream(**IN_FOUR_BATCHES))
        forget_two_batches(sink.checkpoint)
        found = examine(sink.checkpoint, sink.url)
        assert found.finding is Finding.NEEDS_PERSON
        assert "Start the query once more" in found.advice
        with pytest.raises(RecoveryError, match=r"\[RECOVERY_STATEFUL\]"):
            recover_checkpoint(sink.checkpoint, sink.url, quiet_seconds=0)
        messages.send(31)
        assert_refused(stream(), "CHANGED")
        self.recovered(sink, 3)
        finish(stream())
        assert replays(observer, sink.checkpoint) == [2, 3]
        assert what_is_wrong(observer, "messages", sink.checkpoint, keys(messages.rows)) == []
