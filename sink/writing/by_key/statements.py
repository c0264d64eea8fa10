"""
Compose the SQL that moves gathered rows into the target by key.

Pure; runs in the commit. Invariant: identifiers are composed, never formatted, and an upsert either has one row for
each key or is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from psycopg import sql

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import OPERATION_COLUMN, ORIGIN_COLUMN
from ..checked_table import ColumnPlan
from ..rows import GatheredRows
from ..table.catalogue import TargetTable
from ..written import Upsert
from .keys import ComparedUpsert
from .unread_value import is_unread


def insert_statement(
    source: sql.Composable,
    wanted: sql.Composable,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: ComparedUpsert,
) -> sql.Composed:
    """``INSERT ... SELECT`` of the wanted rows of ``source``, by key."""
    # Under another name, because a table may be called excluded.
    return sql.SQL("INSERT INTO {} AS target ({}) {}{}").format(
        table.identifier,
        _names(column.target for column in plan),
        selected(source, wanted, plan, upsert),
        _on_conflict(upsert, plan),
    )


def insert_in_turn(
    rows: GatheredRows,
    number: sql.Identifier,
    hint: sql.Composable,
    into: sql.Identifier,
    plan: Sequence[ColumnPlan],
    upsert: ComparedUpsert | None,
) -> sql.Composed:
    """
    ``INSERT ... SELECT`` of ``rows`` in the order of ``number``; ``hint`` is computed for each, before its values are.
    """
    values = (
        sql.SQL("{} AS {}").format(value_as_assigned(column, upsert), sql.Identifier(column.target)) for column in plan
    )
    # It has a name of its own, because a column may be called as a function is.
    return sql.SQL(
        'INSERT INTO {table} AS target ({names}) SELECT {names} FROM (SELECT {hint} AS "pgonce: hint", {values} FROM ('
        "SELECT * FROM {source} WHERE {wanted} ORDER BY {number}) AS s) AS s{on_conflict}"
    ).format(
        table=into,
        names=_names(column.target for column in plan),
        hint=hint,
        values=sql.SQL(", ").join(values),
        source=rows.source,
        wanted=rows.wanted,
        number=number,
        on_conflict=sql.SQL("") if upsert is None else _on_conflict(upsert, plan),
    )


def merge_statement(
    rows: GatheredRows,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: ComparedUpsert,
    bounds: tuple[int, int] | None,
) -> sql.Composed:
    """
    ``MERGE`` of ``rows`` by key; there must be columns that are not keys.

    :param bounds: least and greatest value of the first key, both inclusive: the index need not be read beyond.
    """
    same = sql.SQL("target.{0} OPERATOR(pg_catalog.=) source.{0}")
    conditions: list[sql.Composable] = [same.format(sql.Identifier(key.target)) for key in upsert.keys]
    if bounds is not None:
        first = sql.Identifier(upsert.keys[0].target)
        least, greatest = map(sql.Literal, bounds)
        conditions.append(sql.SQL("target.{} OPERATOR(pg_catalog.>=) {}").format(first, least))
        conditions.append(sql.SQL("target.{} OPERATOR(pg_catalog.<=) {}").format(first, greatest))
    assignments = (sql.SQL("{0} = source.{0}").format(sql.Identifier(name)) for name in upsert.changed(plan))
    # ONLY, because ON CONFLICT does not look into tables that inherit either.
    return sql.SQL(
        "MERGE INTO ONLY {} AS target USING ({}) AS source ON {} WHEN MATCHED{} THEN UPDATE SET {} "
        "WHEN NOT MATCHED THEN INSERT ({}) VALUES ({})"
    ).format(
        table.identifier,
        selected(rows.source, rows.wanted, plan, upsert),
        sql.SQL(" AND ").join(conditions),
        sql.SQL(" AND {}").format(not_older(upsert, "source")) if upsert.newer_by else sql.SQL(""),
        sql.SQL(", ").join(assignments),
        _names(column.target for column in plan),
        sql.SQL(", ").join(sql.SQL("source.{}").format(sql.Identifier(column.target)) for column in plan),
    )


def key_facts_statement(rows: GatheredRows, upsert: Upsert, *, bounded: bool) -> sql.Composed:
    """
    How many of ``rows`` have NULL in a key; if ``bounded``, also the first key's least and greatest value.

    Rows with NULL in a key conflict with nothing, so each replay would add another.
    """
    is_null = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(key.source)) for key in upsert.keys)
    bounds = sql.SQL("pg_catalog.min({0}), pg_catalog.max({0})" if bounded else "NULL, NULL").format(
        sql.Identifier(upsert.keys[0].source)
    )
    return sql.SQL("SELECT pg_catalog.count(*) FILTER (WHERE {}), {} FROM {} WHERE {}").format(
        is_null, bounds, rows.source, rows.wanted
    )


_SEVERAL = sql.SQL("pg_catalog.count(*) OPERATOR(pg_catalog.>) 1")
_ORIGIN = sql.Identifier(ORIGIN_COLUMN)


def doubled_key_statement(
    rows: GatheredRows, upsert: ComparedUpsert, several: sql.Composable = _SEVERAL
) -> sql.Composed:
    """
    A key that several of ``rows`` have: how many do, and its values as texts; no row if all differ.

    :param several: what is true of the rows of such a key.
    """
    texts = (
        sql.SQL('pg_catalog.min({}::pg_catalog.text COLLATE pg_catalog."C")').format(sql.Identifier(key.source))
        for key in upsert.keys
    )
    return sql.SQL("SELECT pg_catalog.count(*), {} FROM {} WHERE {} GROUP BY {} HAVING {} LIMIT 1").format(
        sql.SQL(", ").join(texts),
        rows.source,
        rows.wanted,
        sql.SQL(", ").join(value_as_assigned(key, upsert) for key in upsert.keys),
        several,
    )


def several_origins_statement(rows: GatheredRows, upsert: ComparedUpsert) -> sql.Composed:
    """Like :func:`doubled_key_statement`, of a key whose rows come from several partitions of Kafka's."""
    origins = sql.SQL("pg_catalog.min({0}) OPERATOR(pg_catalog.<>) pg_catalog.max({0})").format(_ORIGIN)
    several = sql.SQL("(SELECT {} FROM {} WHERE {})").format(origins, rows.source, rows.wanted)
    return doubled_key_statement(rows.only(several), upsert, origins)


