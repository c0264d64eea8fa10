"""
Which rows do the deletes of a batch remove, or mark as deleted?

Runs in the commit, once the stored rows are locked. Invariant: a delete is counted as deleted, as not found, or as
passed over because the stored row is newer; and where only newer rows are written, it is remembered.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...options.by_key import Changes
from ..table.catalogue import TargetTable
from .by_index import execute_joined
from .change_table import DELETED, ChangeTable
from .key_plan import Upsert
from .tombstones import remember_in_tx

_SOFT_TYPES = {
    "boolean": "true",
    "timestamp with time zone": "pg_catalog.transaction_timestamp()",
    "timestamp without time zone": "pg_catalog.timezone('UTC', pg_catalog.transaction_timestamp())",
}
"""What a soft delete sets a column of this type to."""


def refuse_soft_column(table: TargetTable, changes: Changes | None, upsert: Upsert) -> None:
    """:raises TargetError: SOFT_COLUMN, if soft deletes have no column to set."""
    if changes is None or changes.soft_column is None:
        return
    if changes.soft_column in {column.target for column in (*upsert.keys, upsert.order_by) if column}:
        raise TargetError(
            "SOFT_COLUMN",
            f"deletes=soft:{changes.soft_column} names a column of keys or orderBy: each delete would give the row "
            "another key, or another place in the order.",
            NOTHING,
            "Name a column that says only whether, or when, the row was deleted.",
        )
    found = next((c for c in table.columns if c.column_name == changes.soft_column), None)
    if found is None or found.base_type not in _SOFT_TYPES:
        raise TargetError(
            "SOFT_COLUMN",
            f"deletes=soft:{changes.soft_column} names "
            + (f"a column of type {found.full_type}" if found else "a column that the table does not have")
            + f" ({table.qualified_name}).",
            NOTHING,
            "Name a column of type boolean, timestamp or timestamptz.",
        )


def count_deletes_in_tx(connection: psycopg.Connection, batch: ChangeTable) -> int:
    """How many changes of the batch delete, now that each key has one."""
    query = sql.SQL("SELECT pg_catalog.count(*) FROM {} WHERE {}").format(batch.name, DELETED)
    row = connection.execute(query).fetchone()
    return row[0] if row else 0


def delete_in_tx(
    connection: psycopg.Connection, batch: ChangeTable, deletes: int, counts: MutableMapping[str, int], *, traced: bool
) -> None:
    """Remove the rows of the batch's deletes; if ``traced``, the deletes are remembered."""
    deleted = delete_rows_in_tx(connection, batch)
    counts["deleted"] = deleted
    # What was deleted is absent now, and so is what was not found.
    counts["not_found"] = _absent(connection, batch, deletes, deleted, traced=traced) - deleted
    counts["passed_over"] += deletes - deleted - counts["not_found"]


def delete_rows_in_tx(connection: psycopg.Connection, batch: ChangeTable) -> int:
    """Remove the rows of the batch's deletes that are there; return how many were."""
    delete = sql.SQL("DELETE FROM {} AS target USING {} AS change WHERE change.{} AND {} AND {}").format(
        batch.only_target, batch.name, DELETED, batch.same_key(), batch.not_older()
    )
    return execute_joined(connection, delete, batch.upsert).rowcount


def delete_softly_in_tx(
    connection: psycopg.Connection, batch: ChangeTable, deletes: int, counts: MutableMapping[str, int], *, traced: bool
) -> None:
    """Mark the rows of the batch's deletes as deleted; what was never there is remembered, if it is ``traced``."""
    soft = next(c for c in batch.target.columns if batch.changes and c.column_name == batch.changes.soft_column)
    sets = [sql.SQL("{} = {}").format(sql.Identifier(soft.column_name), sql.SQL(_SOFT_TYPES[soft.base_type]))]
    if batch.upsert.newer_by:
        sets.append(sql.SQL("{0} = change.{0}").format(sql.Identifier(batch.upsert.newer_by)))
    mark = sql.SQL("UPDATE {} AS target SET {} FROM {} AS change WHERE change.{} AND {} AND {}").format(
        batch.only_target, sql.SQL(", ").join(sets), batch.name, DELETED, batch.same_key(), batch.not_older()
    )
    deleted = execute_joined(connection, mark, batch.upsert).rowcount
    counts["deleted"] = deleted
    counts["not_found"] = 0 if deleted == deletes else _absent(connection, batch, deletes, 0, traced=traced)
    counts["passed_over"] += deletes - deleted - counts["not_found"]


def _absent(connection: psycopg.Connection, batch: ChangeTable, deletes: int, deleted: int, *, traced: bool) -> int:
    """How many of the deleted keys have no row in the target now."""
    absent = sql.SQL("NOT {}").format(batch.exists())
    if traced:
        return remember_in_tx(connection, batch, absent)
    if deleted == deletes:
        return deleted
    count = sql.SQL("SELECT pg_catalog.count(*) FROM {} AS change WHERE change.{} AND {}")
    row = execute_joined(connection, count.format(batch.name, DELETED, absent), batch.upsert).fetchone()
    return row[0] if row else 0
