"""
What the driver under test does with its rows, and how its table shows that it was done once.

Runs in: the driver under test (``start``) and in the laboratory (the SQL). Invariant: the auditor can judge each
table by itself, while it is written and afterwards: what has arrived of a stream must be a prefix of it. In real time
it must also have come in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from chaos.sources import KAFKA_COLUMNS, Stream
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pgonce import PostgresBatchWriter, start_real_time, transactional_batch
from pgonce.sink.foreach_batch.batch_transaction import BatchTransaction

_BUCKETS = 8
# Patience in seconds: long enough for a server that comes back, short enough for a test.
_PATIENCE = {"lock_timeout": 2.0, "retry_timeout": 15.0}
_PATIENCE_OPTIONS = {"lockTimeout": "2", "retryTimeout": "15"}

_EVENTS = "CREATE TABLE {t} (stream int NOT NULL, position bigint NOT NULL, payload text{more})"

# What should be in a table, if as many rows of each stream have come as the table `tops` says; and what is there.
_WANTED = """
SELECT stream, position, md5(stream || ':' || position) AS payload{more}
FROM tops, generate_series(0, top - 1) AS position
"""
_FOUND = "SELECT stream, position, payload{more} FROM {rows}"

# Rows are numbered as they come: one that did not come next after the one before it in its stream differs.
_IN_ORDER = _FOUND.format(
    more=", lag(position, 1, -1::bigint) OVER (PARTITION BY stream ORDER BY n) AS before", rows="{rows}"
)
# A sequence that belongs to no table, so that one that takes the place of another goes on with its numbers.
_NUMBERED = "CREATE SEQUENCE {t}_n; " + _EVENTS.format(t="{t}", more=", topic text, n bigint DEFAULT nextval('{t}_n')")

_COUNT_WRITES = """
CREATE FUNCTION {t}_again() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.writes := OLD.writes + 1; RETURN NEW; END';
CREATE TRIGGER again BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_again();
"""

# With every fourth row comes a copy that the table refuses: it must be a dead letter, once.
_WITH_COPIES = f"""
WITH wanted AS ({_WANTED.format(more="")}) SELECT *, false AS is_letter FROM wanted
UNION ALL SELECT stream, NULL, payload, true FROM wanted WHERE position % 4 = 0
"""
_AND_LETTERS = """
SELECT stream, position, payload, false AS is_letter FROM {rows}
UNION ALL SELECT (row_data ->> 'stream')::int, NULL, row_data ->> 'payload', true
FROM pgonce.dead_letters WHERE target = 'public.{t}'
"""

# Every fourth record cannot be decoded: it must be a dead letter, once, with its bytes and its place.
_OR_LETTERS = """
SELECT stream, position, payload FROM {rows}
UNION ALL SELECT (position ->> 'partition')::int, (position ->> 'offset')::bigint,
    right(convert_from(record_value, 'UTF8'), 32) FROM pgonce.dead_letters WHERE target = 'public.{t}'
"""

_BUCKETED = f"""
SELECT stream, (position % {_BUCKETS})::int AS bucket, count(*) AS n, sum(position)::bigint AS total
FROM tops, generate_series(0, top - 1) AS position GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Place:
    """Where a query of the driver under test writes, and its checkpoint."""

    url: str
    table: str
    checkpoint: str


