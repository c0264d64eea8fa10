"""
Who takes turns in writing to a table, although the table's own lock would let them write at the same time?

Runs in the commit, once the table is locked. Invariant: a turn lasts until the transaction ends; and whoever writes to
several tables that were known before takes all turns before it writes a row, in the order of the tables' oids.
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import sql

from pgonce.sink.settings import Destination
from pgonce.sink.target.table_name import ResolvedName


def turn_of_newer(oid: int) -> sql.Composed:
    """The expression that waits for a turn among those that write only newer rows into the table of this oid."""
    return _turn(f"pgonce.tombstones {oid}")


def turn_of_replacing(qualified_name: str) -> sql.Composed:
    """The expression that waits for a turn among those that replace all rows of the table of this name."""
    return _turn(f"replacing all rows of {qualified_name}")


def take_turns_in_tx(connection: psycopg.Connection, tables: Iterable[tuple[Destination, ResolvedName]]) -> None:
    """
    Wait for the turns that these tables will need, in one round trip.

    What takes one later finds that it has it. A table that is created meanwhile is left out.
    """
    known = [(table.oid, where, table) for where, table in tables if table.oid is not None]
    turns = [
        turn_of_replacing(table.qualified_name) if where.mode == "complete" else turn_of_newer(oid)
        for oid, where, table in sorted(known, key=lambda each: each[0])
        if where.mode == "complete" or where.existing.only_newer
    ]
    if turns:
        # A statement for each, so that a turn that is waited for keeps none of the later ones.
        connection.execute(sql.SQL("; ").join(sql.SQL("SELECT {}").format(turn) for turn in turns), prepare=False)


def _turn(name: str) -> sql.Composed:
    return sql.SQL("pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({}::pg_catalog.text, 0))").format(
        sql.Literal(name)
    )
