"""
The loads: which rows, how many at a time, and how often.

Runs on the driver; pure except for the frame that it describes. Invariant: the source makes its rows from their number
alone, so it costs every contender the same and never waits for anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_topic import topic_stream
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

# The columns of most loads, as Postgres has them and as Spark does.
COLUMNS = "id bigint, customer integer, amount double precision, status text, note text, at timestamptz"
STRUCT = t.StructType([
    t.StructField("id", t.LongType()),
    t.StructField("customer", t.IntegerType()),
    t.StructField("amount", t.DoubleType()),
    t.StructField("status", t.StringType()),
    t.StructField("note", t.StringType()),
    t.StructField("at", t.TimestampType()),
])  # fmt: skip

# 8 + 4 + 8 + 8 + about 24 + 8 bytes of values; 88 as a row of binary COPY.
_EXPRESSIONS = (
    "value AS id",
    "CAST(value % 100000 AS int) AS customer",
    "value * 0.01D AS amount",
    "CASE WHEN value % 3 = 0 THEN 'accepted' ELSE 'returned' END AS status",
    "concat('order ', CAST(value AS string), ' of the day') AS note",
    "timestamp_micros(1750000000000000 + value) AS at",
)


# Name, type in Postgres, and how it is made from the six columns.
_WIDE = (
    ("id", "bigint", "id"),
    *((f"n{i}", "bigint", f"id * {i}") for i in range(1, 10)),
    *((f"x{i}", "double precision", f"amount / {i}") for i in range(1, 10)),
    *((f"t{i}", "text", f"concat(status, ' {i} ', note)") for i in range(1, 10)),
    *((f"m{i}", "timestamptz", f"at + INTERVAL {i} DAYS") for i in range(1, 5)),
    *((f"d{i}", "date", f"CAST(at + INTERVAL {i} DAYS AS date)") for i in range(1, 3)),
    *((f"a{i}", "bigint[]", f"array(id, customer + {i}, NULL)") for i in range(1, 3)),
    *((f"w{i}", "text[]", f"array(status, '{i}')") for i in range(1, 3)),
    ("j1", "jsonb", "to_json(named_struct('id', id, 'status', status))"),
    ("j2", "jsonb", "to_json(named_struct('note', note, 'amount', amount))"),
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

    def stored_after(self, batches: int) -> int:
        """How many rows a table has after so many batches."""
        return self.rows * batches


@dataclass(frozen=True)
class UpsertLoad(Load):
    """The same, but half of the keys of each batch are those of the batch before."""

    columns: str = COLUMNS.replace("id bigint", "id bigint PRIMARY KEY")

    def frame(self, spark: SparkSession) -> DataFrame:
        """The keys of batch n begin at half of n times its rows."""
        half = self.rows // 2
        return super().frame(spark).withColumn("id", f.expr(f"id - CAST(id / {self.rows} AS bigint) * {half}"))

    def stored_after(self, batches: int) -> int:
        """In each batch but the first, half of the rows are new."""
        return self.rows // 2 * (batches + 1)


@dataclass(frozen=True)
class WideLoad(Load):
    """Forty columns: numbers, texts, times, dates, arrays and JSON."""

    columns: str = ", ".join(f"{name} {kind}" for name, kind, _ in _WIDE)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Structs as JSON texts, which all contenders can write into jsonb."""
        numbered = super().frame(spark)
        return numbered.selectExpr(*(f"{expression} AS {name}" for name, _, expression in _WIDE))


@dataclass(frozen=True)
class KafkaLoad(Load):
    """The same rows from a topic, each with its place in Kafka."""

    topic: str = ""
    bootstrap_servers: str = ""
    columns: str = f'{COLUMNS}, topic text, partition integer, "offset" bigint'

    def frame(self, spark: SparkSession) -> DataFrame:
        """All records that are there, ``rows`` of them in each batch."""
        source = topic_stream(spark, self.bootstrap_servers, self.topic, maxOffsetsPerTrigger=self.rows)
        numbered = source.selectExpr(f"offset * {self.partitions} + partition AS value", "topic", "partition", "offset")
        return numbered.selectExpr(*_EXPRESSIONS, "topic", "partition", "offset")


@dataclass(frozen=True)
class Plan:
    """All that one run measures."""

    triggers: Load
    batches: Load
    wide: WideLoad
    upserts: UpsertLoad
    memory: Load


FULL = Plan(
    triggers=Load("1,000 rows", 1_000, 2, rounds=7, warm_up=5, measured=20),
    # The JVM compiles a query's code in its first batches: the third is a quarter faster than the second, and of 40
    # columns the second takes up to twice the CPU seconds of the third.
    batches=Load("1,000,000 rows", 1_000_000, 4, rounds=5, warm_up=3, measured=2),
    wide=WideLoad("100,000 rows of 40 columns", 100_000, 4, rounds=5, warm_up=3, measured=3),
    upserts=UpsertLoad("1,000,000 upserts, half of them new", 1_000_000, 4, rounds=5, warm_up=1, measured=1),
    memory=Load("5,000,000 rows", 5_000_000, 4, rounds=1, warm_up=0, measured=2),
)
# Two or three minutes, one round of each: too short to judge by. Two times are the least that have a spread.
SMALL = Plan(
    triggers=Load("1,000 rows", 1_000, 2, rounds=1, warm_up=2, measured=5),
    batches=Load("100,000 rows", 100_000, 4, rounds=1, warm_up=1, measured=2),
    wide=WideLoad("20,000 rows of 40 columns", 20_000, 4, rounds=1, warm_up=1, measured=2),
    upserts=UpsertLoad("100,000 upserts, half of them new", 100_000, 4, rounds=1, warm_up=1, measured=2),
    memory=Load("200,000 rows", 200_000, 4, rounds=1, warm_up=0, measured=2),
)
