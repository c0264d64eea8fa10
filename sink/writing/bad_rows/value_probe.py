"""
Tell whether the target's own types refuse a row, and which column does.

Made in the commit, for rows that are written in their turn. Invariant: what is tried here is assigned to a temporary
table that has the target's columns, and never to the target.

Postgres names no table where it refuses a value, so a trigger may have raised the error. The row is bad in itself only
if the temporary table, which has no triggers, refuses it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ..by_key.statements import unread_columns, value_if_read
from ..checked_table import ColumnPlan
from ..table.fit import Fit
from ..written import Written

# The role may only write to the target, or that has a CHECK that looks at whole rows, which LIKE does not take.
_CANNOT_BE_MADE = (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported)


@dataclass(frozen=True)
class ValueProbe:
    """
    The statements that assign one row of ``rows`` to ``table``: the row for which ``condition`` is true.

    They are texts for PL/pgSQL; ``condition`` has the parameter $1. ``only`` are the columns that are assigned, if
    these are not all whose values come from the rows.
    """

    table: sql.Identifier
    written: Written
    rows: sql.Identifier
    condition: sql.Composable
    only: Sequence[ColumnPlan] | None = None

    @property
    def of_write(self) -> sql.Composable:
        """Assigns all values of a row."""
        return self.assigned(self.columns)

    @property
    def of_delete(self) -> sql.Composable:
        """Assigns what a delete needs: its key and its order."""
        upsert = self.written.upsert
        compared = () if upsert is None else (*upsert.keys, upsert.order_by)
        return self.assigned([column for column in self.columns if column in compared])

    @cached_property
    def suspects(self) -> list[ColumnPlan]:
        """The columns that may refuse a value: not those whose type is just that of the value, without a modifier."""
        domains = {column.column_name for column in self.written.table.columns if column.is_domain}
        return [
            column
            for column in self.columns
            if column.fitting.fit is not Fit.EXACT or "(" in column.full_type or column.target in domains
        ]

    @property
    def of_each(self) -> list[sql.Composable]:
        """For each of the suspects what assigns its value alone."""
        return [self.assigned([column]) for column in self.suspects]

    @property
    def columns(self) -> Sequence[ColumnPlan]:
        """Those whose values come from the rows."""
        if self.only is not None:
            return self.only
        soft = self.written.changes and self.written.changes.soft_column
        return [column for column in self.written.plan if column.target != soft]

    def assigned(self, columns: Sequence[ColumnPlan]) -> sql.Composable:
        """What assigns the values of these columns."""
        if not columns:
            return sql.SQL("SELECT")
        unread = unread_columns(columns, self.written.columns, self.written.upsert)
        return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {}").format(
            self.table,
            sql.SQL(", ").join(sql.Identifier(column.target) for column in columns),
            sql.SQL(", ").join(
                value_if_read(column, unread[column.target]) if column.target in unread else column.value
                for column in columns
            ),
            self.rows,
            self.condition,
        )


def is_cast(column: ColumnPlan) -> bool:
    """Whether the column takes its values only by a cast, which may fail."""
    return column.fitting.fit is Fit.CAST


def made_in_tx(
    connection: psycopg.Connection, written: Written, table: sql.Identifier, rows: sql.Identifier, at: sql.Composable
) -> ValueProbe | None:
    """The probe, with its table; None if this role cannot make it, so that no value is known to be bad in itself."""
    probe = ValueProbe(table, written, rows, at)
    create = sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING GENERATED) ON COMMIT DROP")
    try:
        with connection.transaction():
            connection.execute(create.format(table, written.table.identifier))
            # They have a default in the target, or are set by a soft delete: nothing is known here of what a CHECK, a
            # generated column or a domain says of them, so these go too.
            stored = search_path.execute_in_tx(connection, sql.SQL(_STORED).format(table.as_string(None))).fetchall()
            brought = {column.target for column in probe.columns}
            gone = [sql.Identifier(name) for (name,) in stored if name not in brought]
            if gone:
                drop = sql.SQL(", ").join(sql.SQL("DROP COLUMN IF EXISTS {} CASCADE").format(name) for name in gone)
                connection.execute(sql.SQL("ALTER TABLE {} {}").format(table, drop))
    except _CANNOT_BE_MADE:
        return None
    return probe


_STORED = """
SELECT attname FROM pg_attribute
WHERE attrelid = {}::regclass AND attnum > 0 AND attgenerated = '' AND NOT attisdropped
"""
