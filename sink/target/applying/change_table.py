"""
Which changes of each key decide what a batch leaves of it?

Pure; runs in the commit, for rows that were gathered. Invariant: which change of a key is the last does not depend on
how Spark cut the stream into batches: what a batch leaves in the table is what its changes would leave one by one.

The table of changes has the target's columns, and some of its own:

- ``pgonce_deleted``: whether the change deletes;
- ``pgonce_order``: what the changes are ordered by, if the target has no such column;
- ``pgonce_unread_N``: whether the source could not read column N, so that the stored value stays;
- ``pgonce_new``: whether the row was inserted, where updates come later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from psycopg import sql

from pgonce.sink.by_key import DELETED_COLUMN, Changes
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.target.catalogue import TargetColumn, TargetTable
from pgonce.sink.target.checked_table import ColumnPlan
from pgonce.sink.target.fitting.fit import Fit, Fitting
from pgonce.sink.target.keys.key_plan import ComparedUpsert
from pgonce.sink.target.statements import (
    is_unread,
    key_order,
    not_older,
    unread_columns,
    value_as_assigned,
    value_if_read,
)

DELETED = sql.Identifier(DELETED_COLUMN)
NEW = sql.Identifier("pgonce_new")
_ORDER = "pgonce_order"
_MODIFIER = re.compile(r"\(.*?\)")


@dataclass(frozen=True)
class ChangeTable:
    """
    The changes that decide, in a temporary table called ``name``: of each key the last one, and at most one before it.

    ``plan`` says how the gathered columns get into the target; ``changes`` is None if no row deletes.
    """

    name: sql.Identifier
    target: TargetTable
    plan: tuple[ColumnPlan, ...]
    columns: Sequence[EncodedColumn]
    upsert: ComparedUpsert
    changes: Changes | None

    @cached_property
    def written(self) -> tuple[ColumnPlan, ...]:
        """How the columns of this table get into the target: they have its names, and nearly its types."""
        soft = self._soft_column
        names = [(c.target, c.full_type) for c in self._of_rows]
        names += [(soft.column_name, soft.full_type)] if soft else []
        return tuple(ColumnPlan(name, name, Fitting(Fit.EXACT), full_type) for name, full_type in names)

    @cached_property
    def unread(self) -> dict[str, sql.Identifier]:
        """Columns of the target whose stored value may stay, with the column that says where it does."""
        found = unread_columns(self._of_rows, self.columns, self.upsert)
        return {column.target: sql.Identifier(f"pgonce_unread_{number}") for number, column in enumerate(found)}

    def create(self, source: sql.Identifier, wanted: sql.Composable, *, has_deletes: bool) -> sql.Composed:
        """The statement that fills this table from the wanted rows of ``source``; its answer counts the changes."""
        # Without an order, rows of one key are refused, and each change is the last one.
        is_last_enough = not self.unread and (self.upsert.order_by is None or not (self._frozen or has_deletes))
        if is_last_enough:
            return self._created(self._last_of_each(source, wanted))
        return self._created(self._by_windows(sql.SQL("({})").format(self._all(source, wanted))))

    @property
    def puts_together(self) -> bool:
        """Whether a written row has values of several changes of its key."""
        return bool(self.unread or self._frozen)

    def create_of_all(self, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
        """The statement that fills this table with every wanted row of ``source``, several of a key among them."""
        return self._created(self._all(source, wanted))

    def create_from(self, rows: ChangeTable) -> sql.Composed:
        """The statement that fills this table from one that :meth:`create_of_all` has filled."""
        return self._created(self._by_windows(rows.name))

    def _created(self, query: sql.Composable) -> sql.Composed:
        return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(self.name, query)

    def facts(self, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
        """How many rows are wanted; of these, how many delete, lack a key, and lack an order that is needed."""
        nulls = [sql.SQL("{} IS NULL").format(sql.Identifier(key.source)) for key in self.upsert.keys]
        order = self.upsert.order_by if self.upsert.newer_by else None
        return sql.SQL(
            "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE {}), pg_catalog.count(*) FILTER (WHERE {}), "
            "pg_catalog.count(*) FILTER (WHERE {}) FROM {} WHERE {}"
        ).format(
            self._deletes,
            sql.SQL(" OR ").join(nulls),
            sql.SQL("{} IS NULL").format(sql.Identifier(order.source)) if order else sql.SQL("false"),
            source,
            wanted,
        )

    def same_key(self, change: str = "change") -> sql.Composable:
        """Whether a row ``target`` of the target has the key of ``change``, as the target's unique index sees it."""
        return sql.SQL(" AND ").join(self._equal(key.target, change) for key in self.upsert.keys)

    @property
    def only_target(self) -> sql.Composable:
        """The target in a FROM clause: ON CONFLICT does not look into tables that inherit, but partitions are such."""
        return sql.SQL("ONLY {}" if self.target.kind == "r" else "{}").format(self.target.identifier)

    def exists(self, condition: sql.Composable | None = None) -> sql.Composable:
        """Whether the target has a row of the key of ``change`` (of which ``condition`` is true)."""
        further = sql.SQL(" AND {}").format(condition) if condition else sql.SQL("")
        return sql.SQL("EXISTS (SELECT FROM {} AS target WHERE {}{})").format(
            self.only_target, self.same_key(), further
        )

    def not_older(self) -> sql.Composable:
        """Whether the stored row ``target`` gives way to ``change``."""
        return not_older(self.upsert, "change") if self.upsert.newer_by else sql.SQL("true")

    def keys_in_order(self, of: str | None = None) -> sql.Composable:
        """The keys to sort by, as columns of the relation ``of``: all that lock rows lock them in this order."""
        return key_order(self.upsert, of)

    @cached_property
    def reduced_upsert(self) -> ComparedUpsert:
        """How the rows of this table are written, of which each has another key."""
        own = {column.target: column for column in self.written}
        order, existing, soft = self.upsert.order_by, self.upsert.existing, self._soft_column
        if existing.update_columns and soft:
            # A key that comes back is no longer deleted, whatever else may change.
            existing = replace(existing, update_columns=(*existing.update_columns, soft.column_name))
        return replace(
            self.upsert,
            keys=tuple(own[key.target] for key in self.upsert.keys),
            order_by=own.get(order.target) if order else None,
            existing=existing,
            is_one_each=True,
        )

    def _equal(self, name: str, change: str) -> sql.Composable:
        comparison = self.upsert.comparisons.get(name)
        equal = comparison.equal if comparison and comparison.equal else sql.SQL("OPERATOR(pg_catalog.=)")
        collation = comparison.collation if comparison else None
        collate = sql.SQL(" COLLATE {}").format(collation) if collation else sql.SQL("")
        return sql.SQL("target.{0} {1} {2}.{0}{3}").format(sql.Identifier(name), equal, sql.Identifier(change), collate)

    @property
    def _frozen(self) -> list[str]:
        """Columns that a row has from its first write, because updateColumns does not name them."""
        if not self.upsert.existing.update_columns:
            return []
        changed = self.reduced_upsert.changed(self.written)
        keys = {key.target for key in self.upsert.keys}
        return [column.target for column in self._of_rows if column.target not in (*changed, *keys)]

    @property
    def _deletes(self) -> sql.Composable:
        return sql.Identifier(self.changes.deleted) if self.changes else sql.SQL("false")

    @property
    def _soft_column(self) -> TargetColumn | None:
        """The column that a soft delete sets; what the rows bring for it is not used."""
        name = self.changes.soft_column if self.changes else None
        return next((c for c in self.target.columns if c.column_name == name), None)

    @property
    def _of_rows(self) -> list[ColumnPlan]:
        """The columns whose values come from the rows."""
        soft = self._soft_column
        return [column for column in self.plan if soft is None or column.target != soft.column_name]

    @cached_property
    def _order(self) -> str | None:
        """The column of this table that says which change is the later one."""
        order = self.upsert.order_by
        if order is None:
            return None
        return order.target if any(order == column for column in self.plan) else _ORDER

    def _values(self) -> list[sql.Composable]:
        named = sql.SQL("{} AS {}")
        values = [named.format(self._value(column), sql.Identifier(column.target)) for column in self._of_rows]
        if self._order == _ORDER and self.upsert.order_by:
            values.append(named.format(sql.Identifier(self.upsert.order_by.source), sql.Identifier(_ORDER)))
        values.append(named.format(self._deletes, DELETED))
        soft = self._soft_column
        if soft:
            # A key that comes back is no longer deleted.
            alive = sql.SQL("false" if soft.base_type == "boolean" else f"NULL::{soft.base_type}")
            values.append(named.format(alive, sql.Identifier(soft.column_name)))
        return [*values, sql.SQL("false AS pgonce_new")]

    def _value(self, column: ColumnPlan) -> sql.Composable:
        if column.target not in self.unread:
            value = value_as_assigned(column, self.upsert)
            is_compared = column in (*self.upsert.keys, self.upsert.order_by)
            if is_compared and column.fitting.fit is Fit.CAST and not column.fitting.cast_type:
                # So that a value which the target cannot hold is refused in a delete too, and is remembered in one form
                # whatever types a frame has. Such a type is a number or a time, which SQL itself names; without its
                # modifier, which would round.
                value = sql.SQL("{}::{}").format(value, sql.SQL(_MODIFIER.sub("", column.full_type)))
            return value
        return value_if_read(column, self.upsert.existing.keep_where)

    def _wanted(self, wanted: sql.Composable) -> sql.Composable:
        if self.changes is None or self.changes.deletes != "ignore":
            return wanted
        # Before the last change of a key is looked for: the row stays as the last write before the delete left it.
        return sql.SQL("({}) AND NOT {}").format(wanted, self._deletes)

    def _distinct(self) -> sql.Composable:
        return sql.SQL(", ").join(sql.Identifier(key.target) for key in self.upsert.keys)

    def _last_of_each(self, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
        last_first = sql.SQL(", {} DESC NULLS LAST").format(sql.Identifier(self._order)) if self._order else sql.SQL("")
        return sql.SQL("SELECT DISTINCT ON ({}) {} FROM {} WHERE {} ORDER BY {}{}, ctid DESC").format(
            self._distinct(),
            sql.SQL(", ").join(self._values()),
            source,
            self._wanted(wanted),
            self.keys_in_order(),
            last_first,
        )

    def _all(self, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
        unread = [
            sql.SQL("{} AS {}").format(is_unread(column, self.upsert.existing.keep_where), self.unread[column.target])
            for column in self._of_rows
            if column.target in self.unread
        ]
        return sql.SQL("SELECT {}, ctid AS pgonce_place FROM {} WHERE {}").format(
            sql.SQL(", ").join([*self._values(), *unread]), source, self._wanted(wanted)
        )

    def _by_windows(self, rows: sql.Composable) -> sql.Composed:
        """
        The same where an earlier change of a key counts too, so that the batch leaves what its changes leave in turn.

        A row that was deleted and written again is deleted first: it loses what others put into it. A soft delete
        leaves the values of the last write before it. A value that was not read is that of the last write which has
        one, and a column that may not change has that of the first write, each since the key was last deleted.
        """
        is_soft = bool(self.changes and self.changes.deletes == "soft")
        keys = self._distinct()
        # How many deletes of the key come later; a soft delete takes no value away.
        counted = "pg_catalog.count(*) FILTER (WHERE {}) OVER (newest ROWS UNBOUNDED PRECEDING)"
        ranked = sql.SQL(
            "SELECT *, pg_catalog.first_value({deleted}) OVER newest AS pgonce_ends, {later} AS pgonce_later, "
            "pg_catalog.row_number() OVER newest AS pgonce_rank FROM {rows} AS given "
            "WINDOW newest AS (PARTITION BY {keys} ORDER BY {last_first})"
        ).format(
            deleted=DELETED,
            later=sql.SQL("0") if is_soft else sql.SQL(counted).format(DELETED),
            rows=rows,
            keys=keys,
            last_first=self._last_first(),
        )
        gone = sql.SQL("{} OR pgonce_later OPERATOR(pg_catalog.<>) 0").format(DELETED)
        window = sql.SQL("(PARTITION BY {} ORDER BY {}, pgonce_rank {})")
        first = window.format(keys, gone, sql.SQL("DESC"))
        known = [
            sql.SQL("pg_catalog.first_value({0}) OVER {1} AS {0}").format(sql.Identifier(name), first)
            for name in self._frozen
        ]
        for name, unread in self.unread.items():
            useless = sql.SQL("({} OR {})").format(unread, gone)
            last = window.format(keys, useless, sql.SQL("ASC"))
            known.append(sql.SQL("pg_catalog.first_value({}) OVER {} AS {}").format(useless, last, unread))
            if name not in self._frozen:
                value = sql.SQL("pg_catalog.first_value({}) OVER {}").format(sql.Identifier(name), last)
                known.append(
                    sql.SQL("CASE WHEN pg_catalog.first_value({}) OVER {} THEN NULL ELSE {} END AS {}").format(
                        useless, last, value, sql.Identifier(name)
                    )
                )
        rest = [sql.Identifier(c.target) for c in self.written if c.target not in {*self.unread, *self._frozen}]
        rest += [sql.Identifier(_ORDER)] if self._order == _ORDER else []
        chosen = sql.SQL("SELECT {} FROM ({}) AS ranked").format(
            sql.SQL(", ").join([*rest, DELETED, NEW, sql.SQL("pgonce_ends, pgonce_rank"), *known]), ranked
        )
        # Of each key the last write and the last delete, but one of them only if it is the last change: a write before
        # a delete that removes the row, or a soft delete before a write.
        return sql.SQL(
            "SELECT DISTINCT ON ({keys}, {deleted}) * FROM ({chosen}) AS chosen "
            "WHERE pgonce_ends OPERATOR(pg_catalog.=) {deleted} OR {earlier} "
            "ORDER BY {in_order}, {deleted}, pgonce_rank"
        ).format(
            keys=keys,
            deleted=DELETED,
            chosen=chosen,
            earlier=sql.SQL("NOT {}" if is_soft else "{}").format(DELETED),
            in_order=self.keys_in_order(),
        )

    def _last_first(self) -> sql.Composable:
        order = sql.SQL("{} DESC NULLS LAST, ").format(sql.Identifier(self._order)) if self._order else sql.SQL("")
        # A version of a table that deletes a row and inserts it again has replaced it.
        replaces = self.changes is not None and self.changes.feed in ("delta", "spark")
        return sql.SQL("{}{}pgonce_place DESC").format(
            order, sql.SQL("{}, ").format(DELETED) if replaces else sql.SQL("")
        )
