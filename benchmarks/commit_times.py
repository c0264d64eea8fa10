"""
Measure how long a sink in a process of its own takes for a given number of rows.

Runs on the driver. Invariant: a time is the difference of commit timestamps, so that waiting for the rows neither
disturbs the sink nor blurs its time. Needs `track_commit_timestamp`.
"""

from __future__ import annotations

import time
from typing import Protocol

import psycopg
from change_records import ChangeLoad, Marks
from cpu_seconds import CpuWatch, Used
from kafka_json import JsonLoad
from psycopg import sql
from stretches import cut
from typing_extensions import Self

_LONGEST_SECONDS = 600.0
_LOOK_EVERY_SECONDS = 0.5


class Sink(Protocol):
    """It runs while its context is open."""

    @property
    def pid(self) -> int:
        """Process id of the sink's first process; all its others are children of that."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def check(self) -> None:
        """:raises RuntimeError: saying why, if it has failed."""


def write_with(sink: Sink, cpu: CpuWatch, url: str, table: str, load: JsonLoad) -> tuple[list[int], Used]:
    """
    Have the whole topic written; return each measured batch in ms, and the CPU seconds of all of them together.

    :raises RuntimeError: if the sink has failed, or has written rows twice.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        with sink, cpu.watching(sink.pid):
            _wait_for_rows(connection, table, load.records, sink)
        # The table is new, and no vacuum runs: its rows still have the ids of the transactions that wrote them.
        epoch = "extract(epoch FROM pg_xact_commit_timestamp(xmin))"
        query = sql.SQL(f"SELECT {epoch} AS at, count(*) FROM {{}} GROUP BY xmin ORDER BY at")
        commits = connection.execute(query.format(sql.Identifier(table))).fetchall()
    marks = [load.stored_after(load.warm_up + number) for number in range(load.measured + 1)]
    measured = cut([(float(at), rows) for at, rows in commits], marks)
    return [stretch.ms for stretch in measured], cpu.used(measured)


def apply_with(
    sink: Sink, cpu: CpuWatch, url: str, table: str, load: ChangeLoad, marks: Marks
) -> tuple[list[int], Used]:
    """
    Have the whole topic applied; return each measured batch in ms, and the CPU seconds of all of them together.

    Most rows are written more than once, so marks say when each part of the topic was done.

    :raises RuntimeError: if the sink has failed.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        with sink, cpu.watching(sink.pid):
            _wait_for_marks(connection, table, marks, sink)
        query = "SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin)) AS at, id FROM {} WHERE id < 0 ORDER BY at"
        commits = connection.execute(sql.SQL(query).format(sql.Identifier(table))).fetchall()
    ends = [load.stored_after(load.warm_up + number) for number in range(load.measured + 1)]
    measured = cut([(float(at), marks.records[key]) for at, key in commits], ends)
    return [stretch.ms for stretch in measured], cpu.used(measured)


def _wait_for_marks(connection: psycopg.Connection, table: str, marks: Marks, sink: Sink) -> None:
    until = time.monotonic() + _LONGEST_SECONDS
    query = sql.SQL("SELECT count(*) FROM {} WHERE id = ANY(%s)").format(sql.Identifier(table))
    while time.monotonic() < until:
        sink.check()
        if connection.execute(query, [list(marks.last)]).fetchone() == (len(marks.last),):
            return
        time.sleep(_LOOK_EVERY_SECONDS)
    raise RuntimeError(f"{table} did not have all changes after {_LONGEST_SECONDS:g} s.")


def _wait_for_rows(connection: psycopg.Connection, table: str, wanted: int, sink: Sink) -> None:
    until, size = time.monotonic() + _LONGEST_SECONDS, 0
    while time.monotonic() < until:
        sink.check()
        # Rows are counted only when the file has stopped growing: an earlier count would take cores from the sink.
        before, size = size, _number(connection, "SELECT pg_relation_size({})", sql.Literal(table))
        if size == before > 0:
            found = _number(connection, "SELECT count(*) FROM {}", sql.Identifier(table))
            if found > wanted:
                raise RuntimeError(f"{table} has {found} rows, and the topic {wanted}: some were written twice.")
            if found == wanted:
                return
        time.sleep(_LOOK_EVERY_SECONDS)
    raise RuntimeError(f"{table} did not have its {wanted} rows after {_LONGEST_SECONDS:g} s.")


def _number(connection: psycopg.Connection, query: str, what: sql.Composable) -> int:
    row = connection.execute(sql.SQL(query).format(what)).fetchone()
    assert row
    return int(row[0])
