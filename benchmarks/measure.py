"""
Measure how long a trigger takes, and how much memory the driver's Python processes use.

Runs on the driver. Invariant: a time is Spark's own (`durationMs.triggerExecution` of the query's progress), and it
counts only if the rows are there afterwards.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar

import psutil
import psycopg
from contenders import Contender, Place
from loads import Load
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from stretches import Stretch

_Contender = TypeVar("_Contender")
_Named = TypeVar("_Named", bound="Named")
_Found = TypeVar("_Found")
_LONGEST_SECONDS = 600.0
# Daemons of Spark's Python workers name their module, and so do the workers, which are their forks. That of the tasks
# is left out: it runs on executors.
_DRIVER_SIDE = {
    "pyspark.sql.worker.write_into_data_source": "planner worker",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit worker",
    "pyspark.sql.worker.lookup_data_sources": "lookup worker",
    "pyspark.sql.worker.create_data_source": "create_data_source worker",
    "pgonce.sink.data_source.receiver.process": "receiver",
}
# The other two work only once in a run, and Spark ends them after a minute.
_IN_EVERY_BATCH = ("planner worker", "commit worker", "receiver")
_DRIVER = "the driver's own Python"


@dataclass(frozen=True)
class Round:
    """When the measured triggers of a query were, and the bytes of WAL for each row that it has written."""

    triggers: list[Stretch]
    wal_per_row: float


@dataclass(frozen=True)
class Bench:
    """The two servers of a run."""

    spark: SparkSession
    url: str
    jdbc_url: str

    def run(self, contender: Contender, load: Load) -> list[int]:
        """The trigger times (ms) of one contender in one round."""
        return [trigger.ms for trigger in self.round(contender, load).triggers]

    def round(self, contender: Contender, load: Load) -> Round:
        """Run a new query; its table is empty before and afterwards."""
        place = Place(self.url, self.jdbc_url, contender.table or "")
        least = load.stored_after(load.warm_up + load.measured)
        with (
            empty_table(self.url, contender.table, load.columns) as rows,
            tempfile.TemporaryDirectory(prefix="bench-") as root,
        ):
            writer = load.frame(self.spark).writeStream.option("checkpointLocation", f"{root}/checkpoint")
            wal = _wal_position(self.url)
            query = contender.write(writer, place).start()
            try:
                triggers = _triggers(query, load, load.rows if contender.runs_each_frame else 0)
            finally:
                query.stop()
            found = rows()
            if contender.table and found < least:
                raise RuntimeError(f"{contender.name} was to write {least} rows, and {found} are there.")
            return Round(triggers, (_wal_position(self.url) - wal) / found if found else 0.0)

    def triggers_to_the_end(self, contender: Contender, load: Load) -> list[Stretch]:
        """When the triggers of a new query were that ends with its source; the table is the caller's."""
        place = Place(self.url, self.jdbc_url, contender.table or "")
        with tempfile.TemporaryDirectory(prefix="bench-") as root:
            writer = load.frame(self.spark).writeStream.option("checkpointLocation", f"{root}/checkpoint")
            query = contender.write(writer, place).trigger(availableNow=True).start()
            try:
                if not query.awaitTermination(int(_LONGEST_SECONDS)):
                    raise TimeoutError(f"{load.name}: {contender.name} was not done in {_LONGEST_SECONDS:g} s.")
            finally:
                query.stop()
            done = {p.batchId: p for p in query.recentProgress if p.numInputRows}
        return [_stretch(done[load.warm_up + number]) for number in range(load.measured)]


