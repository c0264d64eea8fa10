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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from statistics import median

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from embedded_postgres import EmbeddedPostgres
from far_server import FarServer
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from kafka_topic import create_topic
from latency_cases import (
    COLUMNS,
    END_OF_BATCH,
    MICRO_BATCHES,
    PARTITIONS,
    RATES,
    REAL_TIME,
    TRIGGERS,
    WAYS,
    Case,
    Feed,
    name_of,
)
from measure import alternate, beside
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from report import Outcome
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, show_goals, write_results

PARTS = {"micro-batches": MICRO_BATCHES, "real-time": REAL_TIME, "ends": END_OF_BATCH}
# What a position may cost a row that comes while Spark ends a batch.
_MOST_AT_AN_END_MS = 20.0
_PREFIXES = {"real-time": "real-time-", "ends": "real-time-ends-"}
_LONGEST_SECONDS = 120.0
_WARM_UP_SECONDS = 30.0
_ONE_WAY_SECONDS = 0.001


@dataclass(frozen=True)
class Latencies:
    """The latencies of one run of one case, in ms."""

    p50: float
    p99: float
    greatest: float
    rows: int


Found = dict[Case, list[Latencies]]
"""What was found of each case, by round."""


@dataclass(frozen=True)
class LatencyBench:
    """The servers of a run, and how long a case runs: ``warm_up`` seconds that do not count, then ``measured``."""

    spark: SparkSession
    url: str
    far_url: str
    bootstrap_servers: str
    warm_up: float
    measured: float

    def run(self, case: Case, topic: str) -> Latencies:
        """Send rows while a new query runs over a new topic; wait until all of them are there."""
        create_topic(self.bootstrap_servers, topic, PARTITIONS)
        with (
            psycopg.connect(self.url, autocommit=True) as connection,
            tempfile.TemporaryDirectory(prefix="bench-") as root,
        ):
            connection.execute(f"DROP TABLE IF EXISTS {case.table}; CREATE TABLE {case.table} ({COLUMNS})".encode())
            url = self.far_url if case.is_far else self.url
            feed = Feed(self.spark, self.bootstrap_servers, topic, url, case.table, f"{root}/checkpoint")
            query = case.start(feed)
            try:
                with self._sending(topic, case.rows_a_second):
                    time.sleep(self.warm_up)
                    (since,) = _one(connection, "SELECT clock_timestamp()")
                    time.sleep(case.seconds or self.measured)
                _await_rows(connection, case.table, self._sent(topic))
            finally:
                query.stop()
            p50, p99, greatest, rows = _one(
                connection, _PERCENTILES.format(table=case.table), case.batch_seconds or _LONGEST_SECONDS, since
            )
        return Latencies(float(p50), float(p99), float(greatest), int(rows))

    @contextmanager
    def _sending(self, topic: str, rows_a_second: int) -> Iterator[None]:
        """One row after the other, while the block runs."""
        # One request at a time, so that a broker which is busy gets records in larger ones, not in a queue.
        settings = {"linger.ms": 0, "max.in.flight.requests.per.connection": 1, "log_level": 4}
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, **settings})

        def send_until(done: threading.Event) -> None:
            number, begun = 0, time.monotonic()
            while not done.wait(max(0.0, begun + number / rows_a_second - time.monotonic())):
                producer.produce(topic, b"", partition=number % PARTITIONS)
                producer.poll(0)
                number += 1

        try:
            with beside(send_until):
                yield
        finally:
            producer.flush()

    def _sent(self, topic: str) -> int:
        # Not by a job of Spark's: queries in real time have all of its cores.
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "bench"})
        try:
            ends = (consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in range(PARTITIONS))
            return sum(end for _, end in ends)
        finally:
            consumer.close()


