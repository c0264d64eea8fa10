"""
Measure how long a new driver's first batch takes, from ``start()`` until Spark has noted that it is committed.

Runs on the driver, with Spark and Postgres on this machine: `make bench-first`. Invariant: each time comes from a
driver of its own, in which no query ran before, and whose code for the way in is imported already; ways take turns, and
the ledger is there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from contenders import BATCH_WRITER, PGONCE, PYTHON_NOTHING, SPARK_JDBC, Contender, Place
from embedded_postgres import EmbeddedPostgres
from kafka_broker import MissingTool, postgres_jdbc_jar
from loads import Load
from measure import alternate, empty_table
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from report import Goal, judge
from rich import box
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, show_goals, write_results

from pgonce.offsets_store.ledger.migrations import ensure_ledger

WAYS = {"nothing": PYTHON_NOTHING, "sink": PGONCE, "writer": BATCH_WRITER, "jdbc": SPARK_JDBC}
SMALL_LOAD = Load("1,000 rows", 1_000, 2, rounds=7, warm_up=0, measured=6)
LARGE_LOAD = Load("1,000,000 rows", 1_000_000, 4, rounds=5, warm_up=0, measured=6)
LOADS = {load.name: load for load in (SMALL_LOAD, LARGE_LOAD)}
# How many of a query's batches, the last ones, are called warm.
_WARM = 2
_LONGEST_SECONDS = 300.0


@dataclass(frozen=True)
class Started:
    """
    What one driver measured, in milliseconds.

    ``first`` is from ``start()`` to the commit of the query's first batch, ``triggers`` are Spark's times of all its
    batches, and ``second`` is the same as ``first`` for another query of the same driver.
    """

    first: float
    triggers: list[int]
    second: float

    @property
    def first_to_warm(self) -> float:
        """How many times as long as a warm batch the first one takes, both by Spark's own time."""
        return self.triggers[0] / median(self.triggers[-_WARM:])


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a full run missed a goal, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-first", description="The first batch of a new driver.")
    parser.add_argument("--small", action="store_true", help="two rounds of the small load; judges nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all times")
    # What a driver is told that this program starts.
    parser.add_argument("--driver", nargs=4, metavar=("WAY", "LOAD", "URL", "JDBC_URL"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.driver:
        return _drive(*given.driver)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    try:
        postgres_jdbc_jar()
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    with EmbeddedPostgres(settings=POSTGRES) as postgres:
        about = about_this_run(POSTGRES, "the embedded one")
        ensure_ledger(postgres.tcp_uri())
        jdbc_url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/postgres?user=postgres"
        found = {}
        for load in (SMALL_LOAD,) if given.small else LOADS.values():
            rounds = 2 if given.small else load.rounds
            found[load.name] = _measure(load, rounds, postgres.tcp_uri(), jdbc_url, console)
            _show(console, load, found[load.name])
    loads = {name: {way: [asdict(one) for one in each] for way, each in ways.items()} for name, ways in found.items()}
    path = write_results(given.results, about, {"loads": loads, "small": given.small}, prefix="first-")
    first = {WAYS[way].name: [[one.first] for one in each] for way, each in found[SMALL_LOAD.name].items()}
    outcomes = [judge(Goal(SMALL_LOAD.name, PGONCE.name, PYTHON_NOTHING.name, 1.15), first)]
    show_goals(console, outcomes, judged=not given.small)
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0 if given.small or all(outcome.met for outcome in outcomes) else 1


def _measure(load: Load, rounds: int, url: str, jdbc_url: str, console: Console) -> dict[str, list[Started]]:
    """What the drivers of each way measured, by round."""
    found: dict[str, list[Started]] = {way: [] for way in WAYS}

    def measure(way: str, number: int) -> None:
        console.print(f"{load.name}, round {number + 1} of {rounds}: {WAYS[way].name}", style="dim")
        driver = [sys.executable, __file__, "--driver", way, load.name, url, jdbc_url]
        done = subprocess.run(driver, stdout=subprocess.PIPE, text=True, check=True)
        found[way].append(Started(**json.loads(done.stdout.splitlines()[-1])))

    alternate(list(WAYS), rounds, measure)
    return found


def _drive(way: str, load_name: str, url: str, jdbc_url: str) -> int:
    """In a driver of its own: print what it measures as JSON."""
    logging.disable(logging.WARNING)
    load, contender = LOADS[load_name], WAYS[way]
    # A table of its own, because the ledger knows nothing of that.
    table = f"{contender.table}_{os.getpid()}" if contender.table else None
    with (
        spark_session(postgres_jdbc_jar()) as spark,
        empty_table(url, table, load.columns),
        tempfile.TemporaryDirectory(prefix="bench-") as root,
    ):
        place = Place(url, jdbc_url, table or "")
        first, triggers = _start(spark, contender, load, place, Path(root, "first"), load.measured)
        second, _ = _start(spark, contender, load, place, Path(root, "second"), 1)
    print(json.dumps(asdict(Started(first, triggers, second))))
    return 0


def _start(
    spark: SparkSession, contender: Contender, load: Load, place: Place, checkpoint: Path, batches: int
) -> tuple[float, list[int]]:
    """The milliseconds until the first batch is committed, and Spark's times of the first ``batches``."""
    writer = contender.write(load.frame(spark).writeStream.option("checkpointLocation", str(checkpoint)), place)
    began = time.monotonic()
    query = writer.start()
    try:
        _wait(query, checkpoint / "commits" / "0")
        first = (time.monotonic() - began) * 1000
        _wait(query, checkpoint / "commits" / str(batches))
        done = {p.batchId: p.durationMs["triggerExecution"] for p in query.recentProgress}
        return first, [done[batch_id] for batch_id in range(batches)]
    finally:
        query.stop()


def _wait(query: StreamingQuery, committed: Path) -> None:
    until = time.monotonic() + _LONGEST_SECONDS
    while not committed.exists():
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > until:
            raise TimeoutError(f"{committed} was not there in {_LONGEST_SECONDS:g} s.")
        time.sleep(0.005)


def _show(console: Console, load: Load, found: dict[str, list[Started]]) -> None:
    title = f"The first batch of a new driver, {load.name}: medians of {len(found['sink'])} rounds"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("sink")
    for name in ("ms", "x nothing", "x Spark JDBC", "x a warm one", "ms, second query"):
        table.add_column(name, justify="right")
    for way, each in found.items():
        ratios = (
            median(one.first / other.first for one, other in zip(each, found[baseline], strict=True))
            for baseline in ("nothing", "jdbc")
        )
        table.add_row(
            WAYS[way].name,
            f"{median(one.first for one in each):,.0f}",
            *(f"{ratio:.2f}" for ratio in ratios),
            f"{median(one.first_to_warm for one in each):.2f}",
            f"{median(one.second for one in each):,.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
