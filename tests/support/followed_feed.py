"""
A query that follows the change feed of another table, and what the copy and the ledger must hold in the end.

Runs in: pytest's own driver, and in the one that is killed. Invariant: each way's options are all that a user has to
give for a feed whose events come again and out of order.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
from change_feed import COLUMNS, UNAVAILABLE, ChangeFeed, Row
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.audit import query_id
from support.ways_in import DataSource, InForeachBatch, Sink

from pgonce import BatchTransaction, PostgresBatchWriter, transactional_batch

FIELDS = "id: BIGINT, customer: STRING, amount: DECIMAL(12, 2), note: STRING, updated_at: TIMESTAMP"
_ENVELOPE = f"before STRUCT<{FIELDS}>, after STRUCT<{FIELDS}>, op STRING, source STRUCT<lsn: BIGINT>"
DEBEZIUM = {
    "change_feed": "debezium",
    "order_by": "source.lsn",
    "only_newer": True,
    "keep_where": UNAVAILABLE,
}


def envelopes(session: SparkSession, servers: str, topic: str, records: int) -> DataFrame:
    """Debezium's events of a topic, about so many ``records`` in a batch; tombstones are left out."""
    stream = session.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(records))
    values = stream.load().where("value IS NOT NULL").select(f.col("value").cast("string"))
    return values.select(f.from_json("value", _ENVELOPE).alias("event")).select("event.*")


def _writer(sink: Sink) -> PostgresBatchWriter:
    return PostgresBatchWriter(sink.url, table=sink.table, mode="apply", **sink.settings)


def _function(sink: Sink):
    @transactional_batch(sink.url, name=sink.table)
    def write(batch: DataFrame, tx: BatchTransaction) -> None:
        tx.apply(batch, sink.table, **sink.settings)

    return write


_WAYS = {
    "inline": DataSource("inline"),
    "staged": DataSource("staged", inline_bytes=0, receiver="off"),
    "received": DataSource("received", inline_bytes=0, receiver="auto"),
    "writer": InForeachBatch("writer", _writer, lambda sink, _: _writer(sink)),
    "function": InForeachBatch("function", _function, lambda sink, _: _function(sink)),
}
WAYS = tuple(_WAYS)


def followed(way: str, changes: DataFrame, url: str, directory: Path, **settings: object) -> DataStreamWriter:
    """Apply changes to the way's own table, as ``settings`` say."""
    if isinstance(_WAYS[way], DataSource):
        settings["mode"] = "apply"
    return _WAYS[way].append(changes, Sink(url, f"orders_{way}", checkpoint_of(way, directory), settings))


def checkpoint_of(way: str, directory: Path) -> str:
    """Where the way's query has its checkpoint."""
    return str(directory / "checkpoints" / way)


def create_copies(url: str, order_column: str, ways: tuple[str, ...]) -> None:
    """A table for each way: the source's columns, and the one that later changes are compared by."""
    with psycopg.connect(url) as connection:
        for way in ways:
            columns = sql.SQL(f"{COLUMNS}, {order_column} bigint")
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(f"orders_{way}"), columns))


def wrong_copy(observer: psycopg.Connection, way: str, feed: ChangeFeed) -> list[str]:
    """Compare the way's table with the source's, row by row."""
    columns = sql.SQL(", ").join(map(sql.Identifier, Row._fields))
    found = observer.execute(sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(f"orders_{way}"))).fetchall()
    there, wanted = {row[0]: Row(*row) for row in found}, feed.final_state()
    return [
        *([f"{len(found)} rows of {len(there)} keys"] if len(found) != len(there) else []),
        *(f"lost: {wanted[key]}" for key in sorted(wanted.keys() - there.keys())),
        *(f"not of the source: {there[key]}" for key in sorted(there.keys() - wanted.keys())),
        *(
            f"{there[key]}, which is {wanted[key]}"
            for key in sorted(there.keys() & wanted.keys())
            if there[key] != wanted[key]
        ),
    ]


def wrong_counts(observer: psycopg.Connection, way: str, directory: Path, changes: int) -> list[str]:
    """Compare the ledger's rows with the changes that were sent, and with what it says became of them."""
    batches = observer.execute(
        "SELECT batch_id, rows, counts FROM pgonce.batches JOIN pgonce.writers USING (writer_id) "
        "WHERE query_id = %s ORDER BY batch_id",
        [query_id(checkpoint_of(way, directory))],
    ).fetchall()
    rows = sum(rows for _, rows, _ in batches)
    wrong = [] if rows == changes else [f"the ledger counts {rows} rows, and {changes} were sent"]
    for batch_id, rows, counts in batches:
        if sum((counts or {}).values()) != rows:
            wrong.append(f"batch {batch_id} has {rows} rows, of which became {counts}")
    return wrong
