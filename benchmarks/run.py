"""
Compare pgonce with sinks that do nothing and with Spark's JDBC writer.

Runs on the driver, with Spark and Postgres on this machine: `make bench`. Invariant: all contenders alternate in one
run on the same servers, and Postgres keeps what it has answered (fsync is on).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from contenders import (
    BATCH_WRITER,
    FOREACH_NOTHING,
    INLINE,
    LARGE_BATCHES,
    PYTHON_NOTHING,
    RECEIVED,
    RECEIVER_UPSERT,
    SAME_BYTES,
    SMALL_BATCHES,
    SPARK_JDBC,
    STAGED,
    TASKS_COPY,
    UPSERT_BY_HAND,
    UPSERTS,
    WIDE_ROWS,
    WRITER_UPSERT,
    Contender,
)
from embedded_postgres import EmbeddedPostgres
from kafka_broker import MissingTool, postgres_jdbc_jar
from loads import FULL, SMALL, Load, Plan
from measure import Bench, MemoryWatch, alternate
from nothing import NothingDataSource
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.sql import SparkSession
from report import Goal, Outcome, judge, judge_memory
from rich.console import Console
from screen import about_this_run, load_as_json, show_goals, show_load, show_memory, write_results

RESULTS = Path(__file__).parent / "results"
MEMORY_LIMIT = 400_000_000

POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    # No checkpoint and no vacuum in the middle of a contender's round.
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


def goals(plan: Plan) -> tuple[Goal, ...]:
    """The goals of this product; format("pgonce") has a receiver for the larger loads."""
    triggers, batches, upserts = plan.triggers.name, plan.batches.name, plan.upserts.name
    return (
        Goal(triggers, BATCH_WRITER.name, FOREACH_NOTHING.name, 1.15),
        Goal(triggers, INLINE.name, PYTHON_NOTHING.name, 1.15),
        Goal(batches, BATCH_WRITER.name, SPARK_JDBC.name, 1 / 3),
        Goal(batches, RECEIVED.name, SPARK_JDBC.name, 1 / 1.8),
        Goal(batches, BATCH_WRITER.name, TASKS_COPY.name, 1 / 1.25),
        Goal(batches, BATCH_WRITER.name, SAME_BYTES.name, 1 / 0.6),
        Goal(upserts, WRITER_UPSERT.name, UPSERT_BY_HAND.name, 1 / 1.5),
        Goal(upserts, RECEIVER_UPSERT.name, UPSERT_BY_HAND.name, 1 / 1.5),
    )


def contests(plan: Plan) -> tuple[tuple[Load, tuple[Contender, ...], tuple[Contender, ...]], ...]:
    """Each load, its contenders, and the contenders that they are compared with."""
    return (
        (plan.triggers, SMALL_BATCHES, (FOREACH_NOTHING, PYTHON_NOTHING)),
        (plan.batches, LARGE_BATCHES, (SPARK_JDBC, TASKS_COPY, SAME_BYTES)),
        (plan.wide, WIDE_ROWS, (SPARK_JDBC,)),
        (plan.upserts, UPSERTS, (UPSERT_BY_HAND,)),
    )


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a full run missed a goal, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench", description="Compare pgonce with other sinks.")
    parser.add_argument("--small", action="store_true", help="a quick look, two or three minutes; judges nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all times")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    plan = SMALL if given.small else FULL
    try:
        with servers() as (bench, server_version):
            about = about_this_run(POSTGRES, server_version)
            measured, outcomes = _measure(bench, plan, console)
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    path = write_results(given.results, about, {**measured, "small": given.small})
    show_goals(console, outcomes, judged=not given.small)
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0 if given.small or all(outcome.met for outcome in outcomes) else 1


def _measure(bench: Bench, plan: Plan, console: Console) -> tuple[dict[str, Any], list[Outcome]]:
    # First, before other contenders leave idle workers behind, and together with the first start of everything.
    ways = (STAGED, RECEIVED, BATCH_WRITER)
    watches = {contender.name: _memory(bench, contender, plan.memory, console) for contender in ways}
    loads = {}
    for load, contenders, baselines in contests(plan):
        loads[load.name] = alternating(bench, load, contenders, console)
        show_load(console, load, loads[load.name], [baseline.name for baseline in baselines])
    for name, watch in watches.items():
        show_memory(console, plan.memory, name, watch.peaks)
    outcomes = [judge(goal, loads[goal.load]) for goal in goals(plan)]
    outcomes += [
        judge_memory(plan.memory.name, name, watch.peak_in_every_batch, MEMORY_LIMIT) for name, watch in watches.items()
    ]
    measured = {
        "loads": [load_as_json(load, loads[load.name]) for load, *_ in contests(plan)],
        "memory": {"rows": plan.memory.rows, "peak_pss": {name: watch.peaks for name, watch in watches.items()}},
        "goals": [asdict(outcome) for outcome in outcomes],
    }
    return measured, outcomes


def _memory(bench: Bench, contender: Contender, load: Load, console: Console) -> MemoryWatch:
    console.print(f"Memory, batches of {load.name}: {contender.name}", style="dim")
    watch = MemoryWatch(in_foreach_batch=contender is BATCH_WRITER)
    with watch.watching():
        bench.run(contender, load)
    return watch


def alternating(
    bench: Bench, load: Load, contenders: Sequence[Contender], console: Console
) -> dict[str, list[list[int]]]:
    """The times (ms) of each contender by round; they take turns."""
    times: dict[str, list[list[int]]] = {contender.name: [] for contender in contenders}

    def measure(contender: Contender, number: int) -> None:
        console.print(f"{load.name}, round {number + 1} of {load.rounds}: {contender.name}", style="dim")
        times[contender.name].append(bench.run(contender, load))

    alternate(contenders, load.rounds, measure)
    return times


@contextmanager
def servers() -> Iterator[tuple[Bench, str]]:
    """Both servers, and Postgres's version."""
    jar = postgres_jdbc_jar()
    with EmbeddedPostgres(settings=POSTGRES) as postgres, spark_session(jar) as spark:
        with psycopg.connect(postgres.uri()) as connection:
            version = connection.info.parameter_status("server_version") or "unknown"
        # The JDBC driver cannot use Unix sockets, so all use TCP.
        jdbc_url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/postgres?user=postgres"
        yield Bench(spark, postgres.tcp_uri(), jdbc_url), version


@contextmanager
def spark_session(*jars: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A driver of its own, in this process unless the settings name a cluster."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", module="pyspark")
    # stop() interrupts a batch, which cuts this server's line, and it would print a traceback.
    AccumulatorTCPServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    builder = (
        SparkSession.builder.appName("pgonce-bench")
        .master(f"local[{os.cpu_count() or 2}]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # After stop(), Spark matches a long traceback by a regular expression that recurses.
        .config("spark.driver.extraJavaOptions", "-Xss8m")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # A query that is stopped within a batch logs errors although nothing is wrong.
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(NothingDataSource)
    try:
        yield session
    finally:
        session.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
