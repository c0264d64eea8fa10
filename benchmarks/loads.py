"""
Which rows, how many at a time, how often?

Runs on the driver; pure but for the frame that it describes. Invariant: the source makes its rows from their number
alone, so it costs every contender the same and never waits for anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id bigint, customer integer, amount double precision, status text, note text, at timestamptz"

# 8 + 4 + 8 + 8 + about 24 + 8 bytes of values; 88 as a row of binary COPY.
_EXPRESSIONS = (
    "value AS id",
    "CAST(value % 100000 AS int) AS customer",
    "value * 0.01D AS amount",
    "CASE WHEN value % 3 = 0 THEN 'accepted' ELSE 'returned' END AS status",
    "concat('order ', CAST(value AS string), ' of the day') AS note",
    "timestamp_micros(1750000000000000 + value) AS at",
)


@dataclass(frozen=True)
class Load:
    """
    Batches of ``rows`` rows in ``partitions`` partitions.

    In each of ``rounds`` a query drops its first ``warm_up`` batches (workers start, connections open) and measures
    the next ``measured`` ones.
    """

    name: str
    rows: int
    partitions: int
    rounds: int
    warm_up: int
    measured: int
    columns: str = COLUMNS

    def frame(self, spark: SparkSession) -> DataFrame:
        """The stream, which has a next batch whenever Spark asks."""
        source = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", self.rows)
            .option("numPartitions", self.partitions)
            .load()
        )
        return source.selectExpr(*_EXPRESSIONS)


@dataclass(frozen=True)
class KafkaLoad(Load):
    """The same from a topic, with the place in Kafka that each row comes from."""

    topic: str = ""
    bootstrap_servers: str = ""
    columns: str = f'{COLUMNS}, topic text, partition integer, "offset" bigint'

    def frame(self, spark: SparkSession) -> DataFrame:
        """All records that are there, so many rows a batch."""
        source = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.rows)
            .load()
        )
        numbered = source.selectExpr(f"offset * {self.partitions} + partition AS value", "topic", "partition", "offset")
        return numbered.selectExpr(*_EXPRESSIONS, "topic", "partition", "offset")


@dataclass(frozen=True)
class Plan:
    """All that one run measures."""

    triggers: Load
    batches: Load
    memory: Load


FULL = Plan(
    triggers=Load("1,000 rows", 1_000, 2, rounds=7, warm_up=5, measured=20),
    batches=Load("1,000,000 rows", 1_000_000, 4, rounds=5, warm_up=1, measured=2),
    memory=Load("5,000,000 rows", 5_000_000, 4, rounds=1, warm_up=0, measured=2),
)
# About two minutes, too short to judge by.
SMALL = Plan(
    triggers=Load("1,000 rows", 1_000, 2, rounds=3, warm_up=4, measured=10),
    batches=Load("1,000,000 rows", 1_000_000, 4, rounds=2, warm_up=1, measured=1),
    memory=Load("1,000,000 rows", 1_000_000, 4, rounds=1, warm_up=0, measured=2),
)