def selected(
    source: sql.Composable, wanted: sql.Composable, plan: Sequence[ColumnPlan], upsert: ComparedUpsert
) -> sql.Composed:
    """The wanted rows, with columns named and typed as in the target; of rows with the same key, the newest."""
    distinct, order = _by_key(upsert)
    values = (
        sql.SQL("{} AS {}").format(value_as_assigned(column, upsert), sql.Identifier(column.target)) for column in plan
    )
    return sql.SQL("SELECT {}{} FROM {} WHERE {}{}").format(distinct, sql.SQL(", ").join(values), source, wanted, order)


def value_as_assigned(column: ColumnPlan, upsert: ComparedUpsert | None) -> sql.Composable:
    """A gathered column's value; one that is compared as the table will hold it."""
    if upsert is None or column not in (*upsert.keys, upsert.order_by):
        return column.value
    assigned = text_as_assigned(column)
    comparison = upsert.comparisons.get(column.target)
    if comparison is None or comparison.collation is None:
        return assigned
    return sql.SQL("{} COLLATE {}").format(assigned, comparison.collation)


_CUT_TO = re.compile(r"character varying\(\d+\)(\[\])?")


def text_as_assigned(column: ColumnPlan) -> sql.Composable:
    """
    A gathered column's value; a text, or an array of texts, as the column will hold it, as far as that changes which
    ones are equal.

    It is not cast to the full type, because that would cut a text that is too long, while assigning one is an error.
    """
    value, full_type = column.value, column.full_type
    if full_type == "bpchar" or re.fullmatch(r"character\(\d+\)", full_type):
        # Without a length the type cuts nothing, and spaces at the end do not count.
        return sql.SQL("{}::pg_catalog.bpchar").format(value)
    cut_to = _CUT_TO.fullmatch(full_type)
    if cut_to is None:
        return value
    # The SQL standard says that spaces beyond the length are cut. As bpchar, texts are equal if they differ in no more.
    as_bpchar = sql.SQL("{}::pg_catalog.bpchar" + (cut_to[1] or ""))
    cut = sql.SQL("{}::{}").format(value, sql.SQL(full_type))
    return sql.SQL("CASE WHEN {} OPERATOR(pg_catalog.=) {} THEN {} ELSE {} END").format(
        as_bpchar.format(value), as_bpchar.format(cut), cut, value
    )


