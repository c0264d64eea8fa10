"""
Did a trigger, or row-level security, make something else of the batch's changes?

Runs in the commit, after changes are applied. Invariant: a table without BEFORE triggers, and without a policy that is
in force for this role, is not read again.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.sink.target.applying.change_table import DELETED, ChangeTable

# Bits 0 and 1 of tgtype: FOR EACH ROW, BEFORE.
_HAS_ROW_TRIGGERS = sql.SQL("""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_trigger AS t
    WHERE (t.tgrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid OR t.tgrelid OPERATOR(pg_catalog.=) ANY (
        ARRAY(SELECT p.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree({oid}) AS p)))
    AND NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.<>) 'D'::pg_catalog."char"
    AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 3) OPERATOR(pg_catalog.=) 3
)
""")


def refuse_other_outcome(connection: psycopg.Connection, batch: ChangeTable, passed_over: int) -> None:
    """
    Refuse the batch if the table does not hold what its changes say.

    :param passed_over: how many changes left the stored row as it was.
    :raises TargetError: TRIGGER_CHANGED_ROWS, ROWS_NOT_WRITTEN.
    """
    row = connection.execute(_HAS_ROW_TRIGGERS.format(oid=batch.target.oid)).fetchone()
    has_triggers = bool(row and row[0])
    if not has_triggers and not batch.target.row_security:
        return
    found = connection.execute(_others(batch)).fetchone()
    others = found[0] if found else 0
    if others and has_triggers:
        raise TargetError(
            "TRIGGER_CHANGED_ROWS",
            f"A BEFORE trigger of {batch.target.qualified_name} made something else of {others} changes of the "
            "batch: rows were left out, or have another key or another value of the orderBy column.",
            NOTHING,
            "Let triggers leave keys and the orderBy column alone, or do in Spark what they do.",
        )
    if not has_triggers and not batch.upsert.newer_by and batch.upsert.existing.on_conflict != "ignore":
        # Then no stored row is newer, so that each must give way. (A trigger may keep one that would stay the same.)
        others = max(others, passed_over)
    if others:
        raise TargetError(
            "ROWS_NOT_WRITTEN",
            f"Row-level security of {batch.target.qualified_name} kept {others} changes of the batch from their rows: "
            "this role may not see them, or not change them.",
            NOTHING,
            "Give the role a policy by which it sees and changes all rows whose keys the changes have.",
        )


def _others(batch: ChangeTable) -> sql.Composed:
    """Counts the writes that are not there, and the deleted rows that are; a stored row may be newer than either."""
    newer_by = batch.upsert.newer_by
    than = sql.SQL("change.{0} OPERATOR(pg_catalog.{1}) target.{0}")
    as_new, newer = (than.format(sql.Identifier(newer_by or ""), sql.SQL(than_it)) for than_it in ("<=", "<"))
    written = batch.exists(as_new) if newer_by else batch.exists()
    # A row of the same order as the delete had to go.
    left = sql.SQL("{} AND NOT {}").format(batch.exists(), batch.exists(newer)) if newer_by else batch.exists()
    if batch.changes is None or batch.changes.deletes == "ignore":
        left = sql.SQL("false")
    elif batch.changes.deletes == "soft":
        # Marking a row gives it the order of the delete.
        left = sql.SQL("{} AND NOT {}").format(batch.exists(), batch.exists(as_new)) if newer_by else sql.SQL("false")
    # A key that is written again has a row.
    again = sql.SQL("EXISTS (SELECT FROM {} AS target WHERE NOT target.{} AND {})").format(
        batch.name, DELETED, batch.same_key()
    )
    left = sql.SQL("{} AND NOT {}").format(left, again)
    return sql.SQL(
        "SELECT pg_catalog.count(*) FROM {} AS change WHERE CASE WHEN change.{} THEN {} ELSE NOT {} END"
    ).format(batch.name, DELETED, left, written)
