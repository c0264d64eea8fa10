"""
Delete and write the rows of a batch of changes, when each key has one.

Runs in the commit, after the stored rows are locked. Invariant: a stored row that is newer stays, and so does a stored
value that the source could not read; a delete is counted as deleted, as not found, or as passed over, and where only
newer rows are written, it is remembered.

Locks, deletes and writes each look up all rows. A large batch looks them up once, in one ``MERGE``, but only if that
has the same effects as deletes and then writes: all values of a row come from the batch, and nothing refers to the
target's rows. Where only newer rows are written, ``MERGE`` compares each row when it has locked it (ADR 41).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import bad_target

from ...options.destination import Changes
from ..rows import RELEASE, GatheredRows
from ..table.catalogue import TargetTable
from ..written import Upsert
from .change_table import DELETED, ChangeTable
from .deciding_changes import create_deciding
from .keys import execute_joined
from .tombstone_sets import Tombstones
from .tombstones import pass_over_in_tx, remember_in_tx
from .upsert import is_large, may_merge, merged, write_by_key_in_tx

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
        deleted = delete_rows_in_tx(connection, batch)
    except (psycopg.errors.ForeignKeyViolation, psycopg.errors.RestrictViolation) as error:
        raise StillReferredToError(*error.args, info=error.pgresult) from None
    counts["deleted"] = deleted
    # What was deleted is absent now, and so is what was not found.
    counts["not_found"] = _absent(connection, batch, deletes, deleted, traced=traced) - deleted
    counts["passed_over"] += deletes - deleted - counts["not_found"]


def delete_rows_in_tx(connection: psycopg.Connection, batch: ChangeTable) -> int:
    """Remove the rows of the batch's deletes that are there; return how many were."""
    return execute_joined(connection, delete_statement(batch), batch.upsert).rowcount


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


# Types whose equal values are the same: 1 and 1.00 are not, and an update of a numeric key would leave the stored one.
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


# Only then MERGE can say how many of the rows that it changed are deleted ones, where stored rows may be newer.
_FIRST_RETURNING = 170000


def may_merge_changes(connection: psycopg.Connection, batch: ChangeTable, rows: int) -> bool:
    """Whether one statement may do all, with the last change of each key alone."""
    if not is_large(rows) or batch.changes is None or batch.changes.deletes != "hard":
        return False
    if batch.moves or not batch.upsert.finds_by_index:
        return False
    if batch.upsert.newer_by and connection.info.server_version < _FIRST_RETURNING:
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
    connection: psycopg.Connection,
    batch: ChangeTable,
    rows: GatheredRows,
    count: int,
    tombstones: Sequence[Tombstones],
) -> dict[str, int] | None:
    """
    Write and delete what ``rows`` say, of which there are ``count``; return how many came to which stage.

    None if nothing was written, because other statements are needed, or can tell better what is wrong.
    """
    create = create_deciding(batch, rows, deletes_matter=False)
    kept = connection.execute(create, prepare=False).rowcount
    is_doubled = kept < count and batch.upsert.order_by is None
    left = kept - pass_over_in_tx(connection, batch, tombstones, kept)
    deletes = count_deletes_in_tx(connection, batch)
    changed = None if is_doubled else _merged(connection, batch, left - deletes)
    if changed is None:
        return None
    written, deleted = changed
    absent = deletes
    if batch.upsert.newer_by and deletes:
        absent = _absent(connection, batch, deletes, deleted, traced=True)
    # MERGE passes a row that another session has deleted and inserted again while it waited for that session.
    may_be_left = absent < deletes if batch.upsert.newer_by else deleted < deletes
    again = delete_rows_in_tx(connection, batch) if may_be_left else 0
    if again and batch.upsert.newer_by:
        absent = _absent(connection, batch, deletes, deleted, traced=True)
    connection.execute(RELEASE)
    return {
        "written": written,
        "deleted": deleted + again,
        "superseded": count - kept,
        "not_found": absent - deleted - again,
        "passed_over": kept - written - absent,
    }


def _merged(connection: psycopg.Connection, batch: ChangeTable, writes: int) -> tuple[int, int] | None:
    """Run the ``MERGE`` of a batch that has so many writes; how many rows it wrote, and how many it deleted."""
    if not batch.upsert.newer_by:
        done = merged(connection, _merge(batch))
        # Each write inserts a row or updates one, because no stored row is newer.
        return None if done is None else (writes, done.rowcount - writes)
    counted = sql.SQL(
        "WITH merged AS ({} RETURNING change.{} AS is_delete) SELECT pg_catalog.count(*) FILTER (WHERE NOT is_delete), "
        "pg_catalog.count(*) FILTER (WHERE is_delete) FROM merged"
    )
    done = merged(connection, counted.format(_merge(batch), DELETED))
    return done.fetchone() if done else None


def _merge(batch: ChangeTable) -> sql.Composed:
    names = [sql.Identifier(column.target) for column in batch.written]
    changed = map(sql.Identifier, batch.reduced_upsert.changed(batch.written))
    return sql.SQL(
        "MERGE INTO ONLY {target} AS target "
        "USING (SELECT * FROM {changes} ORDER BY {in_order}) AS change ON {same_key} "
        "WHEN MATCHED AND change.{deleted}{newer} THEN DELETE "
        "WHEN MATCHED AND NOT change.{deleted}{newer} THEN UPDATE SET {sets} "
        "WHEN NOT MATCHED AND NOT change.{deleted} THEN INSERT ({names}) VALUES ({values})"
    ).format(
        target=batch.target.identifier,
        changes=batch.name,
        in_order=batch.keys_in_order(),
        same_key=batch.same_key(),
        deleted=DELETED,
        newer=sql.SQL(" AND {}").format(batch.not_older()) if batch.upsert.newer_by else sql.SQL(""),
        sets=sql.SQL(", ").join(sql.SQL("{0} = change.{0}").format(name) for name in changed),
        names=sql.SQL(", ").join(names),
        values=sql.SQL(", ").join(sql.SQL("change.{}").format(name) for name in names),
    )
