"""
Describe the table of a batch's changes, and how its rows are joined with those of the target.

Pure; its SQL runs in the commit, on rows that were gathered. Invariant: keys are compared as the target's unique index
compares them. In addition to the target's columns, the table has some of its own, with names that no user's column has:

- ``pgonce: deleted``: whether the change deletes;
- ``pgonce: order``: what the changes are ordered by, if the target has no such column;
- ``pgonce: unread_N``: whether the source could not read column N, so that the stored value stays.

A change that moves a row is two of its rows, which have one place: a delete of the old key, and a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from psycopg import sql

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import Changes
from ..checked_table import ColumnPlan
from ..rows import GatheredRows
from ..table.catalogue import TargetColumn, TargetTable
from ..table.fit import Fit, Fitting
from .keys import ComparedUpsert
from .moved_rows import MovedRows
from .statements import key_order, lacks_order, not_older, unread_columns, value_as_assigned, value_if_read

DELETED = sql.Identifier("pgonce: deleted")
ORDER = "pgonce: order"


@dataclass(frozen=True)
class ChangeTable:
    """
    The changes that decide, in a temporary table called ``name``: of each key the last one, and at most one before it.

    ``plan`` says how the gathered columns get into the target; ``changes`` is None if no row deletes. ``moves`` is
    whether a change moves a row. Where changes are made one by one, ``name`` is a query in parentheses that gives one
    change, and ``place`` the number of its turn.
    """

    name: sql.Composable
    target: TargetTable
    plan: tuple[ColumnPlan, ...]
    columns: Sequence[EncodedColumn]
    upsert: ComparedUpsert
    changes: Changes | None
    moves: bool = False
    place: sql.Composable = field(default_factory=lambda: sql.SQL("ctid"))

    @property
    def moved(self) -> MovedRows:
        """Which of the gathered rows move a row; none, if deletes are ignored."""
        return MovedRows(self.columns if self.changes and self.changes.deletes != "ignore" else (), self.upsert)

    @cached_property
    def written(self) -> tuple[ColumnPlan, ...]:
        """How the columns of this table get into the target: they have its names, and nearly its types."""
        soft = self._soft_column
        names = [(c.target, c.full_type) for c in self.of_rows]
        names += [(soft.column_name, soft.full_type)] if soft else []
        return tuple(ColumnPlan(name, name, Fitting(Fit.EXACT), full_type) for name, full_type in names)

    @cached_property
    def unread(self) -> dict[str, sql.Identifier]:
        """Columns of the target whose stored value may stay, with the column that says where it does."""
        return {name: sql.Identifier(f"pgonce: unread {number}") for number, name in enumerate(self.is_unread)}

    @cached_property
    def is_unread(self) -> dict[str, sql.Composable]:
        """The same columns, with the condition that is true for a row of the source without the value."""
        return unread_columns(self.of_rows, self.columns, self.upsert)

    @property
    def deletes_softly(self) -> bool:
        """Whether a delete leaves its row, and marks it."""
        return bool(self.changes and self.changes.deletes == "soft")

    @property
    def puts_together(self) -> bool:
        """Whether a written row has values of several changes of its key."""
        return bool(self.unread or self.frozen)

    def facts(self, rows: GatheredRows) -> sql.Composed:
        """
        How many ``rows`` there are; of these, how many delete, lack a key, lack an order that is needed, move a row,
        may move one that is not known, and lack a value that the source could not read.
        """
        nulls = [sql.SQL("{} IS NULL").format(sql.Identifier(key.source)) for key in self.upsert.keys]
        unread = sql.SQL(" OR ").join([sql.SQL("false"), *self.is_unread.values()])
        conditions = (
            self.is_delete,
            sql.SQL(" OR ").join(nulls),
            lacks_order(self.upsert, self.columns),
            self.moved.is_moved,
            self.moved.is_unclear,
            unread,
        )
        counts = (sql.SQL("pg_catalog.count(*) FILTER (WHERE {})").format(condition) for condition in conditions)
        return sql.SQL("SELECT pg_catalog.count(*), {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(counts), rows.source, rows.wanted
        )

    def same_key(self) -> sql.Composable:
        """Whether a row ``target`` of the target has the key of ``change``, as the target's unique index sees it."""
        return sql.SQL(" AND ").join(self._equal(key.target) for key in self.upsert.keys)

    def exists(self, condition: sql.Composable | None = None) -> sql.Composable:
        """Whether the target has a row with the key of ``change`` (for which ``condition`` is true)."""
        further = sql.SQL(" AND {}").format(condition) if condition else sql.SQL("")
        return sql.SQL("EXISTS (SELECT FROM {} AS target WHERE {}{})").format(
            self.target.only, self.same_key(), further
        )

    def is_absent(self) -> sql.Composable:
        """Whether the target has no row with the key of ``change``; with an index, each is looked up there."""
        # OFFSET keeps Postgres from a join, for which it would read the whole table.
        alone = sql.SQL(" OFFSET 0" if self.upsert.finds_by_index else "")
        return sql.SQL("NOT EXISTS (SELECT FROM {} AS target WHERE {}{})").format(
            self.target.only, self.same_key(), alone
        )

    def not_older(self) -> sql.Composable:
        """Whether the stored row ``target`` gives way to ``change``."""
        return not_older(self.upsert, "change") if self.upsert.newer_by else sql.SQL("true")

    def keys_in_order(self, of: str | None = None) -> sql.Composable:
        """The keys to sort by, as columns of the relation ``of``: all that lock rows lock them in this order."""
        return key_order(self.upsert, of)

    @cached_property
    def reduced_upsert(self) -> ComparedUpsert:
        """How the rows of this table, each with another key, are written."""
        own = {column.target: column for column in self.written}
        order, existing, soft = self.upsert.order_by, self.upsert.existing, self._soft_column
        if existing.update_columns and soft:
            # A key that comes back is no longer deleted, so each update also sets the soft column.
            existing = replace(existing, update_columns=(*existing.update_columns, soft.column_name))
        return replace(
            self.upsert,
            keys=tuple(own[key.target] for key in self.upsert.keys),
            order_by=own.get(order.target) if order else None,
            existing=existing,
            # The keys have nearly the target's types here, which is not enough for a MERGE if they needed a cast.
            by_equality=self.upsert.finds_by_index,
            is_one_each=True,
        )

    @property
    def frozen(self) -> list[str]:
        """Columns that a row has from its first write, because updateColumns does not name them."""
        if not self.upsert.existing.update_columns:
            return []
        changed = self.reduced_upsert.changed(self.written)
        keys = {key.target for key in self.upsert.keys}
        return [column.target for column in self.of_rows if column.target not in (*changed, *keys)]

    @property
    def is_delete(self) -> sql.Composable:
        """Whether a row of the source deletes."""
        return sql.Identifier(self.changes.deleted) if self.changes else sql.SQL("false")

    @property
    def of_rows(self) -> list[ColumnPlan]:
        """The columns whose values come from the rows."""
        soft = self._soft_column
        return [column for column in self.plan if soft is None or column.target != soft.column_name]

    @cached_property
    def order_column(self) -> str | None:
        """The column of this table that says which change is the later one."""
        order = self.upsert.order_by
        if order is None:
            return None
        return order.target if any(order == column for column in self.plan) else ORDER

    def values(self) -> list[sql.Composable]:
        """What a SELECT from the source fills this table with, except the columns that say what was not read."""
        named = sql.SQL("{} AS {}")
        values: list[sql.Composable] = [
            named.format(self._value(column), sql.Identifier(column.target)) for column in self.of_rows
        ]
        if self.order_column == ORDER and self.upsert.order_by:
            values.append(named.format(sql.Identifier(self.upsert.order_by.source), sql.Identifier(ORDER)))
        values.append(named.format(self.is_delete, DELETED))
        soft = self._soft_column
        if soft:
            # A key that comes back is no longer deleted.
            alive = sql.SQL("false" if soft.base_type == "boolean" else f"NULL::{soft.base_type}")
            values.append(named.format(alive, sql.Identifier(soft.column_name)))
        return values

    @property
    def _soft_column(self) -> TargetColumn | None:
        """The column that a soft delete sets; what the rows bring for it is not used."""
        name = self.changes.soft_column if self.changes else None
        return next((c for c in self.target.columns if c.column_name == name), None)

    def _equal(self, name: str) -> sql.Composable:
        comparison = self.upsert.comparisons.get(name)
        collation = comparison.collation if comparison else None
        collate = sql.SQL(" COLLATE {}").format(collation) if collation else sql.SQL("")
        cast = next((column.compared_as for column in self.target.columns if column.column_name == name), sql.SQL(""))
        return sql.SQL("target.{0}{1} {2} change.{0}{3}").format(
            sql.Identifier(name), cast, self.upsert.equal(name), collate
        )

    def _value(self, column: ColumnPlan) -> sql.Composable:
        if column.target not in self.unread:
            return value_as_assigned(column, self.upsert)
        return value_if_read(column, self.is_unread[column.target])
