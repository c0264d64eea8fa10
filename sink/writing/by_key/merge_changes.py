"""
How do the writes and deletes of a large batch get into the target in one statement?

Runs in the commit. Invariant: there is one statement only where nobody can tell it from deletes that writes follow: all
that a row has comes from the batch, so that a row which is deleted and written again is the same as one that is
updated, and nothing refers to the target's rows.

Deletes, writes, and the locks that come before them each look up all rows; this does it once.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from ..refused_values import RELEASE
from .change_table import DELETED, ChangeTable
from .deciding_changes import create_deciding
from .delete_changes import count_deletes_in_tx, delete_rows_in_tx
from .upsert import is_large, may_merge, merged

# Types of which equal values are the same: of 1 and 1.00, an update of a numeric key would leave the stored one.
_SAME_IF_EQUAL = frozenset({
    "smallint", "integer", "bigint", "text", "character varying", "uuid", "boolean", "date",
    "timestamp without time zone", "timestamp with time zone", "bytea",
})  # fmt: skip

# Others refer to the table, or rows of it refer to some that are not there: an update does not look, an insert does.
_HAS_REFERENCES = sql.SQL(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint AS r "
    "WHERE r.confrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid "
    "OR r.conrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid AND NOT r.convalidated)"
)


def may_merge_changes(connection: psycopg.Connection, batch: ChangeTable, rows: int) -> bool:
    """Whether one statement may do all, for which only the last change of each key counts."""
    if not is_large(rows) or batch.changes is None or batch.changes.deletes != "hard":
        return False
    if batch.puts_together or batch.upsert.newer_by or not batch.upsert.finds_by_index:
        return False
    types = {column.column_name: column.base_type for column in batch.target.columns}
    if types.keys() != {column.target for column in batch.written}:
        return False
    if not all(types[key.target] in _SAME_IF_EQUAL for key in batch.upsert.keys):
        return False
    if not may_merge(connection, batch.target, batch.written, batch.reduced_upsert):
        return False
    row = connection.execute(_HAS_REFERENCES.format(oid=batch.target.oid)).fetchone()
    return row is not None and not row[0]


def merge_changes_in_tx(
    connection: psycopg.Connection, batch: ChangeTable, source: sql.Identifier, wanted: sql.Composable, rows: int
) -> dict[str, int] | None:
    """
    Write and delete what the ``rows`` wanted ones of ``source`` say; return how many came to which stage.

    None if nothing was written, because other statements are needed, or can tell better what is wrong.
    """
    create = create_deciding(batch, source, wanted, deletes_matter=False)
    kept = connection.execute(create, prepare=False).rowcount
    is_doubled = kept < rows and batch.upsert.order_by is None
    deletes = count_deletes_in_tx(connection, batch)
    writes = kept - deletes
    changed = None if is_doubled else merged(connection, _merge(batch))
    if changed is None:
        return None
    # Each write inserts a row or updates one, because no stored row is newer.
    deleted = changed - writes
    if deleted < deletes:
        # MERGE passes a row that another session has deleted and inserted again while it waited for that session.
        deleted += delete_rows_in_tx(connection, batch)
    connection.execute(RELEASE)
    return {"written": writes, "deleted": deleted, "superseded": rows - kept, "not_found": deletes - deleted}


def _merge(batch: ChangeTable) -> sql.Composed:
    names = [sql.Identifier(column.target) for column in batch.written]
    changed = map(sql.Identifier, batch.reduced_upsert.changed(batch.written))
    return sql.SQL(
        "MERGE INTO ONLY {target} AS target "
        "USING (SELECT * FROM {changes} ORDER BY {in_order}) AS change ON {same_key} "
        "WHEN MATCHED AND change.{deleted} THEN DELETE WHEN MATCHED THEN UPDATE SET {sets} "
        "WHEN NOT MATCHED AND NOT change.{deleted} THEN INSERT ({names}) VALUES ({values})"
    ).format(
        target=batch.target.identifier,
        changes=batch.name,
        in_order=batch.keys_in_order(),
        same_key=batch.same_key(),
        deleted=DELETED,
        sets=sql.SQL(", ").join(sql.SQL("{0} = change.{0}").format(name) for name in changed),
        names=sql.SQL(", ").join(names),
        values=sql.SQL(", ").join(sql.SQL("change.{}").format(name) for name in names),
    )
