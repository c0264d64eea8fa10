"""
Two batches run again after a failure, as with asynchronous state checkpointing: nothing is lost or doubled.

Open-source Spark runs one batch again. It runs two where the newest entry of ``offsets/`` is gone, and the newest two
of ``commits/``: the older batch over the range that is written down, the newer one planned again. The older one is a
proven replay. The newer one has another text, even where its range is the same, and so is refused, unless rows carry
their positions. What was refused goes on once its recorded entry is put back, with state and without.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psycopg
import pytest
from support.audit import recorded, replays, what_is_wrong, wrong_rows
from support.messages import POSITIONS, Messages
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish, rewind
from support.ways_in import WAYS, Sink

from pgonce import recover_and_start
from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.recovery.doctor import Finding, examine
from pgonce.offsets_store.recovery.recover import recover_checkpoint, undo_recovery
from pgonce.offsets_store.verdict.decide import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

OF_ONE_TABLE = [way for way in WAYS if way.name in {"inline", "writer_append", "function"}]
IN_FOUR_BATCHES = {"maxOffsetsPerTrigger": "10"}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STATE = "org.apache.spark.sql.execution.streaming.state."


@pytest.fixture(params=OF_ONE_TABLE, ids=lambda way: way.name)
def way(request):
    """A way in that adds rows to a table without a key."""
    return request.param


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


@pytest.fixture
def keep_state_in(spark):
    """Choose where Spark keeps a query's state: ``keep_state_in(provider)``."""
    before = spark.conf.get(PROVIDER)
    yield lambda provider: spark.conf.set(PROVIDER, STATE + provider)
    spark.conf.set(PROVIDER, before)


def forget_two_batches(checkpoint):
    """Let Spark run the last batch but one again, and plan the last one again."""
    newest = rewind(checkpoint)
    assert rewind(checkpoint) == newest - 1
    for name in (str(newest), f".{newest}.crc"):
        (Path(checkpoint) / "offsets" / name).unlink()


def entry(checkpoint, batch_id):
    """The file of the offset log for a batch."""
    return Path(checkpoint) / "offsets" / str(batch_id)


def state_of(checkpoint, version):
    """The files of the query's state of one version, by their names in the checkpoint."""
    return sorted(
        str(file.relative_to(checkpoint))
        for file in (Path(checkpoint) / "state").rglob(f"{version}[._]*")
        if file.is_file() and file.suffix in {".delta", ".snapshot", ".changelog", ".zip"}
    )