@dataclass(frozen=True)
class Workload:
    """
    One way in.

    ``rows`` is where its rows are, ``found`` what is compared of them, and ``wanted`` what that should be; ``keys``
    tell rows apart. ``top`` says how many rows of a stream have come, if the last one is there. ``counts_rows`` tells
    whether the ledger's row counts add up to the table's. ``commits_in`` says which process speaks to Postgres when
    rows are committed; in real time it is an executor, for each task by itself. ``needs_kafka`` says that no other
    source has what it reads.
    """

    name: str
    start: Callable[[Stream, Place], StreamingQuery]
    create: str = _EVENTS.format(t="{t}", more="")
    rows: str = "{t}"
    found: str = _FOUND.format(more="", rows="{rows}")
    wanted: str = _WANTED.format(more="")
    keys: str = "{stream,position}"
    top: str = "max(position) + 1"
    counts_rows: bool = True
    commits_in: Literal["worker", "receiver", "driver", "task"] = "driver"
    stateful: bool = False
    needs_kafka: bool = False

    @property
    def table(self) -> str:
        """Its table, which has no other writer."""
        return f"events_{self.name}"

    @property
    def in_real_time(self) -> bool:
        """Whether it runs in Spark's real-time or continuous mode, and so without batches that could be committed."""
        return self.commits_in == "task"

    @property
    def telltale(self) -> str:
        """What is in the statements that write its rows, and in no others of its sessions."""
        # A task that stages does not name the table so.
        return "moved AS" if self.in_real_time else f'"{self.table}"'


def _in_micro_batches(
    write: Callable[[DataFrame, Place], DataStreamWriter],
) -> Callable[[Stream, Place], StreamingQuery]:
    return lambda stream, place: write(stream.rows(), place).trigger(**stream.trigger).start()


def _in_real_time(**trigger: Any) -> Callable[[Stream, Place], StreamingQuery]:
    def start(stream: Stream, place: Place) -> StreamingQuery:
        return start_real_time(
            stream.session,
            kafka=stream.kafka_options(),
            rows=lambda records: records.selectExpr("topic", *KAFKA_COLUMNS),
            position_columns=("topic", "stream", "position"),
            url=place.url,
            table=place.table,
            checkpoint_location=place.checkpoint,
            **_PATIENCE,
            **trigger,
        )

    return start


def _data_source(frame: DataFrame, place: Place, **options: str) -> DataStreamWriter:
    settings = {"url": place.url, "table": place.table, "checkpointLocation": place.checkpoint}
    return frame.writeStream.format("pgonce").options(**settings, **_PATIENCE_OPTIONS, **options)


