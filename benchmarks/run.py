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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from contenders import (
    BATCH_WRITER,
    COPY_BY_HAND,
    FOREACH_NOTHING,
    LARGE_BATCHES,
    PGONCE,
    PGONCE_UPSERT,
    PYTHON_NOTHING,
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
from cpu_seconds import CpuWatch, Used
from embedded_postgres import EmbeddedPostgres
from kafka_broker import MissingTool, postgres_jdbc_jar
from loads import FULL, SMALL, Load, Plan
from measure import Bench, MemoryWatch, by_round
from nothing import NothingDataSource
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.sql import SparkSession
from report import Goal, Outcome, judge, judge_memory
from rich.console import Console
from screen import (
    about_this_run,
    load_as_json,
    show_cpu,
    show_goals,
    show_load,
    show_memory,
    show_wal,
    write_results,
)

from pgonce.sink.data_source.receiver.kept_rows import is_in_memory

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
    """The goals of this product, with the defaults of both ways in."""
    triggers, batches, wide, upserts = plan.triggers.name, plan.batches.name, plan.wide.name, plan.upserts.name
    return (
        Goal(triggers, PGONCE.name, PYTHON_NOTHING.name, 0.85),
        Goal(triggers, BATCH_WRITER.name, FOREACH_NOTHING.name, 1.10),
        Goal(triggers, BATCH_WRITER.name, COPY_BY_HAND.name, 1.0),
        Goal(batches, PGONCE.name, SPARK_JDBC.name, 1 / 1.8),
        Goal(batches, BATCH_WRITER.name, SPARK_JDBC.name, 1 / 2.2),
        Goal(batches, BATCH_WRITER.name, TASKS_COPY.name, 1 / 1.25),
        Goal(batches, BATCH_WRITER.name, SAME_BYTES.name, 1 / 0.6),
        Goal(wide, PGONCE.name, SPARK_JDBC.name, 1 / 1.5),
        Goal(upserts, WRITER_UPSERT.name, UPSERT_BY_HAND.name, 1 / 1.7),
        Goal(upserts, PGONCE_UPSERT.name, UPSERT_BY_HAND.name, 1 / 1.5),
    )


def contests(plan: Plan) -> tuple[tuple[Load, tuple[Contender, ...], tuple[Contender, ...]], ...]:
    """Each load, its contenders, and the contenders that they are compared with."""
    return (
        (plan.triggers, SMALL_BATCHES, (FOREACH_NOTHING, PYTHON_NOTHING, COPY_BY_HAND)),
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
    if not given.small and is_in_memory(Path(tempfile.gettempdir()).stat().st_dev):
        console.print(
            "The temporary directory is in memory, which the server of a full run would fill (17 GB in one). Set "
            "TMPDIR to a directory on a disk.",
            style="red",
        )
        return 2
    try:
        with servers() as (bench, postgres):
            about = about_this_run(POSTGRES, server_version(postgres))
            measured, outcomes = _measure(bench, CpuWatch(postgres.pid), plan, console)
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    path = write_results(given.results, about, {**measured, "small": given.small})
    show_goals(console, outcomes, judged=not given.small)
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0 if given.small or all(outcome.met for outcome in outcomes) else 1


def _measure(bench: Bench, cpu: CpuWatch, plan: Plan, console: Console) -> tuple[dict[str, Any], list[Outcome]]:
    # First, before other contenders leave idle workers behind, and together with the first start of everything.
    ways = (PGONCE, STAGED, BATCH_WRITER)
    watches = {contender.name: _memory(bench, contender, plan.memory, console) for contender in ways}
    loads, measured_loads = {}, []
    for load, contenders, baselines in contests(plan):
        run = partial(_with_costs, bench, cpu, load=load)
        found = by_round(contenders, load, console, run)
        times, cpu_seconds, wal = (
            {name: [costs[part] for costs in rounds] for name, rounds in found.items()} for part in range(3)
        )
        loads[load.name] = times
        measured_loads.append({**load_as_json(load, times), "cpu_seconds": cpu_seconds, "wal_per_row": wal})
        show_load(console, load, times, [baseline.name for baseline in baselines])
        show_cpu(console, load, cpu_seconds)
        show_wal(console, wal)
    for name, watch in watches.items():
        show_memory(console, plan.memory, name, watch.peaks)
    outcomes = [judge(goal, loads[goal.load]) for goal in goals(plan)]
    outcomes += [
        judge_memory(plan.memory.name, name, watch.peak_in_every_batch, MEMORY_LIMIT) for name, watch in watches.items()
    ]
    measured = {
        "loads": measured_loads,
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


class _Costs(NamedTuple):
    """What a contender took in one round: each trigger in ms, CPU seconds for all, and bytes of WAL a row."""

    trigger_ms: list[int]
    cpu_seconds: Used
    wal_per_row: float


def _with_costs(bench: Bench, cpu: CpuWatch, contender: Contender, load: Load) -> _Costs:
    with cpu.watching(os.getpid()):
        measured = bench.round(contender, load)
    times = [trigger.ms for trigger in measured.triggers]
    return _Costs(times, cpu.used(measured.triggers), measured.wal_per_row)


@contextmanager
def servers() -> Iterator[tuple[Bench, EmbeddedPostgres]]:
    """A driver with both servers, and Postgres."""
    jar = postgres_jdbc_jar()
    with EmbeddedPostgres(settings=POSTGRES) as postgres, spark_session(jar) as spark:
        # The JDBC driver cannot use Unix sockets, so all use TCP.
        jdbc_url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/postgres?user=postgres"
        yield Bench(spark, postgres.tcp_uri(), jdbc_url), postgres


def server_version(postgres: EmbeddedPostgres) -> str:
    """As the server says it."""
    with psycopg.connect(postgres.uri()) as connection:
        return connection.info.parameter_status("server_version") or "unknown"


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
