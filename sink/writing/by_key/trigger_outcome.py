"""
Check whether a trigger, or row-level security, altered or prevented the batch's changes.

Runs in the commit, after changes are applied. Invariant: a table without BEFORE triggers, and without a policy that is
in force for this role, is not read again.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target

from ..table.fit import qualified
from .change_table import DELETED, ChangeTable

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


class TriggerOutcome:
    """What the table holds in the end, compared with what the changes of ``batch`` say."""

    def __init__(self, connection: psycopg.Connection, batch: ChangeTable) -> None:
        self._connection = connection
        self._batch = batch
        row = connection.execute(_HAS_ROW_TRIGGERS.format(oid=batch.target.oid)).fetchone()
        self._has_triggers = bool(row and row[0])

    def refuse_another(self, passed_over: int) -> None:
        """
        Refuse the batch if the table does not hold what its changes say.

        :param passed_over: how many changes left the stored row as it was.
        :raises TargetError: TRIGGER_CHANGED_ROWS, ROWS_NOT_WRITTEN.
        """
        if not self.is_checked:
            return
        others = self._count(self.others(self._batch))
        if self.gives_way:
            others = max(others, passed_over)
        if others:
            raise self.error(f"{others} changes")

    @property
    def is_checked(self) -> bool:
        """Whether anything may have changed the result."""
        return self._has_triggers or self._batch.target.row_security

    @property
    def gives_way(self) -> bool:
        """Whether each stored row must give way, so that each write counts: none is newer, and there is an update."""
        batch = self._batch
        gives_way = not batch.upsert.newer_by and not batch.upsert.existing.stored_stays
        return gives_way and bool(batch.reduced_upsert.changed(batch.written))

    def others(self, batch: ChangeTable) -> sql.Composed:
        """The query that counts the changes of ``batch`` whose result is another one."""
        return _others(batch, has_triggers=self._has_triggers)

    def error(self, what: str) -> TargetError:
        """The error; ``what`` says what was changed."""
        table = self._batch.target
        if self._has_triggers:
            or_policies = ", or row-level security," if table.row_security else ""
            return bad_target(
                "TRIGGER_CHANGED_ROWS",
                f"A BEFORE trigger{or_policies} of {table.qualified_name} changed the result of {what} of the batch: "
                "it left rows out, or gave them another key or another value in the orderBy column.",
                "Let triggers leave keys and the orderBy column alone, or do in Spark what they do. Drop a trigger "
                "that suppresses updates, or set onlyNewer: with it, updates that change nothing may be suppressed.",
            )
        return bad_target(
            "ROWS_NOT_WRITTEN",
            f"Row-level security of {table.qualified_name} prevented {what} of the batch: this role may not see the "
            "rows, or may not change them.",
            "Give the role policies by which it may see and change all rows that have these keys.",
        )

    def _count(self, question: sql.Composed) -> int:
        row = self._connection.execute(question, prepare=False).fetchone()
        return row[0] if row else 0


def _same(batch: ChangeTable, name: str) -> sql.Composable:
    """Whether ``target`` holds the value of ``change``, as text, because a type need not have an equality."""
    full_type = next(qualified(c.base_type, c.full_type) for c in batch.target.columns if c.column_name == name)
    # Types and operators are qualified, because the user's search_path is in force.
    return sql.SQL(
        "COALESCE(target.{0}::pg_catalog.text OPERATOR(pg_catalog.=) change.{0}::{1}::pg_catalog.text, "
        "target.{0} IS NULL AND change.{0} IS NULL)"
    ).format(sql.Identifier(name), sql.SQL(full_type))


def _others(batch: ChangeTable, *, has_triggers: bool) -> sql.Composed:
    """Counts the writes that are not there, and the deleted rows that are; a stored row may be newer than either."""
    newer_by = batch.upsert.newer_by
    than = sql.SQL("(change.{0} IS NULL OR change.{0} OPERATOR(pg_catalog.{1}) target.{0})")
    as_new, newer = (than.format(sql.Identifier(newer_by or ""), sql.SQL(than_it)) for than_it in ("<=", "<"))
    written = batch.exists(as_new if newer_by else _has_its_order(batch) if has_triggers else None)
    # A row of the same order as the delete had to go, but not for the delete of a dead letter.
    newer = as_new if batch.upsert.of_letters else newer
    left = sql.SQL("{} AND NOT {}").format(batch.exists(), batch.exists(newer)) if newer_by else batch.exists()
    if batch.changes is None or batch.changes.deletes == "ignore":
        left = sql.SQL("false")
    elif batch.changes.soft_column:
        # Marking a row gives it the order of the delete.
        marked = sql.SQL(
            "target.{} IS NOT NULL AND target.{}::pg_catalog.text OPERATOR(pg_catalog.<>) ALL (ARRAY['f', 'false'])"
        ).format(*[sql.Identifier(batch.changes.soft_column)] * 2)
        left = sql.SQL("{} AND NOT {}").format(batch.exists(), batch.exists(as_new if newer_by else marked))
    # A key that is written again has a row.
    again = sql.SQL("EXISTS (SELECT FROM {} AS target WHERE NOT target.{} AND {})").format(
        batch.name, DELETED, batch.same_key()
    )
    left = sql.SQL("{} AND NOT {}").format(left, again)
    return sql.SQL(
        "SELECT pg_catalog.count(*) FROM {} AS change WHERE CASE WHEN change.{} THEN {} ELSE NOT {} END"
    ).format(batch.name, DELETED, left, written)


def _has_its_order(batch: ChangeTable) -> sql.Composable | None:
    """Whether ``target`` has the order of ``change``; None if a write does not give it to the row."""
    order = batch.upsert.order_by
    if order is None or order.target not in batch.reduced_upsert.changed(batch.written):
        return None
    return _same(batch, order.target)
