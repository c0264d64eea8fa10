"""
The SQL that moves gathered rows into the target: append, upsert, complete.

Pure; runs in the commit. Invariant: identifiers are composed, never formatted, and an upsert either has one row for
each key or is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.sink.settings import Destination
from pgonce.sink.target.catalogue import TargetTable
from pgonce.sink.target.checked_table import ColumnPlan


@dataclass(frozen=True)
class Comparison:
    """How a column's values are compared if they do not follow the default of their type: collation, operator ``<``."""

    collation: sql.Identifier | None
    less: sql.Composable | None


@dataclass(frozen=True)
class Upsert:
    """The columns that tell rows apart, and the one that says which of two rows of a key is the newer."""

    keys: tuple[ColumnPlan, ...]
    order_by: ColumnPlan | None


@dataclass(frozen=True)
class ComparedUpsert(Upsert):
    """
    An upsert into a table whose catalogue has been read.

    ``comparisons`` are the target's, by column name; columns that are not named follow the default of their type.
    """

    comparisons: Mapping[str, Comparison]


def plan_upsert(destination: Destination, plan: Sequence[ColumnPlan]) -> Upsert | None:
    """
    The upsert that ``destination`` asks for, or None for the other modes.

    :raises TargetError: if keys or orderBy name a column that the rows do not have.
    """
    if destination.mode != "upsert":
        return None
    return Upsert(
        keys=tuple(_find(key, plan) for key in destination.keys),
        order_by=_find(destination.order_by, plan) if destination.order_by else None,
    )


def _find(name: str, plan: Sequence[ColumnPlan]) -> ColumnPlan:
    exact = [column for column in plan if name in (column.source, column.target)]
    found = exact or [column for column in plan if column.source.lower() == name.lower()]
    if len(found) != 1:
        raise TargetError(
            "KEY_UNKNOWN",
            f"keys or orderBy name a column {name!r}, which the rows do not have.",
            NOTHING,
            f"The rows have {', '.join(column.source for column in plan)}.",
        )
    return found[0]


def insert_statement(
    source: sql.Identifier,
    wanted: sql.Composable,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: ComparedUpsert | None = None,
) -> sql.Composed:
    """``INSERT ... SELECT`` of the wanted rows of ``source``, by key if ``upsert`` is given."""
    # Under another name, because a table may be called excluded.
    return sql.SQL("INSERT INTO {} AS target ({}) {}{}").format(
        table.identifier,
        _names(column.target for column in plan),
        _selected(source, wanted, plan, upsert),
        sql.SQL("") if upsert is None else _on_conflict(upsert, plan),
    )


def merge_statement(
    source: sql.Identifier,
    wanted: sql.Composable,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: ComparedUpsert,
    bounds: tuple[int, int] | None,
) -> sql.Composed:
    """
    ``MERGE`` of the wanted rows of ``source`` by key; there must be columns that are not keys.

    :param bounds: least and greatest value of the first key, both inclusive: the index need not be read beyond.
    """
    same = sql.SQL("target.{0} OPERATOR(pg_catalog.=) source.{0}")
    conditions: list[sql.Composable] = [same.format(sql.Identifier(key.target)) for key in upsert.keys]
    if bounds is not None:
        first = sql.Identifier(upsert.keys[0].target)
        least, greatest = map(sql.Literal, bounds)
        conditions.append(sql.SQL("target.{} OPERATOR(pg_catalog.>=) {}").format(first, least))
        conditions.append(sql.SQL("target.{} OPERATOR(pg_catalog.<=) {}").format(first, greatest))
    assignments = (sql.SQL("{0} = source.{0}").format(sql.Identifier(name)) for name in _rest(upsert, plan))
    # ONLY, because ON CONFLICT does not look into tables that inherit either.
    return sql.SQL(
        "MERGE INTO ONLY {} AS target USING ({}) AS source ON {} WHEN MATCHED THEN UPDATE SET {} "
        "WHEN NOT MATCHED THEN INSERT ({}) VALUES ({})"
    ).format(
        table.identifier,
        _selected(source, wanted, plan, upsert),
        sql.SQL(" AND ").join(conditions),
        sql.SQL(", ").join(assignments),
        _names(column.target for column in plan),
        sql.SQL(", ").join(sql.SQL("source.{}").format(sql.Identifier(column.target)) for column in plan),
    )


def key_facts_statement(
    source: sql.Identifier, wanted: sql.Composable, upsert: Upsert, *, bounded: bool
) -> sql.Composed:
    """
    How many of the wanted rows have NULL in a key; if ``bounded``, also the first key's least and greatest value.

    Rows with NULL in a key conflict with nothing, so each replay would add another.
    """
    is_null = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(key.source)) for key in upsert.keys)
    bounds = sql.SQL("pg_catalog.min({0}), pg_catalog.max({0})" if bounded else "NULL, NULL").format(
        sql.Identifier(upsert.keys[0].source)
    )
    return sql.SQL("SELECT pg_catalog.count(*) FILTER (WHERE {}), {} FROM {} WHERE {}").format(
        is_null, bounds, source, wanted
    )


