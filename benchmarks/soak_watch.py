"""
Watch what a soaked driver holds: processes, memory, descriptors, connections, rows of the catalogue and of the ledger.

Runs next to the driver. Invariant: it looks from outside, at the processes of the driver's session and at Postgres, and
looking does not make anything grow.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import psycopg
from psycopg import sql

LEDGER = ("writers", "batches", "runs", "replays", "progress", "staged_tables")
CATALOGUE = (
    "pg_class", "pg_attribute", "pg_type", "pg_depend", "pg_index", "pg_attrdef", "pg_statistic", "pg_shdepend",
)  # fmt: skip
# Spark's daemons name the module of their workers, which are their forks.
_KINDS = {
    "pyspark.sql.worker.write_into_data_source": "planner worker",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit worker",
    "pyspark.sql.worker.create_data_source": "lookup worker",
    "pyspark.sql.worker.lookup_data_sources": "lookup worker",
    "pyspark.worker": "task worker",
}


@dataclass(frozen=True)
class Held:
    """What the processes of one kind hold together; ``rss`` are bytes of the largest one, since forks share."""

    processes: int
    rss: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Table:
    """A table of the catalogue: its rows, its dead rows by statistics, and its size with indexes in bytes."""

    rows: int
    dead: int
    size: int


@dataclass(frozen=True)
class Sample:
    """One look at everything; ``batches`` counts those that were published by then, over all ways."""

    seconds: float
    batches: int
    connections: int
    processes: dict[str, Held]
    catalogue: dict[str, Table]
    ledger: dict[str, int]
    staging_tables: int


def sample(session: int, observer: psycopg.Connection, began: float) -> Sample:
    """Look at the processes of a session (by its leader's pid) and, over ``observer``, at its database."""
    return Sample(
        seconds=round(time.monotonic() - began, 1),
        batches=_count(observer, "SELECT coalesce(sum(last_batch_id + 1), 0) FROM pgonce.writers"),
        connections=_count(
            observer,
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND datname = current_database() AND pid <> pg_backend_pid()",
        ),
        processes=_processes(session),
        catalogue=catalogue(observer),
        ledger={
            name: _count(observer, sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("pgonce", name)))
            for name in LEDGER
        },
        staging_tables=_count(
            observer,
            "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^staged_[0-9a-f]{24}_'",
        ),
    )


def kind_of(command: list[str]) -> str:
    """Which process of a driver this is, by its command line."""
    if command and command[0].endswith("java"):
        return "JVM"
    return next((_KINDS[word] for word in command if word in _KINDS), "driver")


def _processes(session: int) -> dict[str, Held]:
    held: dict[str, Held] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) != session:
                continue
            kind = kind_of(process.cmdline())
            before = held.get(kind, Held(0, 0, 0, 0))
            held[kind] = Held(
                before.processes + 1,
                max(before.rss, process.memory_info().rss),
                before.descriptors + process.num_fds(),
                before.threads + process.num_threads(),
            )
    return held


def catalogue(observer: psycopg.Connection) -> dict[str, Table]:
    """The tables in which creating and dropping a table leaves dead rows."""
    found = observer.execute(
        "SELECT relname, n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_sys_tables "
        "WHERE schemaname = 'pg_catalog' AND relname = ANY (%s) ORDER BY relname",
        [list(CATALOGUE)],
    ).fetchall()
    return {
        name: Table(
            _count(observer, sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("pg_catalog", name))), dead, size
        )
        for name, dead, size in found
    }


def _count(observer: psycopg.Connection, query: str | sql.Composed) -> int:
    row = observer.execute(query).fetchone()  # type: ignore[arg-type]
    return int(row[0]) if row else 0