def _in_foreach_batch(frame: DataFrame, place: Place, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    return frame.writeStream.foreachBatch(function).option("checkpointLocation", place.checkpoint)


def _staged(frame: DataFrame, place: Place) -> DataStreamWriter:
    return _data_source(frame, place, inlineBytes="0", receiver="off")


def _received(frame: DataFrame, place: Place) -> DataStreamWriter:
    return _data_source(frame, place, inlineBytes="0", receiver="auto")


def _append(frame: DataFrame, place: Place) -> DataStreamWriter:
    return _in_foreach_batch(frame, place, _writer(place))


def _writer(place: Place, **options: Any) -> PostgresBatchWriter:
    return PostgresBatchWriter(place.url, table=place.table, **_PATIENCE, **options)


def _upsert(
    frame: DataFrame, place: Place, keys: tuple[str, ...] = ("stream", "position"), order_by: str | None = None
) -> DataStreamWriter:
    return _in_foreach_batch(frame, place, _writer(place, mode="upsert", keys=keys, order_by=order_by))


def _merged(frame: DataFrame, place: Place) -> DataStreamWriter:
    twice = frame.select("stream", f.col("position").alias("written_by"), f.explode(f.array(f.lit(0), f.lit(1))))
    rows = twice.withColumn("position", f.col("written_by") - f.col("col")).where("position >= 0").drop("col")
    payload = f.md5(f.concat_ws(":", "stream", "position"))
    return _upsert(rows.withColumn("payload", payload), place, order_by="written_by")


def _applied(frame: DataFrame, place: Place) -> DataStreamWriter:
    at = f.col("position")
    # What each row does: write itself, delete the row before it, bring back the row before that.
    change = f.explode(f.array(f.lit(0), f.when(at % 3 == 0, f.lit(1)), f.when(at % 3 == 1, f.lit(2)))).alias("back")
    changes = frame.select("stream", "position", change).where("back IS NOT NULL AND position >= back")
    rows = changes.select(
        "stream",
        (at - f.col("back")).alias("position"),
        # The delete is newer than the row, and what comes after it is as old as the row.
        (at * 2 - f.col("back") * 2 + (f.col("back") == 1).cast("int")).alias("seq"),
        (f.col("back") == 1).alias("is_deleted"),
    )
    rows = rows.withColumn("payload", f.md5(f.concat_ws(":", "stream", "position")))
    return _data_source(rows, place, mode="apply", deleteWhen="is_deleted", orderBy="seq", onlyNewer="true")


def _diverted(frame: DataFrame, place: Place) -> DataStreamWriter:
    twice = frame.select("*", f.explode(f.array(f.lit(False), f.lit(True))).alias("is_bad"))
    rows = twice.where("NOT is_bad OR position % 4 = 0")
    bad = rows.withColumn("position", f.when(~f.col("is_bad"), f.col("position"))).drop("is_bad")
    return _data_source(bad, place, deadLetters="true", maxDeadLetters="1000000")


def _routed(frame: DataFrame, place: Place) -> DataStreamWriter:
    even = f.when(f.col("position") % 2 == 0, f.lit("even")).otherwise(f.lit("odd"))
    tables = {"even": {"table": place.table}, "odd": {"table": f"{place.table}_odd"}}
    rows = frame.withColumn("kind", even)
    settings = {"url": place.url, "checkpointLocation": place.checkpoint, **_PATIENCE_OPTIONS}
    return rows.writeStream.format("pgonce").options(**settings, route="kind", tables=json.dumps(tables))


def _decoded(stream: Stream, place: Place) -> StreamingQuery:
    value = f.col("value").cast("string")
    good = f.concat(
        f.lit('{"stream":'), "partition", f.lit(',"position":'), "offset", f.lit(',"payload":"'), value, f.lit('"}')
    )
    text = f.when(f.col("offset") % 4 == 0, f.concat(f.lit("bad "), value)).otherwise(good)
    records = stream.records().withColumn("value", text.cast("binary"))
    letters = {"deadLetters": "true", "maxDeadLetters": "1000000"}
    return _data_source(records, place, decode="json", **letters).trigger(**stream.trigger).start()


def _two_tables(frame: DataFrame, place: Place) -> DataStreamWriter:
    @transactional_batch(place.url, name=place.table, **_PATIENCE)
    def append_and_total(batch: DataFrame, tx: BatchTransaction) -> None:
        sums = batch.groupBy("stream").agg(f.count("*"), f.sum("position")).collect()
        tx.append(batch, place.table)
        for stream, n, total in sums:
            tx.execute(
                f"INSERT INTO {place.table}_totals AS t VALUES (%s, %s, %s) "
                "ON CONFLICT (stream) DO UPDATE SET n = t.n + excluded.n, total = t.total + excluded.total",
                [stream, n, total],
            )

    return _in_foreach_batch(frame, place, append_and_total)


def _deduplicated(frame: DataFrame, place: Place) -> DataStreamWriter:
    twice = frame.withColumn("copy", f.explode(f.array(f.lit(1), f.lit(2))))
    return _data_source(twice.dropDuplicates(["stream", "position"]).drop("copy"), place)


def _counted(frame: DataFrame, place: Place) -> DataStreamWriter:
    bucket = (f.col("position") % _BUCKETS).cast("int").alias("bucket")
    counts = frame.groupBy("stream", bucket).agg(f.count("*").alias("n"), f.sum("position").alias("total"))
    return _upsert(counts, place, keys=("stream", "bucket")).outputMode("update")


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("inline", _in_micro_batches(_data_source), commits_in="worker"),
        Workload("staged", _in_micro_batches(_staged), commits_in="worker"),
        Workload("received", _in_micro_batches(_received), commits_in="receiver"),
        Workload("append", _in_micro_batches(_append)),
        Workload(
            "upsert",
            _in_micro_batches(_upsert),
            create=_EVENTS.format(t="{t}", more=", writes int DEFAULT 1, PRIMARY KEY (stream, position)")
            + ";"
            + _COUNT_WRITES,
            # A row that was upserted twice looks like one that was upserted once; its counter does not.
            found=_FOUND.format(more="", rows="{rows}, generate_series(1, writes)"),
        ),
        Workload(
            "merged",
            _in_micro_batches(_merged),
            # Without a trigger, which MERGE would let a user see.
            create=_EVENTS.format(t="{t}", more=", written_by bigint, PRIMARY KEY (stream, position)"),
            # Each row says which one has written it last: the one after it, but for the newest. An upsert that was done
            # again after a later one shows.
            found=_FOUND.format(more=", written_by", rows="{rows}"),
            wanted=_WANTED.format(more=", least(position + 1, top - 1) AS written_by"),
            counts_rows=False,
        ),
        Workload(
            "applied",
            _in_micro_batches(_applied),
            create=_EVENTS.format(t="{t}", more=", seq bigint, PRIMARY KEY (stream, position)"),
            # Every third row deletes the one before it, and the row after that brings the deleted one again, as it was:
            # only a delete that is remembered keeps it away.
            wanted=_WANTED.format(more="") + "WHERE position % 3 <> 2 OR position = top - 1",
            counts_rows=False,
            commits_in="worker",
        ),
        Workload(
            "diverted",
            _in_micro_batches(_diverted),
            found=_AND_LETTERS,
            wanted=_WITH_COPIES,
            keys="{stream,payload,is_letter}",
            commits_in="worker",
        ),
        Workload(
            "decoded",
            _decoded,
            found=_OR_LETTERS,
            counts_rows=False,
            commits_in="worker",
            needs_kafka=True,
        ),
        Workload(
            "routed",
            _in_micro_batches(_routed),
            create=_EVENTS.format(t="{t}", more="") + "; CREATE TABLE {t}_odd (LIKE {t} INCLUDING ALL)",
            rows="(SELECT * FROM {t} UNION ALL SELECT * FROM {t}_odd) AS rows",
            commits_in="worker",
        ),
        Workload(
            "two_tables",
            _in_micro_batches(_two_tables),
            create=_EVENTS.format(t="{t}", more="")
            + "; CREATE TABLE {t}_totals (stream int PRIMARY KEY, n bigint, total numeric)",
        ),
        Workload("deduplicated", _in_micro_batches(_deduplicated), commits_in="worker", stateful=True),
        Workload(
            "counted",
            _in_micro_batches(_counted),
            create="CREATE TABLE {t} (stream int, bucket int, n bigint, total bigint, PRIMARY KEY (stream, bucket))",
            found="SELECT stream, bucket, n, total FROM {rows}",
            wanted=_BUCKETED,
            keys="{stream,bucket}",
            top="sum(n)",
            counts_rows=False,
            stateful=True,
        ),
        Workload(
            "real_time",
            # In the least that Spark takes (5 s), a task that fails often has no time left to fail again.
            _in_real_time(real_time="10 seconds"),
            create=_NUMBERED,
            found=_IN_ORDER,
            wanted=_WANTED.format(more=", position - 1 AS before"),
            counts_rows=False,
            commits_in="task",
        ),
        Workload(
            "continuous",
            _in_real_time(continuous="1 second"),
            create=_NUMBERED,
            found=_IN_ORDER,
            wanted=_WANTED.format(more=", position - 1 AS before"),
            counts_rows=False,
            commits_in="task",
        ),
    )
}
IN_MICRO_BATCHES, IN_REAL_TIME = (
    tuple(name for name, workload in WORKLOADS.items() if workload.in_real_time == real) for real in (False, True)
)
