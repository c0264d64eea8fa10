"""
The changes in the topic, and the rows of the table after they are applied.

Runs on the driver. Invariant: every contender reads the same envelopes and tombstones of Debezium, and its table is
right only if it is equal to the source's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import psycopg
from change_feed import COLUMNS, ChangeFeed, Record, Row
from change_feed_debezium import records_of
from confluent_kafka import Producer
from kafka_topic import create_topic, topic_stream
from loads import Load
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

TOPIC = "shop.public.orders"
SOURCE_TABLE = "rows_of_the_source"
_ROW = "STRUCT<id BIGINT, customer STRING, amount DECIMAL(12, 2), note STRING, updated_at TIMESTAMP>"
_ENVELOPE = f"before {_ROW}, after {_ROW}, source STRUCT<ts_ms BIGINT, lsn BIGINT>, op STRING, ts_ms BIGINT"
_MARKS_OF_A_BATCH = 50


@dataclass(frozen=True)
class Marks:
    """
    Rows that are written once, and whose commits show how far a sink has come.

    ``records`` has, for the key of each, how many records of its partition there are from the mark before up to it.
    ``last`` are the keys that end the partitions.
    """

    records: dict[int, int] = field(default_factory=dict)
    last: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChangeLoad(Load):
    """Envelopes and tombstones of a feed; ``rows`` is how many records a batch has, of both kinds."""

    bootstrap_servers: str = ""
    columns: str = COLUMNS
    keys: int = 0
    deletes: float = 0.1

    @property
    def feed(self) -> ChangeFeed:
        """Its snapshot belongs to the warm-up; there is a batch more than is measured, which no time includes."""
        return ChangeFeed(
            seed=15,
            keys=self.keys,
            events=self.stored_after(self.warm_up + self.measured + 1) - self.keys // 2,
            deletes=self.deletes,
            key_changes=0.01,
            again=0.05,
            large_notes=0,
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        """The envelopes, without tombstones."""
        source = topic_stream(spark, self.bootstrap_servers, TOPIC, maxOffsetsPerTrigger=self.rows)
        envelope = f.from_json(f.col("value").cast("string"), _ENVELOPE)
        return source.where("value IS NOT NULL").select(envelope.alias("change")).select("change.*")

    def fill(self) -> Marks:
        """Send all records, and marks between them; each key has its partition."""
        create_topic(self.bootstrap_servers, TOPIC, self.partitions)
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
        )
        every = max(1, self.rows // self.partitions // _MARKS_OF_A_BATCH)
        records: dict[int, int] = {}
        since: Counter[int] = Counter()

        def send(record: Record, partition: int) -> None:
            producer.produce(TOPIC, record.value, record.key, partition=partition)
            producer.poll(0)
            since[partition] += 1

        def mark(partition: int) -> int:
            key = -1 - len(records)
            send(_mark(key), partition)
            records[key] = since.pop(partition)
            return key

        for change in self.feed.history():
            partition = change.key % self.partitions
            # As texts, Debezium's sink could not unnest them into a numeric column.
            for record in records_of([change], "double"):
                send(record, partition)
            if since[partition] >= every:
                mark(partition)
        last = tuple(mark(partition) for partition in range(self.partitions))
        producer.flush()
        return Marks(records, last)


def store_final_state(load: ChangeLoad, connection: psycopg.Connection) -> None:
    """What a right table must be equal to, marks apart."""
    connection.execute(f"CREATE TABLE {SOURCE_TABLE} ({load.columns})")
    with connection.cursor() as cursor, cursor.copy(f"COPY {SOURCE_TABLE} FROM STDIN") as copy:
        for row in load.feed.final_state().values():
            copy.write_row(row)


def check_final_state(connection: psycopg.Connection, table: str) -> None:
    """:raises RuntimeError: if the table is not what the source was in the end."""
    names = sql.SQL(", ").join(map(sql.Identifier, Row._fields))
    ours = sql.SQL("SELECT {} FROM {} WHERE id > 0").format(names, sql.Identifier(table))
    source = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(SOURCE_TABLE))
    for what, one, other in (("too many or wrong", ours, source), ("missing or wrong", source, ours)):
        found = connection.execute(sql.SQL("SELECT count(*) FROM ({} EXCEPT {}) AS d").format(one, other)).fetchone()
        if found != (0,):
            raise RuntimeError(f"{table} is not equal to its source: {found and found[0]} rows are {what}.")


def _mark(key: int) -> Record:
    some = next(ChangeFeed(seed=0, keys=2).history())
    row = Row(key, "mark", None, None, some.committed_at)
    return next(records_of([some._replace(op="c", key=key, after=row, snapshot="false")]))
