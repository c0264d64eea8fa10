"""
Who takes turns in writing to a table, although the table's own lock would let them write at the same time?

Runs in the commit, once the table is locked. Invariant: a turn lasts until the transaction ends, and is one for all
tables of a partition tree, because a row of one is a row of all above it; and whoever writes to several tables that
were known before takes all turns before it writes a row, in the order of the roots'
oids.
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import sql

from ...options.destination import Destination
from .table_name import ResolvedName

_LOCK = sql.SQL("pg_catalog.pg_advisory_xact_lock({})")
_IN_ORDER = sql.SQL(
    "SELECT pg_catalog.pg_advisory_xact_lock(turn.key) FROM "
    "(SELECT given.key FROM (VALUES {}) AS given(root, key) ORDER BY given.root, given.key) AS turn"
)


def root_of(oid: int) -> sql.Composed:
    """
    The expression for the root of the partition tree that a table is in: the table itself, if it is in none.

    While the table is locked, neither can it become a partition of another table, nor cease to be one.
    """
    return sql.SQL(
        "coalesce(pg_catalog.pg_partition_root({0}::pg_catalog.oid::pg_catalog.regclass)::pg_catalog.oid, "
        "{0}::pg_catalog.oid)"
    ).format(oid)


def turn_of_newer(oid: int) -> sql.Composed:
    """The expression that waits for a turn among those that write only newer rows into the table of this oid."""
    return _LOCK.format(_key_of_newer(oid))


def turn_of_replacing(oid: int) -> sql.Composed:
    """The expression that waits for a turn among those that replace all rows of the table of this oid."""
    return _LOCK.format(_key_of_replacing(oid))


def take_turns_in_tx(connection: psycopg.Connection, tables: Iterable[tuple[Destination, ResolvedName]]) -> None:
    """
    Wait for the turns that these tables will need, in one round trip.

    What takes one later finds that it has it. A table that is created meanwhile is left out.
    """
    turns = [
        (root_of(table.oid), _key_of_replacing(table.oid) if where.mode == "complete" else _key_of_newer(table.oid))
        for where, table in tables
        if table.oid is not None and (where.mode == "complete" or where.existing.only_newer)
    ]
    if turns:
        keys = sql.SQL(", ").join(sql.SQL("({}, {})").format(root, key) for root, key in turns)
        connection.execute(_IN_ORDER.format(keys), prepare=False)


def _key_of_newer(oid: int) -> sql.Composed:
    return _key("pgonce.tombstones ", oid)


def _key_of_replacing(oid: int) -> sql.Composed:
    return _key("pgonce replaces all rows of ", oid)


def _key(what: str, oid: int) -> sql.Composed:
    return sql.SQL(
        "pg_catalog.hashtextextended({}::pg_catalog.text OPERATOR(pg_catalog.||) {}::pg_catalog.text, 0)"
    ).format(what, root_of(oid))