class TestStateless:
    def test_planned_over_the_same_range(self, spark, messages, way, sink, observer):
        """The first is a replay, the second refused although its range is the same; recovered, the query goes on."""
        frame = messages.frame(spark, "earliest", **IN_FOUR_BATCHES)
        finish(way.append(frame, sink))
        forget_two_batches(sink.checkpoint)

        assert_refused(way.append(frame, sink), "CHANGED")
        planned, record = entry(sink.checkpoint, 3).read_text(), recorded(observer, sink.checkpoint)[3]
        assert parse_offset_log(planned).offsets == record.end
        assert planned != record.offset_log
        assert replays(observer, sink.checkpoint) == [2]
        assert wrong_rows(observer, "messages", messages.rows) == []

        assert examine(sink.checkpoint, sink.url).finding is Finding.RECOVERABLE
        assert "offsets/3" in recover_checkpoint(sink.checkpoint, sink.url, quiet_seconds=0).written
        messages.send(15)
        finish(way.append(frame, sink))
        assert what_is_wrong(observer, "messages", sink.checkpoint, messages.rows) == []
        assert replays(observer, sink.checkpoint) == [2]

    @pytest.mark.parametrize("way", OF_ONE_TABLE[:2], ids=lambda way: way.name)
    def test_recovered_before_the_start(self, spark, way, sink, observer):
        """Doctor knows that the second batch will be refused, and after recovery none is run again."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("startTimestamp", 1000)
        frame = source.load().selectExpr("value AS id", "CAST(value AS STRING) AS text")
        for _ in range(3):
            finish(way.append(frame, sink))
        forget_two_batches(sink.checkpoint)
        found = examine(sink.checkpoint, sink.url)
        assert (found.finding, found.next_batch_id) == (Finding.RECOVERABLE, 1)
        assert found.sinks[0].verdict is Verdict.REPLAY
        assert "batch 2, which was published too, is then planned again and refused" in found.sinks[0].says

        recover_checkpoint(sink.checkpoint, sink.url, quiet_seconds=0)
        finish(way.append(frame, sink))
        expected = [(number, str(number)) for number in range(40)]
        assert what_is_wrong(observer, "messages", sink.checkpoint, expected) == []
        assert replays(observer, sink.checkpoint) == []

    @pytest.mark.parametrize("more", [0, 14], ids=["same_range", "wider_range"])
    def test_by_position(self, spark, messages, way, sink, observer, more):
        """The second, whatever its range, loses the rows that are stored, which are counted, and no others."""
        if way.name == "function":
            with psycopg.connect(sink.url) as connection:
                connection.execute('ALTER TABLE messages ADD topic text, ADD "partition" int, ADD "offset" bigint')
            settings = {"position_columns": ",".join(POSITIONS)}
        else:
            settings = {"position_columns": ",".join(POSITIONS), "write_positions": False}
        by_position = Sink(sink.url, "messages", sink.checkpoint, settings)
        finish(way.append(messages.frame(spark, "earliest", positions=True, **IN_FOUR_BATCHES), by_position))
        forget_two_batches(sink.checkpoint)

        messages.send(more)
        finish(way.append(messages.frame(spark, "earliest", positions=True), by_position))
        assert replays(observer, sink.checkpoint) == [2]
        published = observer.execute(
            "SELECT generation, batch_id, rows, dropped_rows FROM pgonce.batches ORDER BY 1, 2"
        ).fetchall()
        assert published == [(0, 0, 10, 0), (0, 1, 10, 0), (0, 2, 10, 0), (0, 3, 10, 0), (1, 3, more, 10)]
        assert stored(observer) == sorted(messages.rows)


def stored(observer):
    """Rows of the table as they were sent."""
    return observer.execute("SELECT id, text FROM messages ORDER BY 1").fetchall()


def deduplicated(spark, messages, way, sink, **limits):
    """A query whose state is the keys that it has seen."""
    keyed = messages.frame(spark, "earliest", **limits).selectExpr("id DIV 15 AS id")
    return way.append(keyed.dropDuplicates(["id"]), sink)


def keys(rows):
    """What is left of messages of which each key has fifteen, in three batches or four."""
    return [(key, None) for key in sorted({number // 15 for number, _ in rows})]


IN_STATE = [
    (OF_ONE_TABLE[0], "RocksDBStateStoreProvider", 31),
    (OF_ONE_TABLE[1], "HDFSBackedStateStoreProvider", 0),
]


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
    def test_planned_again(self, spark, messages, way, sink, observer, keep_state_in, provider, more):
        """The second is refused whatever its range; once its recorded entry is put back, it is a replay."""
        keep_state_in(provider)

        stream = partial(deduplicated, spark, messages, way, sink)
        finish(stream(**IN_FOUR_BATCHES))
        forget_two_batches(sink.checkpoint)
        published = keys(messages.rows)

        messages.send(more)
        assert_refused(stream(), "CHANGED")
        assert replays(observer, sink.checkpoint) == [2]
        assert wrong_rows(observer, "messages", published) == []

        with pytest.raises(RecoveryError, match=r"\[RECOVERY_STATEFUL\]"):
            recover_and_start(way.append(messages.frame(spark, "earliest"), sink), sink.checkpoint, sink.url)
        done = self.recovered(sink, 3)
        # Of the state that the refused planning made, nothing is left that Spark would read without its changes.
        assert [name for name in state_of(sink.checkpoint, 4) if name.endswith((".zip", ".snapshot"))] == []
        undo_recovery(sink.checkpoint, sink.url, quiet_seconds=0)
        assert_refused(stream(), "CHANGED")
        self.recovered(sink, 3)
        assert done.is_done
        messages.send(9)
        finish(stream())
        assert replays(observer, sink.checkpoint) == [2, 3]
        assert what_is_wrong(observer, "messages", sink.checkpoint, keys(messages.rows)) == []

    @pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
    def test_a_join(self, spark, messages, sink, observer, keep_state_in, provider):
        """Two streams, whose rows meet a batch later or in the same one, give every pair once."""
        keep_state_in(provider)
        way = OF_ONE_TABLE[1]

        def stream(**limits):
            one = messages.frame(spark, "earliest", **limits).where("id < 1000")
            other = messages.frame(spark, "earliest", **limits).where("id >= 1000").selectExpr("id - 1003 AS id")
            return way.append(one.join(other, "id"), sink)

        def pairs():
            numbers = {number for number, _ in messages.rows}
            return [row for row in messages.rows if row[0] < 1000 and row[0] + 1003 in numbers]

        finish(stream(**IN_FOUR_BATCHES))
        forget_two_batches(sink.checkpoint)
        published = pairs()
        messages.send(31)
        assert_refused(stream(), "CHANGED")
        assert wrong_rows(observer, "messages", published) == []
        self.recovered(sink, 3)
        finish(stream())
        assert what_is_wrong(observer, "messages", sink.checkpoint, pairs()) == []

    def test_a_snapshot_of_the_refused_planning(self, spark, messages, sink, observer, keep_state_in):
        """State that the refused planning has written whole is taken aside: a later start would read it."""
        keep_state_in("RocksDBStateStoreProvider")
        spark.conf.set(CHANGELOG, "true")

        stream = partial(deduplicated, spark, messages, OF_ONE_TABLE[0], sink)
        try:
            finish(stream(**IN_FOUR_BATCHES))
            forget_two_batches(sink.checkpoint)
            messages.send(31)
            # Without a changelog each version is written whole, as maintenance does now and then with one.
            spark.conf.set(CHANGELOG, "false")
            assert_refused(stream(), "CHANGED")
            spark.conf.set(CHANGELOG, "true")
            of_refused = [name for name in state_of(sink.checkpoint, 4) if name.endswith(".zip")]
            assert of_refused
            assert set(of_refused) <= set(self.recovered(sink, 3).removed)
            # Batch 3 alone, so that the start after it reads the state that it made.
            again = stream().trigger(once=True).start()
            assert again.awaitTermination(PATIENCE_SECONDS)
            assert replays(observer, sink.checkpoint) == [2, 3]
            finish(stream())
            assert what_is_wrong(observer, "messages", sink.checkpoint, keys(messages.rows)) == []
        finally:
            spark.conf.unset(CHANGELOG)

    def test_state_named_in_commits(self, spark, messages, sink, observer, keep_state_in):
        """With checkpointFormatVersion 2 the batch before must be run again first, says doctor; then all is usual."""
        keep_state_in("RocksDBStateStoreProvider")
        spark.conf.set(FORMAT, "2")

        stream = partial(deduplicated, spark, messages, OF_ONE_TABLE[0], sink)
        try:
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
        finally:
            spark.conf.unset(FORMAT)
