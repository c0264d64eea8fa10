"""
The queries whose latency is compared: micro-batches, and those in real-time and continuous mode.

Runs on the driver. Invariant: each is exactly-once, but for the one that says otherwise; it reads its topic from the
beginning, and writes the same rows into a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from async_ways import SOURCE, WRITER, asynchronous
from at_least_once import at_least_once
from contenders import Contender, Place
from kafka_topic import topic_stream
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgonce import start_real_time

# Queries in real time need a core for each.
PARTITIONS = 2
COLUMNS = 'id bigint, sent_at timestamptz, topic text, "partition" integer, "offset" bigint'
RATES = (100, 2_000)
TRIGGERS = ("0 seconds", "100 milliseconds", "1 second")
WAYS = (WRITER, asynchronous(WRITER, 0), asynchronous(WRITER, 1000), SOURCE)


@dataclass(frozen=True)
class Feed:
    """Where a query reads and writes."""

    spark: SparkSession
    bootstrap_servers: str
    topic: str
    url: str
    table: str
    checkpoint: str


@dataclass(frozen=True)
class Case:
    """
    One query that is measured.

    ``seconds`` is how long, if the command does not say it; ``goal`` is the most ms that its p50 and its p99 may be;
    ``is_far`` puts a millisecond each way between it and Postgres. The greatest latency is asked in each part of
    ``batch_seconds``, and the median of these counts; of all rows, if there are no such parts.
    """

    name: str
    table: str
    start: Callable[[Feed], StreamingQuery]
    rows_a_second: int = RATES[0]
    seconds: float | None = None
    goal: tuple[float, ...] | None = None
    is_far: bool = False
    batch_seconds: float | None = None


def rows(records: DataFrame) -> DataFrame:
    """The rows of the table, with the producer's time."""
    return records.selectExpr(
        f"offset * {PARTITIONS} + partition AS id", "timestamp AS sent_at", "topic", "partition", "offset"
    )


def name_of(way: Contender, trigger: str) -> str:
    """What a query in micro-batches is called."""
    return f"{way.name}, trigger {trigger}"


def micro_batches(way: Contender, trigger: str, rows_a_second: int = RATES[0], **source: int) -> Case:
    """A query in micro-batches, with these options of its source."""

    def start(feed: Feed) -> StreamingQuery:
        stream = rows(topic_stream(feed.spark, feed.bootstrap_servers, feed.topic, **source)).writeStream
        stream = way.write(stream.option("checkpointLocation", feed.checkpoint), Place(feed.url, "", feed.table))
        return stream.trigger(processingTime=trigger).start()

    return Case(name_of(way, trigger), str(way.table), start, rows_a_second)


def in_real_time(
    name: str,
    rows_a_second: int = RATES[0],
    seconds: float | None = None,
    goal: tuple[float, ...] | None = None,
    *,
    is_far: bool = False,
    batch_seconds: float | None = None,
    is_at_least_once: bool = False,
    **trigger: Any,
) -> Case:
    """A query in real-time or continuous mode, by the arguments of its trigger."""

    def start(feed: Feed) -> StreamingQuery:
        source = {"kafka.bootstrap.servers": feed.bootstrap_servers, "subscribe": feed.topic}
        with at_least_once() if is_at_least_once else nullcontext():
            return start_real_time(
                feed.spark,
                kafka={**source, "startingOffsets": "earliest"},
                rows=rows,
                url=feed.url,
                table=feed.table,
                checkpoint_location=feed.checkpoint,
                # Each round is another query, which writes the same table again.
                independent=True,
                **trigger,
            )

    return Case(name, "in_real_time", start, rows_a_second, seconds, goal, is_far, batch_seconds)


MICRO_BATCHES = tuple(micro_batches(way, trigger) for way in WAYS for trigger in TRIGGERS)

# A minute has one end of a batch, at which rows wait for the next batch's tasks.
_A_BATCH_SECONDS = 60.0
REAL_TIME = tuple(
    case
    for rate in RATES
    for case in (
        micro_batches(asynchronous(WRITER, 1000), TRIGGERS[0], rate),
        in_real_time("real time, batches of a minute", rate, _A_BATCH_SECONDS, (5, 20), real_time="1 minute"),
        in_real_time("real time, Postgres 2 ms away", rate, None, (10,), is_far=True, real_time="1 minute"),
        in_real_time("continuous, epochs of a second", rate, None, (15, 30), continuous="1 second"),
    )
)

# Rows that come while Spark ends a batch wait for it, whatever writes them. In the shortest batches that Spark allows
# there are enough ends to compare what the same writer adds with positions and without.
END_OF_BATCH = tuple(
    in_real_time(name, RATES[1], 60.0, batch_seconds=5.0, is_at_least_once=is_at_least_once, real_time="5 seconds")
    for name, is_at_least_once in (("batches of 5 s, exactly once", False), ("the same writer, at least once", True))
)