def _wal_position(url: str) -> int:
    """The number of bytes that the server has written to its WAL since it was made."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
        return row[0] if row else 0


def alternate(contenders: Sequence[_Contender], rounds: int, measure: Callable[[_Contender, int], None]) -> None:
    """Run each contender once in a round; another one begins each time, so that the order changes."""
    for number in range(rounds):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            measure(contender, number)


class Named(Protocol):
    """What is compared with others."""

    @property
    def name(self) -> str:
        """How tables of figures call it."""


def by_round(
    contenders: Sequence[_Named], load: Load, console: Console, run: Callable[[_Named], _Found]
) -> dict[str, list[_Found]]:
    """What ``run`` has found of each contender in each round; they take turns."""
    found: dict[str, list[_Found]] = {contender.name: [] for contender in contenders}

    def measure(contender: _Named, number: int) -> None:
        console.print(f"{load.name}, round {number + 1} of {load.rounds}: {contender.name}", style="dim")
        found[contender.name].append(run(contender))

    alternate(contenders, load.rounds, measure)
    return found


def _triggers(query: StreamingQuery, load: Load, least_rows: int) -> list[Stretch]:
    until = time.monotonic() + _LONGEST_SECONDS
    wanted = range(load.warm_up, load.warm_up + load.measured)
    while True:
        last = query.lastProgress
        if last is not None and last.batchId >= wanted.stop - 1:
            break
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > until:
            raise TimeoutError(f"{load.name}: batch {wanted.stop - 1} was not done in {_LONGEST_SECONDS:g} s.")
        time.sleep(0.05)
    # A trigger without work also makes an event with the next batch's id, but one without rows.
    done = {p.batchId: p for p in query.recentProgress if p.numInputRows >= least_rows}
    return [_stretch(done[batch_id]) for batch_id in wanted]


def _stretch(progress: StreamingQueryProgress) -> Stretch:
    begin = datetime.fromisoformat(progress.timestamp).timestamp()
    return Stretch(begin, begin + progress.durationMs["triggerExecution"] / 1000)


@contextmanager
def empty_table(url: str, table: str | None, columns: str) -> Iterator[Callable[[], int]]:
    """Yields a count of the table's rows."""
    if table is None:
        yield lambda: 0
        return
    name = sql.Identifier(table)
    with psycopg.connect(url, autocommit=True) as connection:

        def count() -> int:
            row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name)).fetchone()
            return row[0] if row else 0

        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
        connection.execute(f"CREATE TABLE {table} ({columns})")
        try:
            yield count
        finally:
            connection.execute(sql.SQL("TRUNCATE {}").format(name))


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread while the block runs; it ends when its event is set."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=[done])
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass
class MemoryWatch:
    """
    Samples the memory of the driver-side Python processes; a worker and its daemon count together.

    It counts resident pages, each divided by how many processes share it (PSS): workers are forks of their daemons.

    ``peaks`` are bytes by kind; ``peak_in_every_batch`` adds up the planner's worker, the commit worker and the
    receiver. In foreachBatch it is the driver's own Python.
    """

    in_foreach_batch: bool

    interval_seconds: float = 0.05
    peaks: dict[str, int] = field(default_factory=dict)
    peak_in_every_batch: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the block runs."""
        with beside(self._sample_until):
            yield

    def _sample_until(self, done: threading.Event) -> None:
        while not done.wait(self.interval_seconds):
            sizes = {**dict.fromkeys(_DRIVER_SIDE.values(), 0), _DRIVER: _held_by(psutil.Process())}
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    command = " ".join(process.cmdline())
                    kind = next((kind for module, kind in _DRIVER_SIDE.items() if module in command), None)
                    if kind is not None:
                        sizes[kind] += _held_by(process)
            self.peaks = {kind: max(size, self.peaks.get(kind, 0)) for kind, size in sizes.items()}
            together = sizes[_DRIVER] if self.in_foreach_batch else sum(sizes[kind] for kind in _IN_EVERY_BATCH)
            self.peak_in_every_batch = max(self.peak_in_every_batch, together)


def _held_by(process: psutil.Process) -> int:
    info = process.memory_full_info()
    # Only Linux says how many share a page.
    return getattr(info, "pss", info.rss)
