"""
Lock the target table, so that it stays as the catalogue describes it until the batch is committed.

Runs in the commit. Invariant: the table is locked before it is described, in the mode in which it is then written. A
statement that could change its columns, their types, its rules or where its rows are kept needs a lock that conflicts
with this one.

Some writers also take turns, although that lock would let them write at the same time. A turn lasts until the
transaction ends. There is one turn for all tables of a partition tree, because a row of one is a row of all above it. A
transaction that writes to several tables that were known before takes all turns before it writes a row, in the order of
the roots' oids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ...options.destination import Destination
from .catalogue import UNSAFE_PARTITION, TargetTable, look_up_statements, look_up_table, looked_up, with_user_types
from .table_name import ResolvedName, resolve_table

# Ordinary and partitioned tables. All else is refused, and some of it cannot be locked.
_WRITABLE = ("r", "p")

# Parsing an INSERT takes the lock that writing takes, keeps it until the transaction ends, and asks for no privilege.
# LOCK TABLE needs one on the whole table, which a role with INSERT on only some of its columns does not have.
_LOCK = sql.SQL("PREPARE pgonce_lock AS INSERT INTO {} DEFAULT VALUES; DEALLOCATE pgonce_lock")
_LOCK_ANSWERS = 2


def lock_table(
    connection: psycopg.Connection,
    table: str,
    found: ResolvedName | None = None,
    *,
    restores_path: bool = False,
    more: Callable[[], sql.Composable | None] | None = None,
) -> tuple[ResolvedName, TargetTable | None]:
    """
    Like :func:`look_up_table`, but lock the table first; what cannot be written to is described without a lock.

    :param found: what :func:`resolve_table` has said about ``table`` in this transaction; it saves a round trip.
    :param restores_path: whether to set the user's search_path first, in the same round trip.
    :param more: makes a statement that is run under our search_path once the table is locked, in the same round trip;
        it is not called if there is no table to be locked.
    :raises psycopg.errors.LockNotAvailable: if others keep it locked for longer than ``lock_timeout``.
    """
    if restores_path and (found is None or found.kind not in _WRITABLE):
        search_path.leave_in_tx(connection)
        restores_path = False
    found = found or resolve_table(connection, table)
    while found.kind in _WRITABLE:
        statements = _statements(table, found.schema, found.name, restores_path=restores_path)
        if more and (another := more()) is not None:
            statements += "; " + search_path.under_ours(another).as_string(connection)
        with connection.cursor() as cursor:
            cursor.execute(statements, prepare=False)
            for _ in range(restores_path + _LOCK_ANSWERS):
                cursor.nextset()
            now, described = looked_up(cursor, table)
        if described is not None and now.qualified_name == found.qualified_name:
            return now, with_user_types(connection, described)
        # Meanwhile the name means another table. The lock on the first one does no harm.
        found, restores_path, more = now, False, None
    return look_up_table(connection, table)


# To compose it takes psycopg a tenth of a millisecond.
@lru_cache(maxsize=256)
def _statements(table: str, schema: str, name: str, *, restores_path: bool) -> str:
    first = [search_path.LEAVE] if restores_path else []
    locked = sql.Identifier(schema, name)
    return sql.SQL("; ").join([*first, _LOCK.format(locked), look_up_statements(table)]).as_string(None)


def lock_tables(connection: psycopg.Connection, tables: Sequence[ResolvedName]) -> None:
    """
    Lock several tables, one after the other, in one round trip; what cannot be written to is left out.

    What they are must be looked up afterwards, as :func:`lock_table` does.
    """
    locks = [_LOCK.format(sql.Identifier(one.schema, one.name)) for one in tables if one.kind in _WRITABLE]
    if locks:
        connection.execute(sql.SQL("; ").join(locks), prepare=False)


def unsafe_partition(connection: psycopg.Connection, table: TargetTable) -> str | None:
    """
    A partition that a crash would empty; asked after rows are written, because until then others could attach one.

    The partitions that took rows of the batch are locked by that.
    """
    if table.kind != "p":
        return None
    row = search_path.execute_in_tx(connection, sql.SQL(UNSAFE_PARTITION.format(oid=table.oid))).fetchone()
    return row[0] if row else None


_TURN = sql.SQL("SELECT pg_catalog.pg_advisory_xact_lock({})")
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


def take_turn_of_newer_in_tx(connection: psycopg.Connection, oid: int) -> None:
    """Wait for the turn among those that write only newer rows into the table of this oid."""
    connection.execute(_TURN.format(_key(_NEWER, oid)), prepare=False)


def take_turn_of_replacing_in_tx(connection: psycopg.Connection, oid: int) -> None:
    """Wait for the turn among those that replace all rows of the table of this oid."""
    connection.execute(_TURN.format(_key(_REPLACING, oid)), prepare=False)


def take_turns_in_tx(connection: psycopg.Connection, tables: Iterable[tuple[Destination, ResolvedName]]) -> None:
    """
    Wait for the turns that these tables will need, in one round trip.

    A statement that takes one of them later has it already. A table that is created meanwhile is left out.
    """
    turns = [
        (root_of(table.oid), _key(_REPLACING if where.mode == "complete" else _NEWER, table.oid))
        for where, table in tables
        if table.oid is not None and (where.mode == "complete" or where.existing.only_newer)
    ]
    if turns:
        keys = sql.SQL(", ").join(sql.SQL("({}, {})").format(root, key) for root, key in turns)
        connection.execute(_IN_ORDER.format(keys), prepare=False)


_NEWER, _REPLACING = "pgonce.tombstones ", "pgonce replaces all rows of "


def _key(what: str, oid: int) -> sql.Composed:
    return sql.SQL(
        "pg_catalog.hashtextextended({}::pg_catalog.text OPERATOR(pg_catalog.||) {}::pg_catalog.text, 0)"
    ).format(what, root_of(oid))
