"""
Delete and write the rows of a batch of changes, when each key has one.

Runs in the commit. Invariant: a stored row that is newer stays, and so does a stored value that the source could not
read; a delete is counted as deleted, as not found, or as passed over, and where only newer rows are written, it is
remembered.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import bad_target

from ...options.destination import Changes
from ..rows import RELEASE, GatheredRows
from ..table.catalogue import TargetTable
from ..written import Upsert
from .change_table import DELETED, ChangeTable
from .keys import execute_joined
from .tombstones import remember_in_tx
from .upsert import write_by_key_in_tx

_SOFT_TYPES = {
    "boolean": "true",
    "timestamp with time zone": "pg_catalog.transaction_timestamp()",
    "timestamp without time zone": "pg_catalog.timezone('UTC', pg_catalog.transaction_timestamp())",
}
"""What a soft delete sets a column of this type to."""


class StillReferredToError(psycopg.errors.ForeignKeyViolation):
    """A foreign key refuses a delete, because another row refers to the row; Postgres's error alone does not tell."""


def refuse_soft_column(table: TargetTable, changes: Changes | None, upsert: Upsert) -> None:
    """:raises TargetError: SOFT_COLUMN, if soft deletes have no column to set."""
    if changes is None or changes.soft_column is None:
        return
    if changes.soft_column in {column.target for column in (*upsert.keys, upsert.order_by) if column}:
        raise bad_target(
            "SOFT_COLUMN",
            f"deletes=soft:{changes.soft_column} names a column of keys or orderBy: each delete would give the row "
            "another key, or another place in the order.",
            "Name a column that says only whether, or when, the row was deleted.",
        )
    found = next((c for c in table.columns if c.column_name == changes.soft_column), None)
    if found is None:
        what = "a column that the table does not have"
    elif found.base_type not in _SOFT_TYPES:
        what = f"a column of type {found.full_type}"
    elif found.generated:
        what = "a column whose values Postgres generates"
    elif found.not_null and found.base_type != "boolean":
        what = "a column that is NOT NULL, but a row that is not deleted has no time of deletion"
    else:
        return
    raise bad_target(
        "SOFT_COLUMN",
        f"deletes=soft:{changes.soft_column} names {what} ({table.qualified_name}).",
        "Name a column of type boolean, or one of type timestamp or timestamptz that may be null.",
    )


def count_deletes_in_tx(connection: psycopg.Connection, batch: ChangeTable) -> int:
    """How many changes of the batch delete, now that each key has one."""
    query = sql.SQL("SELECT pg_catalog.count(*) FROM {} WHERE {}").format(batch.name, DELETED)
    row = connection.execute(query).fetchone()
    return row[0] if row else 0


def delete_in_tx(
    connection: psycopg.Connection, batch: ChangeTable, deletes: int, counts: MutableMapping[str, int], *, traced: bool
) -> None:
    """
    Remove the rows of the batch's deletes; if ``traced``, the deletes are remembered.

    :raises StillReferredToError: if a foreign key refuses that.
    """
    try:
        deleted = execute_joined(connection, delete_statement(batch), batch.upsert).rowcount
        if deleted < deletes:
            # A row that another session deletes and inserts again while it is waited for is found only now. It may
            # insert one that was deleted here, too, which counts once.
            again = execute_joined(connection, delete_statement(batch), batch.upsert).rowcount
            deleted = min(deleted + again, deletes)
    except (psycopg.errors.ForeignKeyViolation, psycopg.errors.RestrictViolation) as error:
        raise StillReferredToError(*error.args, info=error.pgresult) from None
    counts["deleted"] = deleted
    # What was deleted is absent now, and so is what was not found.
    counts["not_found"] = max(0, _absent(connection, batch, deletes, deleted, traced=traced) - deleted)
    counts["passed_over"] += deletes - deleted - counts["not_found"]


def delete_statement(batch: ChangeTable) -> sql.Composed:
    """What removes the rows of the batch's deletes, or marks them."""
    if batch.deletes_softly:
        return _mark(batch)
    return sql.SQL("DELETE FROM {} AS target USING {} AS change WHERE change.{} AND {} AND {}").format(
        batch.target.only, batch.name, DELETED, batch.same_key(), batch.not_older()
    )


def delete_softly_in_tx(
    connection: psycopg.Connection, batch: ChangeTable, deletes: int, counts: MutableMapping[str, int], *, traced: bool
) -> None:
    """Mark the rows of the batch's deletes as deleted; what was never there is remembered, if it is ``traced``."""
    deleted = execute_joined(connection, _mark(batch), batch.upsert).rowcount
    connection.execute(RELEASE)
    counts["deleted"] = deleted
    counts["not_found"] = 0 if deleted == deletes else _absent(connection, batch, deletes, 0, traced=traced)
    counts["passed_over"] += deletes - deleted - counts["not_found"]


def _mark(batch: ChangeTable) -> sql.Composed:
    soft = next(c for c in batch.target.columns if batch.changes and c.column_name == batch.changes.soft_column)
    sets = [sql.SQL("{} = {}").format(sql.Identifier(soft.column_name), sql.SQL(_SOFT_TYPES[soft.base_type]))]
    if batch.upsert.newer_by:
        sets.append(sql.SQL("{0} = change.{0}").format(sql.Identifier(batch.upsert.newer_by)))
    return sql.SQL("UPDATE {} AS target SET {} FROM {} AS change WHERE change.{} AND {} AND {}").format(
        batch.target.only, sql.SQL(", ").join(sets), batch.name, DELETED, batch.same_key(), batch.not_older()
    )


def _absent(connection: psycopg.Connection, batch: ChangeTable, deletes: int, deleted: int, *, traced: bool) -> int:
    """How many of the deleted keys have no row in the target now."""
    if traced:
        return remember_in_tx(connection, batch, batch.is_absent())
    if deleted == deletes:
        return deleted
    count = sql.SQL("SELECT pg_catalog.count(*) FROM {} AS change WHERE change.{} AND {}")
    absent = count.format(batch.name, DELETED, sql.SQL("NOT {}").format(batch.exists()))
    row = execute_joined(connection, absent, batch.upsert).fetchone()
    return row[0] if row else 0


def write_in_tx(connection: psycopg.Connection, batch: ChangeTable, writes: int, *, is_last: bool) -> int:
    """
    Insert or update the ``writes`` rows that do not delete; return how many were written.

    :param is_last: whether no row is marked as deleted afterwards.
    """
    if not writes:
        if is_last:
            connection.execute(RELEASE)
        return 0
    return write_by_key_in_tx(
        connection,
        GatheredRows(batch.name, sql.SQL("NOT {}").format(DELETED), writes),
        batch.target,
        batch.written,
        batch.reduced_upsert,
        is_last=is_last,
    )