def _selected(
    source: sql.Identifier, wanted: sql.Composable, plan: Sequence[ColumnPlan], upsert: ComparedUpsert | None
) -> sql.Composed:
    """The wanted rows, with columns named and typed as in the target; of rows with the same key, the newest."""
    distinct, order = (sql.SQL(""), sql.SQL("")) if upsert is None else _by_key(upsert)
    values = (sql.SQL("{} AS {}").format(_value(column, upsert), sql.Identifier(column.target)) for column in plan)
    return sql.SQL("SELECT {}{} FROM {} WHERE {}{}").format(distinct, sql.SQL(", ").join(values), source, wanted, order)


def value_of(column: ColumnPlan) -> sql.Composable:
    """A gathered column's value, cast if the target's type takes it only by a cast."""
    cast = column.fitting.cast_type
    # Postgres was asked for the type's name under our search_path: one without a schema is pg_catalog's.
    schema = sql.SQL("" if not cast or "." in cast else "pg_catalog.")
    return sql.SQL("{}::{}{}" if cast else "{}").format(sql.Identifier(column.source), schema, sql.SQL(cast))


def _value(column: ColumnPlan, upsert: ComparedUpsert | None) -> sql.Composable:
    value = value_of(column)
    if upsert is None or column not in (*upsert.keys, upsert.order_by):
        return value
    # Rows are sorted by values as the table will hold them.
    assigned = _as_assigned(value, column.full_type)
    comparison = upsert.comparisons.get(column.target)
    if comparison is None or comparison.collation is None:
        return assigned
    return sql.SQL("{} COLLATE {}").format(assigned, comparison.collation)


_CUT_TO = re.compile(r"character varying\((\d+)\)")


def _as_assigned(value: sql.Composable, full_type: str) -> sql.Composable:
    """
    A text as the column will hold it, as far as that changes which texts are equal.

    It is not cast to the full type, because that would cut a text that is too long, while assigning one is an error.
    """
    if full_type == "bpchar" or re.fullmatch(r"character\(\d+\)", full_type):
        # Without a length the type cuts nothing, and spaces at the end do not count.
        return sql.SQL("{}::pg_catalog.bpchar").format(value)
    cut_to = _CUT_TO.fullmatch(full_type)
    if cut_to is None:
        return value
    # The SQL standard says that spaces beyond the length are cut.
    return sql.SQL(
        "CASE WHEN pg_catalog.char_length({value}) OPERATOR(pg_catalog.>) {length} "
        "AND pg_catalog.rtrim(pg_catalog.substr({value}, {after})) OPERATOR(pg_catalog.=) '' "
        "THEN pg_catalog.substr({value}, 1, {length}) ELSE {value} END"
    ).format(value=value, length=int(cut_to[1]), after=int(cut_to[1]) + 1)


def _by_key(upsert: ComparedUpsert) -> tuple[sql.Composable, sql.Composable]:
    keys = _names(key.target for key in upsert.keys)
    by_keys = sql.SQL(", ").join(_sorted_by(key.target, upsert) for key in upsert.keys)
    if upsert.order_by is None:
        # Without DISTINCT ON two rows of one key fail with 21000, as they should if the user names no order. Sorted, so
        # that two writers of the same keys lock them in the same order.
        return sql.SQL(""), sql.SQL(" ORDER BY {}").format(by_keys)
    # Of rows that tie, the last one wins if they travelled inline and come from one task; tasks have no order.
    order = sql.SQL(" ORDER BY {}, {} DESC NULLS LAST, ctid DESC").format(
        by_keys, sql.Identifier(upsert.order_by.target)
    )
    return sql.SQL("DISTINCT ON ({}) ").format(keys), order


def _sorted_by(name: str, upsert: ComparedUpsert) -> sql.Composable:
    comparison = upsert.comparisons.get(name)
    if comparison is None or comparison.less is None:
        return sql.Identifier(name)
    return sql.SQL("{} USING {}").format(sql.Identifier(name), comparison.less)


def _on_conflict(upsert: Upsert, plan: Sequence[ColumnPlan]) -> sql.Composable:
    keys = _names(key.target for key in upsert.keys)
    rest = _rest(upsert, plan)
    if not rest:
        return sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(keys)
    assignments = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest)
    return sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(keys, assignments)


def _rest(upsert: Upsert, plan: Sequence[ColumnPlan]) -> list[str]:
    """The columns that are not keys."""
    return [column.target for column in plan if column not in upsert.keys]


def _names(names: Iterable[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
