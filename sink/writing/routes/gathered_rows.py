"""
How are a batch's rows gathered once, and then written table by table?

Runs in the commit. Invariant: every row is of one route, so that each is written once; and rows are read from the table
in which they were gathered, never from Spark again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ...encoding.encoded_types import EncodedColumn
from ...options.routes import Route
from ...staging.table import check_staged_rows
from ..gathering import Gathering
from ..rows import Rows

_counter = itertools.count()

INDEXED_ROWS = 10_000
INDEXED_TABLES = 10
"""With as many rows for as many tables, an index costs less than a scan of all rows for each table."""


@dataclass(frozen=True)
class RowsByRoute:
    """
    The wanted rows of ``source``, each with its route in ``column``, and how many there are of each route.

    A row without a route has None.
    """

    source: sql.Identifier
    wanted: sql.Composable
    column: EncodedColumn
    counts: Mapping[str | None, int]

    @property
    def route(self) -> sql.Composable:
        """The route of a row, as a text."""
        name = sql.Identifier(self.column.name)
        return name if self.column.postgres_type == "text" else sql.SQL("{}::pg_catalog.text").format(name)

    def of(self, *values: str | None) -> sql.Composable:
        """The condition that picks the rows of these routes; the values are sent as literals, never as names."""
        texts = [value for value in values if value is not None]
        same = sql.SQL("{} OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.text[])").format(self.route, sql.Literal(texts))
        if len(texts) == 1:
            same = sql.SQL("{} OPERATOR(pg_catalog.=) {}::pg_catalog.text").format(self.route, sql.Literal(texts[0]))
        if None in values:
            same = sql.SQL("({} OR {} IS NULL)").format(same, sql.Identifier(self.column.name))
        return sql.SQL("({}) AND {}").format(self.wanted, same)


def gather_in_tx(connection: psycopg.Connection, rows: Rows, route: str) -> RowsByRoute:
    """
    Bring the rows to Postgres, and count those of each route.

    :raises StagingError: if staged rows are missing, or if there are too many.
    """
    gathering = Gathering(connection, rows)
    source = gathering()
    if rows.staged is not None:
        check_staged_rows(connection, rows.staged)
    column = next(column for column in rows.columns if column.name == route)
    found = RowsByRoute(source, gathering.wanted, column, {})
    cursor = connection.cursor()
    count = sql.SQL("SELECT {}, count(*) FROM {} WHERE {} GROUP BY 1").format(found.route, source, found.wanted)
    search_path.execute_in_tx(cursor, count)
    return replace(found, counts=dict(cursor.fetchall()))


def indexed_in_tx(connection: psycopg.Connection, rows: RowsByRoute, tables: int) -> RowsByRoute:
    """
    The same rows, with an index on their routes if there are so many that it pays.

    They are copied for that into a table of their own, in the order of their routes: an index on a staging table would
    have to wait for tasks that still write to it.
    """
    if tables < INDEXED_TABLES or sum(rows.counts.values()) < INDEXED_ROWS:
        return rows
    table = sql.Identifier("pg_temp", f"pgonce_routed_{next(_counter)}")
    index = sql.SQL(
        "CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS SELECT * FROM {source} WHERE {wanted} ORDER BY {route}, ctid"
    ).format(table=table, source=rows.source, wanted=rows.wanted, route=rows.route)
    search_path.execute_in_tx(connection.cursor(), index)
    create = sql.SQL("CREATE INDEX ON {} (({}))").format(table, rows.route)
    search_path.execute_in_tx(connection.cursor(), create)
    return replace(rows, source=table, wanted=sql.SQL("true"))


@dataclass(frozen=True)
class SharedGathering:
    """The rows of one route, which were gathered with those of all others."""

    source: sql.Identifier
    wanted: sql.Composable
    is_done: bool = True

    def bodies(self) -> Iterable[bytes]:
        """None: all rows are in Postgres."""
        return ()

    def undone(self) -> None:
        """Nothing: savepoints are set after the rows were gathered, so they are still there."""

    def __call__(self) -> sql.Identifier:
        """The table that has them."""
        return self.source


def rows_of(route: Route, rows: Rows, gathered: RowsByRoute) -> tuple[Rows, SharedGathering]:
    """
    The rows of one route, and where they are: all in Postgres.

    Whether all staged ones are there was looked at for all routes together.
    """
    number = gathered.counts.get(route.value, 0)
    of_route = Rows(route.written(rows.columns), lambda: number, transport=rows.transport, positions=rows.positions)
    return of_route, SharedGathering(gathered.source, gathered.of(route.value))
