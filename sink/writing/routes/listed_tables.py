"""
Which tables did the user list, and how are they locked?

Runs in the commit, and before Spark's job. Invariant: no two routes end in one table, whatever it is called; and tables
are locked in the order of their oids, and then turns are taken in this order, so that two batches never wait for each
other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from pgonce.offsets_store.errors import TargetError

from ...encoding.encoded_types import EncodedColumn
from ...options.route_options import twice
from ...options.routes import Route, Routes
from ..evolution.alter import (
    lock_with_new_columns,
)
from ..table.lock import lock_tables
from ..table.table_name import ResolvedName, resolve_tables
from ..table.turns import take_turns_in_tx

Listed = Mapping[str, ResolvedName]
"""What Postgres calls the table of each value."""


def listed_tables(connection: psycopg.Connection, routes: Routes) -> Listed:
    """
    The tables of all routes, found along the user's search_path in one round trip.

    :raises TargetError: BAD_TABLE_NAME, SCHEMA_MISSING.
    :raises ConfigurationError: BAD_ROUTES, if two of them are one.
    """
    found = resolve_tables(connection, [route.destination.table for route in routes])
    refuse_doubled(routes, found)
    return {route.value: table for route, table in zip(routes, found, strict=True)}


def refuse_doubled(routes: Routes, found: Sequence[ResolvedName]) -> None:
    """:raises ConfigurationError: BAD_ROUTES."""
    by_table: dict[int | str, str] = {}
    for route, table in zip(routes, found, strict=True):
        other = by_table.setdefault(table.oid or table.qualified_name, route.value)
        if other != route.value:
            raise twice(table.qualified_name, other, route.value)


def lock_listed_in_tx(
    connection: psycopg.Connection, due: Sequence[Route], listed: Listed, columns: Sequence[EncodedColumn]
) -> dict[str, str]:
    """
    Lock the tables that are ``due``, and take turns in writing to them.

    Returns a sentence on each that was altered for its rows, by its qualified name.

    A table is looked up again when it is written. If its name means another one by then, that one is locked out of the
    order, which can only lead to a deadlock, and so to another try.

    :raises TargetError: TARGET_NOT_ALTERED.
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
        try:
            _, altered = lock_with_new_columns(connection, where, route.written(columns), table, lambda: None)
        except TargetError as error:
            raise error.beginning(f"For {route.value!r} in tables") from None
        if altered is not None and altered.note:
            notes[altered.qualified_name] = altered.note
    lock_tables(connection, waiting)
    # Once no lock on a table is missing, because a turn may last long.
    take_turns_in_tx(connection, ((route.destination, listed[route.value]) for route in due))
    return notes
