"""
Measure how many rows a second a query writes that finds a full topic: `make bench-drain`.

Runs on the driver, with Spark, Kafka and Postgres on this machine. Invariant: all read the same narrow records of three
partitions and write the same rows, and a time is from one commit to another, so that no start of a query counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg
from async_ways import SOURCE, WRITER
from commit_times import write_with
from cpu_seconds import CpuWatch, Used
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from kafka_json import TOPIC, JsonLoad
from latency_cases import COLUMNS, Case, Feed, in_real_time, micro_batches
from measure import by_round, empty_table
from pyspark.sql import SparkSession
from report import Outcome, figures
from rich.console import Console
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, load_as_json, show_cpu, show_goals, show_load, write_results
from typing_extensions import Self

PARTITIONS = 3
_ROWS = 500_000
_GOAL = 300_000
SETTINGS = {**POSTGRES, "track_commit_timestamp": "on"}

REAL_TIME = in_real_time("real time, batches of a minute", real_time="1 minute")
CASES = (
    *(micro_batches(way, "0 seconds", maxOffsetsPerTrigger=_ROWS) for way in (WRITER, SOURCE)),
    REAL_TIME,
    in_real_time("continuous, epochs of a second", continuous="1 second"),
)


@dataclass(frozen=True)
class NarrowLoad(JsonLoad):
    """Records without a value: their rows are their position and time."""

    columns: str = COLUMNS

    def record(self, number: int) -> bytes:
        """Nothing, whatever its number is."""
        del number
        return b""


@dataclass
class Running:
    """A query of this process, as a sink that runs while its context is open."""

    case: Case
    feed: Feed
    pid: int = field(default_factory=os.getpid)

    def __enter__(self) -> Self:
        self._query = self.case.start(self.feed)
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def check(self) -> None:
        """:raises Exception: why the query has ended, if it has."""
        if error := self._query.exception():
            raise error


@dataclass(frozen=True)
class DrainBench:
    """The servers of a run, and what measures them."""

    spark: SparkSession
    url: str
    cpu: CpuWatch

    def run(self, case: Case, load: NarrowLoad) -> tuple[list[int], Used]:
        """For one case in one round: each measured part of the topic in ms, and the CPU seconds of all of them."""
        with empty_table(self.url, case.table, load.columns), tempfile.TemporaryDirectory(prefix="bench-") as root:
            feed = Feed(self.spark, load.bootstrap_servers, TOPIC, self.url, case.table, f"{root}/checkpoint")
            return write_with(Running(case, feed), self.cpu, self.url, case.table, load)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if the goal is missed, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-drain", description="Rows a second from a full topic.")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    try:
        jars = (*spark_connector_jars(), postgres_jdbc_jar())
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=SETTINGS) as postgres,
            # A query in real time holds a slot for each partition; the cores are the machine's all the same.
            spark_session(*jars, settings={"spark.master": f"local[{PARTITIONS}]"}) as spark,
            psycopg.connect(postgres.uri()) as connection,
        ):
            load = NarrowLoad(
                f"{_ROWS:,} narrow rows", _ROWS, PARTITIONS, given.rounds, warm_up=1, measured=3,
                bootstrap_servers=broker.bootstrap_servers,
            )  # fmt: skip
            console.print("Filling the topic", style="dim")
            load.fill()
            bench = DrainBench(spark, postgres.tcp_uri(), CpuWatch(postgres.pid, bystanders=[broker.pid]))
            found = by_round(CASES, load, console, lambda case: bench.run(case, load))
            about = about_this_run(SETTINGS, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    times = {name: [ms for ms, _ in rounds] for name, rounds in found.items()}
    used = {name: [seconds for _, seconds in rounds] for name, rounds in found.items()}
    show_load(console, load, times, [CASES[0].name])
    show_cpu(console, load, used)
    outcome = _judged(load, times)
    show_goals(console, [outcome], judged=True)
    path = write_results(
        RESULTS, about, {"loads": [{**load_as_json(load, times), "cpu_seconds": used}]}, prefix="drain-"
    )
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0 if outcome.met else 1


def _judged(load: NarrowLoad, times: dict[str, list[list[int]]]) -> Outcome:
    rate = load.rows / figures(times[REAL_TIME.name]).median * 1000
    goal = f"{REAL_TIME.name}: at least {_GOAL:,} rows a second"
    return Outcome(goal, f"{rate:,.0f}", rate >= _GOAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