def _by_key(upsert: ComparedUpsert) -> tuple[sql.Composable, sql.Composable]:
    keys = _names(key.target for key in upsert.keys)
    by_keys = key_order(upsert)
    if upsert.order_by is None or upsert.is_one_each:
        # Without DISTINCT ON two rows of one key fail with 21000, as they should if the user names no order. Sorted, so
        # that two writers of the same keys lock them in the same order.
        return sql.SQL(""), sql.SQL(" ORDER BY {}").format(by_keys)
    # Of rows that tie, the last one wins if they travelled inline and come from one task; tasks have no order.
    newest_first = "ASC NULLS FIRST, ctid" if upsert.existing.stored_stays else "DESC NULLS LAST, ctid DESC"
    order = sql.SQL(" ORDER BY {}, {} {}").format(
        by_keys, sql.Identifier(upsert.order_by.target), sql.SQL(newest_first)
    )
    return sql.SQL("DISTINCT ON ({}) ").format(keys), order


def key_order(upsert: ComparedUpsert, of: str | None = None) -> sql.Composable:
    """The keys to sort by, in the order of the target's index: all that lock rows lock them in this order."""
    return sql.SQL(", ").join(_sorted_by(key.target, upsert, of) for key in upsert.keys)


def _sorted_by(name: str, upsert: ComparedUpsert, of: str | None) -> sql.Composable:
    comparison = upsert.comparisons.get(name)
    column = sql.Identifier(of, name) if of else sql.Identifier(name)
    if comparison is None or comparison.less is None:
        return column
    return sql.SQL("{} USING {}").format(column, comparison.less)


def _on_conflict(upsert: Upsert, plan: Sequence[ColumnPlan]) -> sql.Composable:
    keys = _names(key.target for key in upsert.keys)
    changed = upsert.changed(plan)
    if upsert.existing.on_conflict == "ignoreAny":
        return sql.SQL(" ON CONFLICT DO NOTHING")
    if not changed or upsert.existing.stored_stays:
        return sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(keys)
    assignments = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in changed)
    condition = sql.SQL(" WHERE {}").format(not_older(upsert, "excluded")) if upsert.newer_by else sql.SQL("")
    return sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}{}").format(keys, assignments, condition)


def not_older(upsert: Upsert, row: str) -> sql.Composable:
    """
    Whether the stored row gives way to ``row``: a null gives way to any value, and a value to one that is not less.

    A dead letter may be of an earlier batch than the stored row, so it replaces no equal value. A row of a snapshot
    without an order replaces none.
    """
    return sql.SQL(
        "({2}.{0} IS NOT NULL AND (target.{0} IS NULL OR target.{0} OPERATOR(pg_catalog.{1}) {2}.{0}))"
    ).format(sql.Identifier(upsert.newer_by or ""), sql.SQL("<" if upsert.of_letters else "<="), sql.Identifier(row))


def lacks_order(upsert: Upsert, columns: Iterable[EncodedColumn]) -> sql.Composable:
    """Whether a gathered row has no order, and needs one. A row of Debezium's incremental snapshots never has one."""
    if not upsert.newer_by or upsert.order_by is None:
        return sql.SQL("false")
    operation = any(column.name == OPERATION_COLUMN for column in columns)
    of_snapshot = sql.SQL("{} OPERATOR(pg_catalog.=) 'r'").format(sql.Identifier(OPERATION_COLUMN))
    return sql.SQL("({} IS NULL AND ({}) IS NOT TRUE)").format(
        sql.Identifier(upsert.order_by.source), of_snapshot if operation else sql.SQL("false")
    )


def _names(names: Iterable[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def unread_columns(
    plan: Iterable[ColumnPlan], encoded: Iterable[EncodedColumn], upsert: Upsert | None
) -> dict[str, sql.Composable]:
    """
    The target's columns whose value may be one that the source could not read, with the condition that says so.

    The condition is about the columns of the gathered rows, and is never null.
    """
    if upsert is None or upsert.existing.keep_where is None:
        return {}
    by_name = {column.name: column for column in encoded}
    compared = (*upsert.keys, upsert.order_by)
    conditions = {
        column.target: is_unread(by_name[column.source], upsert.existing.keep_where)
        for column in plan
        if column not in compared and column.source in by_name
    }
    return {name: condition for name, condition in conditions.items() if condition is not None}


def value_if_read(column: ColumnPlan, unread: sql.Composable) -> sql.Composable:
    """A gathered column's value, or NULL; what stands for an unread value need not be one of the column's type."""
    return sql.SQL("CASE WHEN {} THEN NULL ELSE {} END").format(unread, column.value)
