"""
The records in the topic, and a consumer without Spark that writes them.

Runs on the driver. Invariant: every contender parses the same JSON into the same six columns.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pyarrow.json as pj
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_topic import create_topic, topic_stream
from loads import COLUMNS, STRUCT, Load
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from stretches import Stretch

from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, CopyEncoder

TOPIC = "orders"
_ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("amount", pa.float64()),
        ("status", pa.string()),
        ("note", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_POLLED_AT_ONCE = 50_000


@dataclass(frozen=True)
class JsonLoad(Load):
    """JSON records of a topic, with a fixed number of rows in each batch."""

    bootstrap_servers: str = ""
    columns: str = COLUMNS
    decodes: bool = False
    """Whether the sink decodes the records, and not ``from_json``."""
    nests: bool = False
    """Whether a record has an object more, which only a sink that decodes reads."""

    def frame(self, spark: SparkSession) -> DataFrame:
        """All records that are there."""
        source = topic_stream(spark, self.bootstrap_servers, TOPIC, maxOffsetsPerTrigger=self.rows)
        if self.decodes:
            return source
        return source.select(f.from_json(f.col("value").cast("string"), STRUCT).alias("row")).select("row.*")

    @property
    def records(self) -> int:
        """How many the topic holds: a batch more than is measured, so that no time includes the topic's end."""
        return self.stored_after(self.warm_up + self.measured + 1)

    def fill(self) -> None:
        """Send all records, the same number to each partition."""
        create_topic(self.bootstrap_servers, TOPIC, self.partitions)
        servers = {"bootstrap.servers": self.bootstrap_servers}
        producer = Producer({**servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
        for number in range(self.records):
            producer.produce(TOPIC, self.record(number), partition=number % self.partitions)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()

    def record(self, number: int) -> bytes:
        """The value of a record."""
        at = f"2025-06-15T15:{number // 60 % 60:02}:{number % 60:02}Z"
        record = (
            f'{{"id":{number},"customer":{number % 100_000},"amount":{number / 100},'
            f'"status":"accepted","note":"order {number} of the day","at":"{at}"'
        )
        nested = f',"info":{{"channel":"web","score":{number % 100},"tags":["a","b"]}}' if self.nests else ""
        return f"{record}{nested}}}".encode()


def consume(load: JsonLoad, url: str, table: str) -> list[Stretch]:
    """
    When a hand-written consumer wrote each measured batch: pyarrow's JSON, one COPY, and the offsets with it.

    It is exactly-once as long as nothing but a crash ever happens to its offsets.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": load.bootstrap_servers,
            "group.id": f"by-hand-{table}",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "queued.max.messages.kbytes": 131_072,
            # With the default of a second, a partition whose queue was full stands still, at a third of the speed.
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(load.partitions)])
    batches = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS by_hand (p integer PRIMARY KEY, next bigint)")
        for _ in range(load.warm_up + load.measured):
            began = time.time()
            with connection.transaction():
                _one_batch(consumer, connection, table, load.rows)
            batches.append(Stretch(began, time.time()))
    consumer.close()
    return batches[load.warm_up :]


def _one_batch(consumer: Consumer, connection: psycopg.Connection, table: str, rows: int) -> None:
    encoder = CopyEncoder(STRUCT)
    nexts: dict[int, int] = {}
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy:
        copy.write(HEADER)
        while encoder.rows < rows:
            records = consumer.consume(min(_POLLED_AT_ONCE, rows - encoder.rows), timeout=10)
            if not records:
                raise RuntimeError(f"{TOPIC} has no more records after {encoder.rows} of a batch.")
            lines = io.BytesIO(b"\n".join(record.value() for record in records))
            parsed = pj.read_json(lines, parse_options=pj.ParseOptions(explicit_schema=_ARROW))
            for batch in parsed.to_batches():
                copy.write(encoder.encode(batch))
            nexts |= {record.partition(): record.offset() + 1 for record in records}
        copy.write(TRAILER)
    connection.cursor().executemany(
        "INSERT INTO by_hand VALUES (%s, %s) ON CONFLICT (p) DO UPDATE SET next = EXCLUDED.next", [*nexts.items()]
    )
