"""
Find the changes of each key that decide what a batch leaves of it.

Pure; its SQL runs in the commit, on rows that were gathered. Invariant: which change of a key is the last does not
depend on how Spark cut the stream into batches: what a batch leaves in the table is what its changes would leave one by
one. Where a row would have values of several changes, they are made one by one
(:mod:`~pgonce.sink.writing.by_key.one_by_one`).
"""

from __future__ import annotations

from psycopg import sql

from ...options.destination import Changes
from ..rows import GatheredRows
from .change_table import DELETED, ChangeTable


def create_deciding(table: ChangeTable, rows: GatheredRows, *, deletes_matter: bool) -> sql.Composed:
    """
    The statement that fills ``table`` from ``rows``; its answer counts the changes.

    :param deletes_matter: whether a delete counts if a write of the same key follows it.
    """
    # Without an order, rows of one key are refused, and each change is the last one.
    if not table.moves and (table.upsert.order_by is None or not deletes_matter):
        return _created(table, _last_of_each(table, rows))
    return _created(table, _deciding(table, all_changes(table, rows)))


def all_changes(table: ChangeTable, rows: GatheredRows) -> sql.Composable:
    """Each of ``rows`` as a relation, with its place and what the source could not read of it."""
    return sql.SQL("({})").format(_all(table, rows))


def _created(table: ChangeTable, query: sql.Composable) -> sql.Composed:
    return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(table.name, query)


def wanted_changes(changes: Changes | None, rows: GatheredRows) -> GatheredRows:
    """The changes among which one can decide: not the deletes that are left out."""
    if changes is None or changes.deletes != "ignore":
        return rows
    # Before the last change of a key is looked for: the row stays as the last write before the delete left it.
    return rows.only(sql.SQL("NOT {}").format(sql.Identifier(changes.deleted)))


def _last_of_each(table: ChangeTable, rows: GatheredRows) -> sql.Composed:
    return sql.SQL("SELECT DISTINCT ON ({}) {} FROM {} WHERE {} ORDER BY {}, {}ctid DESC").format(
        keys_of(table),
        sql.SQL(", ").join(table.values()),
        rows.source,
        wanted_changes(table.changes, rows).wanted,
        table.keys_in_order(),
        _latest_first(table),
    )


def _all(table: ChangeTable, rows: GatheredRows) -> sql.Composed:
    unread = [sql.SQL("{} AS {}").format(is_unread, table.unread[name]) for name, is_unread in table.is_unread.items()]
    values, rows = sql.SQL(", ").join([*table.values(), *unread]), wanted_changes(table.changes, rows)
    each = sql.SQL('SELECT {}, {} AS "pgonce: place" FROM {} WHERE {}')
    every = each.format(values, table.place, rows.source, rows.wanted)
    if not table.moves or table.changes is None:
        return every
    old = table.moved.deletes(rows, table.changes.deleted, table.place)
    return sql.SQL("{} UNION ALL {}").format(every, each.format(values, table.place, old, sql.SQL("true")))


def _deciding(table: ChangeTable, changes: sql.Composable) -> sql.Composed:
    """
    The last change of each key, and one before it where that counts too.

    A row that was deleted and written again is deleted first: it loses what others put into it. A soft delete leaves
    the values of the last write before it.
    """
    # Of each key the last write and the last delete, but one of them only if it is the last change: a write before a
    # delete that removes the row, or a soft delete before a write. Without an order a key may have one change only.
    earlier = "false" if table.upsert.order_by is None else "NOT {}" if table.deletes_softly else "{}"
    return sql.SQL(
        'SELECT * FROM (SELECT *, pg_catalog.row_number() OVER newest AS "pgonce: rank", '
        'pg_catalog.count(*) FILTER (WHERE {earlier}) OVER newest AS "pgonce: earlier" FROM {changes} AS given '
        'WINDOW newest AS (PARTITION BY {keys} ORDER BY {latest_first}"pgonce: place" DESC, {deleted} '
        "ROWS UNBOUNDED PRECEDING)) AS ranked "
        'WHERE "pgonce: rank" OPERATOR(pg_catalog.=) 1 OR {earlier} AND "pgonce: earlier" OPERATOR(pg_catalog.=) 1'
    ).format(
        keys=keys_of(table),
        deleted=DELETED,
        changes=changes,
        latest_first=_latest_first(table),
        earlier=sql.SQL(earlier).format(DELETED),
    )


def keys_of(table: ChangeTable) -> sql.Composable:
    """The names of the key's columns in the target."""
    return sql.SQL(", ").join(sql.Identifier(key.target) for key in table.upsert.keys)


def _latest_first(table: ChangeTable) -> sql.Composable:
    """The beginning of an ORDER BY, with a comma at its end; the place of a change comes last."""
    parts: list[sql.Composable] = []
    if table.order_column is not None:
        parts.append(sql.SQL("{} DESC NULLS LAST, ").format(sql.Identifier(table.order_column)))
    if table.changes is not None and table.changes.has_versions:
        # A version of a table that deletes a row and inserts it again has replaced it.
        parts.append(sql.SQL("{}, ").format(DELETED))
    return sql.Composed(parts)
