"""
Find what grows with the number of batches: thousands of small ones are run, and what they hold is recorded.

Runs next to a Spark driver and a Postgres of its own: `make soak N=10000`. Invariant: autovacuum is on, as users have
it, and nothing is cleaned up during the run that a user would have to clean up.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import psycopg
from embedded_postgres import TEST_SETTINGS, EmbeddedPostgres
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich import box
from rich.console import Console
from rich.table import Table
from screen import about_this_run, write_results
from soak_driver import WAYS, Job, tables
from soak_watch import CATALOGUE, Sample, catalogue, sample

from pgonce.offsets_store.ledger.migrations import migrate
from pgonce.sink.staging import drop_staging_table

RESULTS = Path(__file__).parent / "results"
_ROWS = 10
_LONGEST_WITHOUT_A_BATCH_SECONDS = 180.0


@dataclass(frozen=True)
class Soaked:
    """
    What one driver did: times in ms by way and batch, what it held meanwhile, and the catalogue around it.

    ``staging_left`` counts the staging tables that are left because it was ended in the middle of a batch.
    """

    ways: tuple[str, ...]
    batches: int
    times: dict[str, list[int]]
    samples: list[Sample]
    staging_left: int
    catalogue_before: dict[str, Any]
    catalogue_after: dict[str, Any]

    def ratio(self, way: str) -> float:
        """The median time of the last batches to that of the first ones after warm-up: a thousand each, or a third."""
        times = self.times[way]
        warm = min(200, len(times) // 4)
        window = min(1000, (len(times) - warm) // 3)
        return median(times[-window:]) / median(times[warm : warm + window])

    def grown(self, what: Callable[[Sample], float]) -> tuple[float, float]:
        """A figure after the first tenth of the run and in its last tenth: medians."""
        settled = [what(s) for s in self.samples if s.batches > self.batches * len(self.ways) / 10]
        tenth = max(1, len(settled) // 10)
        return median(settled[:tenth]), median(settled[-tenth:])


def main(arguments: Sequence[str]) -> int:
    """Exit code 0; judging is left to the reader, or to the test that asks for a short run."""
    parser = argparse.ArgumentParser(prog="make soak", description="Run many small batches and watch what grows.")
    parser.add_argument("--batches", type=int, default=10_000, help="batches of each way in")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways in, one driver after the other")
    parser.add_argument("--together", action="store_true", help="all ways in one driver, side by side")
    parser.add_argument("--retain-batches", type=int, default=1000)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    parser.add_argument("--url", help="an empty database of a given server, instead of a server of its own")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all figures")
    given = parser.parse_args(arguments)
    ways = tuple(given.ways.split(","))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    with nullcontext(given.url) if given.url else _server() as url:
        about = about_this_run(TEST_SETTINGS, _version(url))
        soaked = []
        for group in [ways] if given.together else [(way,) for way in ways]:
            with _database(url, group[0], own=not given.url) as database:
                soaked.append(soak(database, group, given.batches, given.retain_batches, given.every, console))
            show(console, soaked[-1])
    measured = {"soak": [{**asdict(s), "ratio": {way: s.ratio(way) for way in s.ways}} for s in soaked]}
    path = write_results(given.results, about, measured, prefix="soak-")
    console.print(f"All figures are in {path}.", soft_wrap=True)
    return 0


def soak(
    url: str, ways: tuple[str, ...], batches: int, retain_batches: int, every_seconds: float, console: Console
) -> Soaked:
    """Run a driver for a number of batches of every way, and look at it at regular intervals."""
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as directory,
        psycopg.connect(url, autocommit=True) as observer,
    ):
        migrate(observer)
        for way in ways:
            observer.execute(tables(way).encode())
        before = catalogue(observer)
        job = Job(url, ways, batches, _ROWS, retain_batches, directory, spark_settings(directory))
        with _driver(job) as driver:
            samples = list(_watched(driver, observer, batches, every_seconds, console))
        left = observer.execute("SELECT table_name FROM pgonce.staged_tables").fetchall()
        for (name,) in left:
            drop_staging_table(observer, name)
        observer.execute("VACUUM")
        times = {way: _times(job, way) for way in ways}
        return Soaked(ways, batches, times, samples, len(left), plain(before), plain(catalogue(observer)))


def _watched(
    driver: subprocess.Popen[bytes], observer: psycopg.Connection, batches: int, every_seconds: float, console: Console
) -> Iterator[Sample]:
    began = moved = time.monotonic()
    published = 0
    assert driver.stdout is not None
    os.set_blocking(driver.stdout.fileno(), False)
    while True:
        seen = sample(driver.pid, observer, began)
        yield seen
        if seen.batches > published:
            published, moved = seen.batches, time.monotonic()
            console.print(f"{seen.seconds:7.0f} s: {published} batches", style="dim")
        if b"soaked" in (driver.stdout.read() or b""):
            yield sample(driver.pid, observer, began)
            return
        if driver.poll() is not None:
            raise RuntimeError(f"The driver ended with {driver.returncode} after {published} of {batches} batches.")
        if time.monotonic() - moved > _LONGEST_WITHOUT_A_BATCH_SECONDS:
            raise TimeoutError(f"No batch for {_LONGEST_WITHOUT_A_BATCH_SECONDS:g} s after {published}.")
        with suppress(subprocess.TimeoutExpired):
            driver.wait(every_seconds)


def show(console: Console, soaked: Soaked, units: str = "batches") -> None:
    """A table of one driver: each figure after the first tenth and in the last one."""
    ratios = ", ".join(f"{way} {soaked.ratio(way):.2f}" for way in soaked.ways)
    title = f"{soaked.batches:,} {units} of {', '.join(soaked.ways)}: time of the last to the first: {ratios}"
    screen = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in ("what", "after a tenth", "at the end"):
        screen.add_column(name, justify="left" if name == "what" else "right")
    for name, what in _figures(soaked):
        first, last = soaked.grown(what)
        screen.add_row(name, f"{first:,.1f}", f"{last:,.1f}")
    console.print(screen)


def _figures(soaked: Soaked) -> Iterator[tuple[str, Callable[[Sample], float]]]:
    yield "connections", lambda s: s.connections
    for kind in sorted(soaked.samples[-1].processes):
        yield f"{kind}: processes", lambda s, kind=kind: s.processes[kind].processes if kind in s.processes else 0
        yield f"{kind}: MB", lambda s, kind=kind: s.processes[kind].rss / 1e6 if kind in s.processes else 0
        yield f"{kind}: descriptors", lambda s, kind=kind: s.processes[kind].descriptors if kind in s.processes else 0
        yield f"{kind}: threads", lambda s, kind=kind: s.processes[kind].threads if kind in s.processes else 0
    for name in CATALOGUE:
        yield f"{name}: MB", lambda s, name=name: s.catalogue[name].size / 1e6
        yield f"{name}: dead rows", lambda s, name=name: s.catalogue[name].dead
    for name in soaked.samples[-1].ledger:
        yield f"pgonce.{name}: rows", lambda s, name=name: s.ledger[name]
    yield "staging tables", lambda s: s.staging_tables


def plain(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: asdict(table) for name, table in tables.items()}


def _times(job: Job, way: str) -> list[int]:
    lines = [line.split() for line in job.times(way).read_text().splitlines()]
    return [int(ms) for number, ms in lines if int(number) < job.batches]


def spark_settings(directory: str) -> dict[str, str]:
    return {
        "spark.master": f"local[{os.cpu_count() or 2}]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": f"{directory}/local",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
    }


@contextmanager
def _driver(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    script = Path(__file__).with_name("soak_driver.py")
    driver = subprocess.Popen(
        [sys.executable, "-u", str(script), job.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYSPARK_PYTHON": sys.executable, **os.environ},
        start_new_session=True,
    )
    try:
        yield driver
    finally:
        # Its Python workers have process groups of their own, but no session.
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == driver.pid:
                    process.send_signal(signal.SIGKILL)
        driver.wait()


@contextmanager
def _server() -> Iterator[str]:
    with EmbeddedPostgres() as postgres:
        yield postgres.uri()


@contextmanager
def _database(url: str, name: str, *, own: bool) -> Iterator[str]:
    """A database for one driver if the server is ours; else the given one."""
    if not own:
        yield url
        return
    database = f"soak_{name}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        yield make_conninfo(**{**conninfo_to_dict(url), "dbname": database})
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))


def _version(url: str) -> str:
    with psycopg.connect(url) as connection:
        return connection.info.parameter_status("server_version") or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
