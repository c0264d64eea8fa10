"""
Remember deletes, so that an older change does not bring the row back.

Runs in the commit, where only newer rows are written. Invariant: a transaction that writes only newer rows into a table
holds a lock on its tombstones, and reads them in a statement that began after it had the lock.

A tombstone belongs to the table, not to the query or the sink that made it, because another query's older change must
not bring the row back either. :mod:`~pgonce.sink.writing.by_key.tombstone_sets` decides which tombstones are the
table's.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import bad_target
from pgonce.offsets_store.postgres.search_path import LocalSettings

from ...options.destination import COMMIT_VERSION
from .change_table import DELETED, ChangeTable
from .tombstone_sets import Tombstones, identified, own_set_in_tx
from .upsert import is_large

# Types whose values are equal exactly if their JSON is, and those whose JSON says by itself what it means.
_TRACEABLE = frozenset({
    "smallint", "integer", "bigint", "numeric", "text", "character varying", "character", "bpchar", "uuid", "boolean",
    "date", "timestamp without time zone", "timestamp with time zone",
})  # fmt: skip
_ORDERED = _TRACEABLE - {"boolean", "character", "bpchar"} | {"real", "double precision"}
# The types as which remembered values of a kind are compared with those of a batch. The types that SQL itself names are
# found under any search_path; others are names like any other.
_COMPARED_AS = {
    "number": "numeric",
    "float": "double precision",
    **{name: f"pg_catalog.{name}" for name in ("text", "uuid", "date")},
}
_PRUNED_AT_LEAST = 1000

# JSON has as many digits of a float as this setting says, and the role may have set less than all.
ALL_DIGITS = LocalSettings(extra_float_digits="1")


def refuse_unordered(changes: ChangeTable) -> None:
    """:raises TargetError: ORDER_TYPE, if values of the order column cannot be compared with remembered ones."""
    name = changes.upsert.newer_by
    found = _base_type(changes, name) if name else ""
    if found not in _ORDERED:
        raise bad_target(
            "ORDER_TYPE",
            f"onlyNewer is set, and orderBy names column {name!r} of type {found}, whose values have no order that "
            "shows which row is newer.",
            "Use a number, a date, a timestamp, a text or a uuid.",
        )


def is_traceable(changes: ChangeTable) -> bool:
    """Whether keys of this table can be remembered: equal keys have the same JSON, and different keys do not."""
    comparisons = changes.upsert.comparisons
    return all(
        _base_type(changes, key.target) in _TRACEABLE
        and (key.target not in comparisons or comparisons[key.target].is_by_value)
        for key in changes.upsert.keys
    )


def refuse_untraceable(changes: ChangeTable) -> None:
    """:raises TargetError: KEY_UNTRACEABLE."""
    if not is_traceable(changes):
        raise bad_target(
            "KEY_UNTRACEABLE",
            f"onlyNewer is set, and rows of {changes.target.qualified_name} are deleted; but its keys "
            f"({', '.join(key.target for key in changes.upsert.keys)}) have a type or a collation by which different "
            "values are equal, so that a delete cannot be remembered.",
            "Use keys of integers, numeric, text, varchar, uuid, dates or timestamps, with a deterministic collation; "
            "or set deletes=ignore.",
        )


def pass_over_in_tx(
    connection: psycopg.Connection, changes: ChangeTable, tombstones: Sequence[Tombstones], count: int
) -> int:
    """Drop those of the ``count`` changes that are older than the delete of their key; return how many."""
    if not tombstones:
        return 0
    kind = identified(changes).order_kind
    passed_over = 0
    for of in tombstones:
        is_late: sql.Composable = sql.SQL("")
        if kind in _WITH_GREATEST and _are_few_in_tx(connection, of, count):
            compared_as = sql.SQL(_COMPARED_AS.get(kind, kind))
            less = sql.SQL("<=" if _may_precede_equal(changes) else "<")
            is_late = _IS_LATE.format(_order(changes), compared_as, less, compared_as, of.set_id)
        statement = sql.SQL("DELETE FROM {} AS change WHERE {}{}").format(
            changes.name, is_late, precedes_delete(changes, of)
        )
        passed_over += connection.execute(statement).rowcount
    return passed_over


def precedes_delete(changes: ChangeTable, of: Tombstones) -> sql.Composed:
    """Whether ``change`` is older than the remembered delete of its key; null if there is none."""
    kind = identified(changes).order_kind
    compared_as = sql.SQL(_COMPARED_AS.get(kind, kind))
    # Not a join: many tombstones may have come since statistics said that there are none, and then Postgres might look
    # through all changes for each of them. This finds each change's tombstone in the index.
    return sql.SQL(
        "(SELECT ((stone.order_value OPERATOR(pg_catalog.#>>) '{{}}'::pg_catalog.text[])::{} "
        "OPERATOR(pg_catalog.{}) change.{}::{}) IS NOT FALSE FROM pgonce.tombstones AS stone "
        "WHERE stone.tombstone_set_id OPERATOR(pg_catalog.=) {}::bigint AND stone.key OPERATOR(pg_catalog.=) {})"
    ).format(
        compared_as,
        sql.SQL(">=" if _may_precede_equal(changes) else ">"),
        _order(changes),
        compared_as,
        of.set_id,
        _key(changes, of.keys),
    )


def _may_precede_equal(changes: ChangeTable) -> bool:
    """
    Whether a change may be older than a delete of the same order: that of a dead letter may be of an earlier batch.

    Not where the order is the version of a table: both are of one batch then, and the insert is the later one.
    """
    order = changes.upsert.order_by
    is_version = order is not None and order.source.lower() == COMMIT_VERSION
    return changes.upsert.of_letters and not (is_version and changes.changes and changes.changes.has_versions)


# What is newer than every tombstone needs no look at its own, if it has an order. The greatest is found by reading all.
_IS_LATE = sql.SQL(
    "(change.{}::{} OPERATOR(pg_catalog.{}) ("
    "SELECT pg_catalog.max((all_of.order_value OPERATOR(pg_catalog.#>>) '{{}}'::pg_catalog.text[])::{}) "
    "FROM pgonce.tombstones AS all_of WHERE all_of.tombstone_set_id OPERATOR(pg_catalog.=) {}::bigint)) IS NOT FALSE "
    "AND "
)
# Texts may be compared by another collation than that of the greatest; uuids have none before Postgres 18.
_WITH_GREATEST = frozenset({
    "number", "float", "date", "timestamp without time zone", "timestamp with time zone",
})  # fmt: skip
_READ_FOR_ONE_CHANGE = 4
"""So many tombstones are read in the time in which one is looked up by its key, or more."""


def _are_few_in_tx(connection: psycopg.Connection, of: Tombstones, changes: int) -> bool:
    """Whether reading all tombstones takes less time than looking up those of so many changes."""
    if not is_large(changes):
        return False
    most = _READ_FOR_ONE_CHANGE * changes
    query = sql.SQL(
        "SELECT pg_catalog.count(*) FROM (SELECT FROM pgonce.tombstones AS stone "
        "WHERE stone.tombstone_set_id OPERATOR(pg_catalog.=) {}::bigint LIMIT {}) AS stones"
    )
    row = connection.execute(query.format(of.set_id, most + 1)).fetchone()
    return row is not None and row[0] <= most


def remember_in_tx(connection: psycopg.Connection, changes: ChangeTable, absent: sql.Composable) -> int:
    """
    Leave a tombstone for each delete whose row is ``absent``, for as many days as the user said; and drop old ones.

    :return: how many deletes are remembered.
    :raises TargetError: KEY_UNTRACEABLE, for a key that is too long.
    """
    own_set = own_set_in_tx(connection, changes)
    try:
        remembered = ALL_DIGITS.execute_in_tx(connection, remember_statement(changes, absent, own_set)).rowcount
    except psycopg.errors.ProgramLimitExceeded as error:
        raise bad_target(
            "KEY_UNTRACEABLE",
            f"onlyNewer is set, and a row of {changes.target.qualified_name} is deleted whose key is too long to be "
            f"remembered (Postgres says: {error.diag.message_primary}).",
            "Leave this delete out in Spark; or use shorter keys, or set deletes=ignore.",
        ) from error
    keep_in_tx(connection, changes, own_set, remembered)
    return remembered


def remember_statement(changes: ChangeTable, absent: sql.Composable, own_set: int) -> sql.Composed:
    """What leaves the tombstones; it needs :data:`ALL_DIGITS`."""
    return sql.SQL(
        "INSERT INTO pgonce.tombstones AS stone (tombstone_set_id, key, order_value, deleted_at, expires_at) "
        "SELECT {}, {}, pg_catalog.to_jsonb({}), pg_catalog.statement_timestamp(), {} "
        "FROM {} AS change WHERE change.{} AND {} "
        "ON CONFLICT (tombstone_set_id, key) DO UPDATE SET order_value = EXCLUDED.order_value, "
        "deleted_at = EXCLUDED.deleted_at, expires_at = GREATEST(stone.expires_at, EXCLUDED.expires_at)"
    ).format(
        own_set,
        _key(changes, list(identified(changes).keys)),
        _order_remembered(changes),
        _until(changes),
        changes.name,
        DELETED,
        absent,
    )


def keep_in_tx(connection: psycopg.Connection, changes: ChangeTable, own_set: int, remembered: int) -> None:
    """Let the set live as long as the tombstones that were ``remembered``; and drop old ones."""
    if remembered:
        connection.execute(
            sql.SQL(
                "UPDATE pgonce.tombstone_sets SET expires_at = GREATEST(expires_at, {}) "
                "WHERE tombstone_set_id OPERATOR(pg_catalog.=) {}::bigint"
            ).format(_until(changes), own_set)
        )
        _prune_in_tx(connection, max(_PRUNED_AT_LEAST, 2 * remembered))


def _until(changes: ChangeTable) -> sql.Composable:
    return sql.SQL(
        "pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(days => {})"
    ).format(changes.upsert.existing.tombstone_days)


def _prune_in_tx(connection: psycopg.Connection, most: int) -> None:
    # Of any table, because the index has nothing but the time: with the table in it, Postgres could use it for looking
    # up keys. A session that writes to another table may hold that table's tombstones.
    connection.execute(
        sql.SQL(
            "DELETE FROM pgonce.tombstones WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
            "SELECT ctid FROM pgonce.tombstones WHERE expires_at OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() "
            "LIMIT {} FOR UPDATE SKIP LOCKED))"
        ).format(most)
    )
    # A set of a table that was dropped is useless, and no other session can be using it.
    connection.execute(
        "DELETE FROM pgonce.tombstone_sets AS gone WHERE NOT EXISTS ("
        "SELECT FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) gone.target)"
    )


def _key(changes: ChangeTable, keys: Sequence[str]) -> sql.Composable:
    """The key of ``change`` as JSON, the same in every time zone, and without what does not count in it."""
    values = []
    for name in keys:
        value = sql.SQL("change.{}").format(sql.Identifier(name))
        base_type = _base_type(changes, name)
        if base_type == "timestamp with time zone":
            value = sql.SQL("pg_catalog.timezone('UTC', {})").format(value)
        elif base_type in ("character", "bpchar"):
            # As text it has no spaces at the end. JSON has them.
            value = sql.SQL("{}::pg_catalog.text").format(value)
        values.append(value)
    return sql.SQL("pg_catalog.jsonb_build_array({})").format(sql.SQL(", ").join(values))


def _order(changes: ChangeTable) -> sql.Identifier:
    return sql.Identifier(changes.upsert.newer_by or "")


def _order_remembered(changes: ChangeTable) -> sql.Composed:
    # As it is compared: 0.7 of a real is 0.699999988 as a double, and would be older than a remembered 0.7.
    cast = sql.SQL("::double precision" if identified(changes).order_kind == "float" else "")
    return sql.SQL("change.{}{}").format(_order(changes), cast)


def _base_type(changes: ChangeTable, name: str) -> str:
    return next(column.base_type for column in changes.target.columns if column.column_name == name)
