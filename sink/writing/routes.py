"""
Plan the rows of one batch, each for the one of several tables that its value chooses.

Runs in the commit. Invariant: every row is of one route, so that each is written once; a value that is not listed stops
the batch, or is counted, or put aside, before any of the tables is written. Tables are locked in the order of their
oids, and then turns are taken in this order, so that two batches never wait for each other's.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target
from pgonce.offsets_store.ledger.published import WrittenAs
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.verdict.facts import Batch

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.routes import Route, Routes
from ..staging import check_staged_rows
from .bad_rows.about_a_row import not_encoded, of_one, too_many
from .bad_rows.letters import Letters
from .empty_table import replace_all_in_tx
from .new_columns import add_columns_in_tx
from .recorded_destination import recorded, written_as
from .rooms import Plan
from .rows import GatheredRows, Gathering, Rows
from .table.lock import lock_tables, take_turns_in_tx
from .table.table_name import ResolvedName
from .write_batch import ask_for_each_table, said_of
from .written import PUT_ASIDE, UNROUTED, RowsForTable

_counter = itertools.count()

INDEXED_ROWS = 10_000
INDEXED_TABLES = 10
"""With as many rows for as many tables, an index costs less than a scan of all rows for each table."""


def plan_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    rows: Rows,
    batch: Batch | None,
    found: Sequence[ResolvedName] | None,
) -> Plan:
    """Gather all rows in one table, decide about those of no table, and lock the tables that get the others."""
    gathered = _gather_by_route_in_tx(connection, rows, routes)
    found = found or ask_for_each_table(connection, routes)()
    listed = {route.value: table for route, table in zip(routes, found, strict=True)}
    counts = _settle_unrouted_in_tx(connection, routes, listed, rows, gathered, batch)
    due = gathered.due(routes)
    notes = _lock_due_in_tx(connection, due, listed, rows.columns)
    parts = _rows_by_table(connection, due, listed, rows, gathered)
    unrouted = sum(gathered.counts.values()) - sum(part.rows.count() for part in parts)
    there = {table.qualified_name: table.oid for table in found if table.oid is not None}
    return Plan(parts, there, _written_as_listed(routes, listed, rows.columns), counts, unrouted, notes)


def _lock_due_in_tx(
    connection: psycopg.Connection,
    due: Sequence[Route],
    listed: Mapping[str, ResolvedName],
    columns: Sequence[EncodedColumn],
) -> dict[str, str]:
    """
    Lock the tables that are ``due``, take turns in writing to them, and empty those that are replaced.

    A table is looked up again when it is written. If its name means another one by then, that one is locked out of the
    order, which can only lead to a deadlock, and so to another try.

    :return: a sentence on each that was altered for its rows, by its qualified name.
    """
    notes: dict[str, str] = {}
    waiting: list[ResolvedName] = []
    for route in sorted(due, key=lambda route: listed[route.value].oid or 0):
        where, table = route.destination, listed[route.value]
        if where.schema_evolution != "addColumns" or table.oid is None:
            waiting.append(table)
            continue
        # ALTER TABLE needs a lock that must not be asked for while a weaker one is held, so it comes before that.
        lock_tables(connection, waiting)
        waiting.clear()
        with said_of(route.value):
            now, done = add_columns_in_tx(connection, where, route.written(columns), table, lambda: None)
        if done:
            notes[now.qualified_name] = done
    lock_tables(connection, waiting)
    # Once no lock on a table is missing, because a turn may last long.
    take_turns_in_tx(connection, ((route.destination, listed[route.value]) for route in due))
    # All of them first: a DELETE reaches into partitions, and by ON DELETE CASCADE into children, which may have got
    # their rows of this batch by then. Children first, which come after their parents in the list.
    for route in reversed(due):
        table = listed[route.value]
        if route.destination.mode == "complete" and table.oid is not None:
            replace_all_in_tx(connection, table, table.oid)
    return notes


def _rows_by_table(
    connection: psycopg.Connection,
    due: Sequence[Route],
    listed: Mapping[str, ResolvedName],
    rows: Rows,
    gathered: RowsByRoute,
) -> list[RowsForTable]:
    """The rows of each table that is due; all of them are in Postgres."""
    # Whether all staged rows are there was looked at for all routes together.
    of_all = replace(rows, bodies=tuple, staged=None, unfit=tuple, since=None)
    source = _indexed_in_tx(connection, gathered, due)
    found = []
    for route in due:
        chosen = source.of(route.value)
        whole = replace(of_all, count=partial(int, chosen.count))
        gathering = Gathering(connection, whole, chosen)
        own = replace(whole, columns=route.written(rows.columns))
        found.append(RowsForTable(route.destination, own, gathering, listed[route.value], route.value, is_emptied=True))
    return found


def _written_as_listed(
    routes: Routes, listed: Mapping[str, ResolvedName], columns: Sequence[EncodedColumn]
) -> dict[str, WrittenAs]:
    """How rows are written into each table that is there, also of those that get none: the next batch may have some."""
    return {
        table.qualified_name: written_as(
            route.destination, tuple(route.written(columns)), table.identifier.as_string(None), table.oid
        )
        for route, table in ((route, listed[route.value]) for route in routes)
        if table.oid is not None
    }


@dataclass(frozen=True)
class RowsByRoute:
    """The gathered rows, each with its route in ``column``; ``counts`` has how many there are of each, also of None."""

    rows: GatheredRows
    column: EncodedColumn
    counts: Mapping[str | None, int]

    @property
    def route(self) -> sql.Composable:
        """The route of a row, as a text."""
        name = sql.Identifier(self.column.name)
        return name if self.column.postgres_type == "text" else sql.SQL("{}::pg_catalog.text").format(name)

    def of(self, *values: str | None) -> GatheredRows:
        """The rows of these routes; the values are sent as literals, never as names."""
        texts = [value for value in values if value is not None]
        same = sql.SQL("{} OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.text[])").format(self.route, sql.Literal(texts))
        if len(texts) == 1:
            same = sql.SQL("{} OPERATOR(pg_catalog.=) {}::pg_catalog.text").format(self.route, sql.Literal(texts[0]))
        if None in values:
            same = sql.SQL("({} OR {} IS NULL)").format(same, sql.Identifier(self.column.name))
        return replace(self.rows.only(same), count=sum(self.counts.get(value, 0) for value in values))

    def due(self, routes: Routes) -> list[Route]:
        """The routes whose tables are written: in complete mode a table that gets no rows is emptied."""
        return [r for r in routes if self.counts.get(r.value) or r.destination.mode == "complete"]


def _gather_by_route_in_tx(connection: psycopg.Connection, rows: Rows, routes: Routes) -> RowsByRoute:
    """Bring the rows to Postgres, and count those of each route."""
    gathered = replace(Gathering(connection, rows).rows(), staged=None)
    if rows.staged is not None:
        check_staged_rows(connection, rows.staged)
    column = next(column for column in rows.columns if column.name == routes.column)
    found = RowsByRoute(gathered, column, {})
    count = sql.SQL("SELECT {}, count(*) FROM {} WHERE {} GROUP BY 1").format(
        found.route, gathered.source, gathered.wanted
    )
    return replace(found, counts=dict(search_path.execute_in_tx(connection, count).fetchall()))


def _indexed_in_tx(connection: psycopg.Connection, rows: RowsByRoute, due: Sequence[Route]) -> RowsByRoute:
    """
    The rows of the tables that are due, with an index on their routes if there are so many that it pays.

    They are copied for that into a table of their own, in the order of their routes: an index on a staging table would
    have to wait for tasks that still write to it.
    """
    # An unknown route may be too long for an entry of an index (54000).
    listed = rows.of(*(route.value for route in due))
    if len(due) < INDEXED_TABLES or listed.count < INDEXED_ROWS:
        return rows
    table = sql.Identifier("pg_temp", f"pgonce_routed_{next(_counter)}")
    index = sql.SQL(
        "CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS SELECT * FROM {source} WHERE {wanted} ORDER BY {route}, ctid"
    ).format(table=table, source=listed.source, wanted=listed.wanted, route=rows.route)
    search_path.execute_in_tx(connection, index)
    create = sql.SQL("CREATE INDEX ON {} (({}))").format(table, rows.route)
    search_path.execute_in_tx(connection, create)
    return replace(rows, rows=replace(listed, source=table, wanted=sql.SQL("true")))


def _settle_unrouted_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    listed: Mapping[str, ResolvedName],
    rows: Rows,
    gathered: RowsByRoute,
    batch: Batch | None,
) -> Counter[str]:
    """
    Do with such rows what the user wants, and return their number as the batch's ``counts`` name it.

    :param batch: whose rows they are; without one, nothing is put aside.
    :raises TargetError: ROUTE_UNKNOWN, TOO_MANY_DEAD_LETTERS, and the error of a row that may not be put aside.
    """
    counts = Counter(_settle_unknown_in_tx(connection, routes, rows, gathered, batch))
    unfit = rows.unfit()
    if batch is not None and unfit:
        aside = _put_unfit_aside_in_tx(connection, routes, listed, unfit, rows.columns, batch)
        counts += Counter({PUT_ASIDE: aside, UNROUTED: len(unfit) - aside})
    return counts


def _settle_unknown_in_tx(
    connection: psycopg.Connection, routes: Routes, rows: Rows, gathered: RowsByRoute, batch: Batch | None
) -> dict[str, int]:
    known = {route.value for route in routes}
    unknown = {value: number for value, number in gathered.counts.items() if value not in known}
    if not unknown:
        return {}
    total = sum(unknown.values())
    if routes.unknown == "drop":
        return {UNROUTED: total}
    most = routes.dead_letters
    if routes.unknown == "refuse" or most is None or batch is None:
        raise _unknown_routes(routes, unknown, "")
    if total > most:
        raise _unknown_routes(routes, unknown, f" These are more rows than maxDeadLetters={most} allows in a batch.")
    # Such a row has no table, and so nothing says how it was to be written.
    aside = Letters(batch, routes.sink_name, {})
    why = routes.column, "ROUTE_UNKNOWN", f"The value of {routes.column} is not in tables."
    aside.write_all_in_tx(connection, gathered.of(*unknown), why, rows.columns, rows.positions)
    return {PUT_ASIDE: total}


def _put_unfit_aside_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    listed: Mapping[str, ResolvedName],
    unfit: Sequence[UnfitRow],
    columns: Sequence[EncodedColumn],
    batch: Batch,
) -> int:
    """
    Write the rows that could not be encoded as dead letters; each table's own limit counts.

    :return: how many were put aside. The others have an unknown route, and are to be left out.
    """

    def put_aside(found: list[UnfitRow], most: int | None, target: str, how: Mapping[str, Any]) -> None:
        if not found:
            return
        if most is None:
            raise not_encoded(found[0])
        if len(found) > most:
            raise too_many(target, most, of_one(found[0]))
        Letters(batch, target, how).write_unfit_in_tx(connection, found)

    by_value: dict[object, list[UnfitRow]] = defaultdict(list)
    for row in unfit:
        by_value[_route_of(row, routes.column)].append(row)
    for route in routes:
        table, found = listed[route.value], by_value.pop(route.value, [])
        where = replace(route.destination, table=table.identifier.as_string(None), dead_letters=None)
        how = recorded(where, route.written(columns), table.oid)
        with said_of(route.value):
            put_aside(found, route.destination.dead_letters, table.qualified_name, how)
    unreadable = by_value.pop(_UNREADABLE, [])
    unknown = [row for found in by_value.values() for row in found]
    dropped = unknown if routes.unknown == "drop" else []
    put_aside(unreadable if dropped else unknown + unreadable, routes.dead_letters, routes.sink_name, {})
    return len(unfit) - len(dropped)


def _unknown_routes(routes: Routes, unknown: Mapping[str | None, int], why: str) -> TargetError:
    """The error for rows of routes that are not listed: how many of each; ``why`` says what more is wrong."""
    most = sorted(unknown.items(), key=lambda item: (-item[1], str(item[0])))
    named = ", ".join(f"{_shortened(value)} ({number} rows)" for value, number in most[:_NAMED_IN_ERROR])
    more = f" and {len(most) - _NAMED_IN_ERROR} more" if len(most) > _NAMED_IN_ERROR else ""
    return bad_target(
        "ROUTE_UNKNOWN",
        f"Rows have values of {routes.column!r} that are not in tables: {named}{more}.{why}",
        "Add the value to tables, or filter the rows out in Spark. Or set unknownRoutes=drop, to leave them out and "
        "count them; or unknownRoutes=deadLetters with deadLetters, to put them aside.",
    )


def _shortened(value: str | None) -> str:
    if value is None:
        return "null"
    return repr(value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}...")


_NAMED_IN_ERROR = 5
_LONGEST_VALUE = 100


_UNREADABLE = object()
"""The route of a row with an object that stands for a text which jsonb cannot hold."""


def _route_of(row: UnfitRow, column: str) -> object:
    """The route of a row, as a text; None for null."""
    value = json.loads(row.row_data).get(column)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _UNREADABLE if isinstance(value, dict) else None if value is None else str(value)