_PERCENTILES = """
WITH rows AS (
    SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - sent_at) * 1000 AS ms,
        floor(extract(epoch FROM sent_at - min(sent_at) OVER ()) / %s) AS part
    FROM {table} WHERE sent_at >= %s
)
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), percentile_cont(0.99) WITHIN GROUP (ORDER BY ms),
    (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY greatest)
     FROM (SELECT max(ms) AS greatest FROM rows GROUP BY part) AS parts),
    count(*)
FROM rows
"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a goal is missed, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-latency", description="From Kafka to a visible row.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12, help="measured in each round, after a warm-up")
    parser.add_argument("--part", choices=PARTS, help="one part only")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    settings = {**POSTGRES, "track_commit_timestamp": "on"}
    cases = PARTS[given.part] if given.part else tuple(chain.from_iterable(PARTS.values()))
    found: Found = {case: [] for case in cases}
    try:
        jars = (*spark_connector_jars(), postgres_jdbc_jar())
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=settings) as postgres,
            FarServer(postgres.host, postgres.port, _ONE_WAY_SECONDS) as far,
            spark_session(*jars) as spark,
            psycopg.connect(postgres.uri()) as connection,
        ):
            url = postgres.tcp_uri()
            far_url = make_conninfo(url, port=far.port)
            bench = LatencyBench(spark, url, far_url, broker.bootstrap_servers, 6, given.seconds)

            def measure(case: Case, number: int) -> None:
                what = f"{case.name}, {case.rows_a_second:,} rows a second"
                console.print(f"round {number + 1} of {given.rounds}: {what}", style="dim")
                found[case].append(bench.run(case, f"round-{number}-{cases.index(case)}"))

            if given.part != "micro-batches":
                # The JVM compiles the code while its first queries run.
                for number, case in enumerate(END_OF_BATCH):
                    bench.run(replace(case, seconds=_WARM_UP_SECONDS), f"warm-up-{number}")
            alternate(cases, given.rounds, measure)
            about = about_this_run(settings, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    measured, outcomes = _shown(console, found)
    path = write_results(RESULTS, about, measured, prefix=_PREFIXES.get(given.part, "latency-"))
    console.print(f"All figures are in {path}.", soft_wrap=True)
    return 0 if all(outcome.met for outcome in outcomes) else 1


def _shown(console: Console, found: Found) -> tuple[dict[str, object], list[Outcome]]:
    """Show tables and goals; what the file has of them, and the goals."""
    measured: dict[str, object] = {}
    if batches := {case.name: found[case] for case in MICRO_BATCHES if case in found}:
        console.print(_table(batches))
        as_dicts = {name: [asdict(latencies) for latencies in rounds] for name, rounds in batches.items()}
        measured |= {"rows_a_second": RATES[0], "latency_ms": as_dicts}
    in_real_time = {case: found[case] for case in (*REAL_TIME, *END_OF_BATCH) if case in found}
    outcomes = [outcome for case, rounds in in_real_time.items() for outcome in _judged(case, rounds)]
    if END_OF_BATCH[0] in found:
        outcomes.append(_at_ends(*(found[case] for case in END_OF_BATCH)))
    if in_real_time:
        console.print(_real_time_table(in_real_time))
        show_goals(console, outcomes, judged=True)
        measured["real_time_ms"] = [
            {"name": case.name, "rows_a_second": case.rows_a_second, "rounds": [asdict(one) for one in rounds]}
            for case, rounds in in_real_time.items()
        ]
        measured["goals"] = [asdict(outcome) for outcome in outcomes]
    return measured, outcomes


def _judged(case: Case, rounds: Sequence[Latencies]) -> Iterator[Outcome]:
    for name, most, part in zip(("p50", "p99"), case.goal or (), _parts(rounds), strict=False):
        goal = f"{case.name}, {case.rows_a_second:,} rows a second: {name} of {most:g} ms at most"
        yield Outcome(goal, f"{part:.1f} ms", part <= most)


def _at_ends(exactly_once: Sequence[Latencies], at_least_once: Sequence[Latencies]) -> Outcome:
    more = median(exact.greatest - least.greatest for exact, least in zip(exactly_once, at_least_once, strict=True))
    goal = f"the greatest at the end of a batch, at most {_MOST_AT_AN_END_MS:g} ms more than at least once"
    return Outcome(goal, f"{more:+.1f} ms", more <= _MOST_AT_AN_END_MS)


def _parts(rounds: Sequence[Latencies]) -> tuple[float, float, float]:
    """The medians of the rounds' p50 and p99, and the greatest of all."""
    return median(r.p50 for r in rounds), median(r.p99 for r in rounds), max(r.greatest for r in rounds)


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


def _table(found: Mapping[str, Sequence[Latencies]]) -> Table:
    table = Table("Way in", *(f"trigger {trigger}: p50 / p99 ms" for trigger in TRIGGERS))
    for way in WAYS:
        rounds = (_parts(found[name_of(way, trigger)]) for trigger in TRIGGERS)
        table.add_row(way.name, *(f"{p50:.0f} / {p99:.0f}" for p50, p99, _ in rounds))
    return table


def _real_time_table(found: Found) -> Table:
    table = Table("Query", "rows a second", "p50 ms", "p99 ms", "greatest ms")
    for case, rounds in found.items():
        table.add_row(case.name, f"{case.rows_a_second:,}", *(f"{part:.1f}" for part in _parts(rounds)))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
