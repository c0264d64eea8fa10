"""
Two batches run again after a failure, as with asynchronous state checkpointing: nothing is lost or doubled.

Open-source Spark runs one batch again. It runs two where the newest entry of ``offsets/`` is gone, and the newest two
of ``commits/``: the older batch over the range that is written down, the newer one planned anew. The older one is a
proven replay. The newer one has another text, even where its range is the same, and so is refused, unless rows carry
their positions.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from spark.exactly_once import recorded, replays, what_is_wrong, wrong_rows
from spark.messages import POSITIONS, Messages
from spark.running import assert_refused, finish, rewind
from spark.ways_in import WAYS, Sink

from offsets_store.errors import RecoveryError
from offsets_store.offsets import parse_offset_log
from offsets_store.recovery.doctor import Finding, examine
from offsets_store.recovery.recover import recover_checkpoint
from offsets_store.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

OF_ONE_TABLE = [way for way in WAYS if way.name in {"inline", "writer_append", "function"}]
IN_FOUR_BATCHES = {"maxOffsetsPerTrigger": "10"}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
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
    """Let Spark run the last batch but one again, and plan the last one anew."""
    newest = rewind(checkpoint)
    assert rewind(checkpoint) == newest - 1
    for name in (str(newest), f".{newest}.crc"):
        (Path(checkpoint) / "offsets" / name).unlink()


def entry(checkpoint, batch_id):
    """The file of the offset log for a batch."""
    return Path(checkpoint) / "offsets" / str(batch_id)


def put_back_what_the_ledger_has(observer, checkpoint, batch_id):
    """Write the recorded text of an entry over the one that was planned anew."""
    (record,) = [batch for batch in recorded(observer, checkpoint) if batch.batch_id == batch_id]
    entry(checkpoint, batch_id).write_text(record.offset_log)
    entry(checkpoint, f".{batch_id}.crc").unlink()


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
        assert "batch 2, which was published too, is then planned anew and refused" in found.sinks[0].says

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


def keys(rows):
    """What is left of messages of which each key has fifteen, in three batches or four."""
    return [(key, None) for key in sorted({number // 15 for number, _ in rows})]


class TestStateful:
    @pytest.mark.parametrize(
        ("way", "provider", "more"),
        [
            (OF_ONE_TABLE[0], "HDFSBackedStateStoreProvider", 0),
            (OF_ONE_TABLE[0], "RocksDBStateStoreProvider", 31),
            (OF_ONE_TABLE[1], "HDFSBackedStateStoreProvider", 31),
            (OF_ONE_TABLE[1], "RocksDBStateStoreProvider", 0),
        ],
        ids=lambda value: getattr(value, "name", value),
    )
    def test_planned_anew(self, spark, messages, way, sink, observer, keep_state_in, provider, more):
        """The second is refused whatever its range, and no recovery offered; its recorded entry makes it a replay."""
        keep_state_in(provider)

        def stream(**limits):
            keyed = messages.frame(spark, "earliest", **limits).selectExpr("id DIV 15 AS id")
            return way.append(keyed.dropDuplicates(["id"]), sink)

        finish(stream(**IN_FOUR_BATCHES))
        forget_two_batches(sink.checkpoint)
        published = keys(messages.rows)

        messages.send(more)
        assert_refused(stream(), "CHANGED")
        assert replays(observer, sink.checkpoint) == [2]
        assert wrong_rows(observer, "messages", published) == []
        with pytest.raises(RecoveryError, match=r"\[RECOVERY_STATEFUL\].*keeps state"):
            recover_checkpoint(sink.checkpoint, sink.url, quiet_seconds=0)

        put_back_what_the_ledger_has(observer, sink.checkpoint, 3)
        assert examine(sink.checkpoint, sink.url).finding is Finding.AGREE
        messages.send(9)
        finish(stream())
        assert replays(observer, sink.checkpoint) == [2, 3]
        assert what_is_wrong(observer, "messages", sink.checkpoint, keys(messages.rows)) == []
