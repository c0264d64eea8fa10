"""
Measure how many rows a second a real cluster writes with 1, 2 and 4 executors of one core: `make bench-cluster`.

Runs on the driver; master, workers, executors and Postgres are also on this machine. Invariant: two runs of one way in
differ in the number of executors alone, and take turns. On a machine with fewer cores than executors, these
share the cores with Postgres and with the driver: the figures then say what a cluster costs, not how far it carries.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
from contenders import BATCH_WRITER, DECODING, INLINE, PGONCE, STAGED, Contender
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, spark_connector_jars
from kafka_json import JsonLoad
from loads import Load
from maven import MissingTool
from measure import Bench, alternate
from report import Goal, figures, judge
from rich import box
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, load_as_json, show_goals, write_results
from standalone_cluster import StandaloneCluster

EXECUTORS = (1, 2, 4)
_WAYS: tuple[Contender, ...] = (PGONCE, INLINE, STAGED, BATCH_WRITER)
# A worker each, as on hosts of their own.
_HOSTS = tuple(f"127.0.0.{number}" for number in range(2, 2 + max(EXECUTORS)))
_START_SECONDS = 120.0
# The executors of the goal.
_JUDGED = 2


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 if a tool is missing; a person judges the figures."""
    parser = argparse.ArgumentParser(prog="make bench-cluster", description="Rows a second, by executors.")
    parser.add_argument("--small", action="store_true", help="a quick look")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decoding", action="store_true", help="records of a topic, which the sink decodes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all times")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    rows, rounds = (100_000, 1) if given.small else (1_000_000, given.rounds)
    load, jars = Load(f"{rows:,} rows", rows, 4, rounds, warm_up=2, measured=3), tuple[Path, ...]()
    ways = DECODING if given.decoding else _WAYS
    times: dict[str, list[list[int]]] = {_name(way, count): [] for way in ways for count in EXECUTORS}
    try:
        with EmbeddedPostgres(settings=POSTGRES) as postgres, StandaloneCluster() as cluster, ExitStack() as stack:
            if given.decoding:
                servers, jars = stack.enter_context(KafkaBroker()).bootstrap_servers, tuple(spark_connector_jars())
                load = JsonLoad(
                    f"{rows:,} JSON records", rows, 4, rounds, 2, 3, bootstrap_servers=servers, decodes=True
                )
                load.fill()
            cluster.add_workers(*_HOSTS)
            with psycopg.connect(postgres.uri()) as connection:
                version = connection.info.parameter_status("server_version") or "unknown"
            about = about_this_run(POSTGRES, version)

            def measure(count: int, number: int) -> None:
                with spark_session(*jars, settings=_settings(cluster, count)) as spark:
                    _wait_for_executors(cluster, count)
                    bench = Bench(spark, postgres.tcp_uri(), "")
                    for way in ways:
                        console.print(f"round {number + 1} of {rounds}: {_name(way, count)}")
                        times[_name(way, count)].append(bench.run(way, load))

            alternate(EXECUTORS, rounds, measure)
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    console.print(_table(load, times, ways))
    if not given.decoding:
        of_two = {way.name: times[_name(way, _JUDGED)] for way in (PGONCE, STAGED)}
        goal = Goal(f"{load.name}, {_JUDGED} executors", PGONCE.name, STAGED.name, 1 / 1.5)
        show_goals(console, [judge(goal, of_two)], judged=not given.small)
    path = write_results(given.results, about, {"loads": [load_as_json(load, times)]}, prefix="cluster-")
    console.print(f"{os.cpu_count()} cores for all of it. All times are in {path}.", soft_wrap=True)
    return 0


def _settings(cluster: StandaloneCluster, executors: int) -> dict[str, str]:
    return {
        "spark.master": cluster.master,
        "spark.cores.max": str(executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": "800m",
        # Or one of the executors may get all tasks.
        "spark.locality.wait": "0s",
    }


def _wait_for_executors(cluster: StandaloneCluster, count: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while sum(len(worker.executors()) for worker in cluster.workers) != count:
        if time.monotonic() > until:
            raise TimeoutError(f"There are not {count} executors after {_START_SECONDS:.0f} s.")
        time.sleep(0.1)


def _name(way: Contender, executors: int) -> str:
    return f"{way.name}, {executors} executor{'s' if executors > 1 else ''}"


def _table(load: Load, times: dict[str, list[list[int]]], ways: Sequence[Contender]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"Rows a second, batches of {load.name}", title_justify="left")
    table.add_column("sink")
    for count in EXECUTORS:
        table.add_column(f"{count} x 1 core", justify="right")
    for way in ways:
        medians = (figures(times[_name(way, count)]).median for count in EXECUTORS)
        table.add_row(way.name, *(f"{load.rows / found * 1000:,.0f}" for found in medians))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
