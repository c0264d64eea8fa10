"""
Which changes of each key decide what a batch leaves of it?

Pure; its statements run in the commit, on rows that were gathered. Invariant: which change of a key is the last does
not depend on how Spark cut the stream into batches: what a batch leaves in the table is what its changes would leave
one by one.
"""

from __future__ import annotations

from psycopg import sql

from .change_table import DELETED, NEW, ORDER, ChangeTable


def create_deciding(
    table: ChangeTable, source: sql.Identifier, wanted: sql.Composable, *, deletes_matter: bool
) -> sql.Composed:
    """
    The statement that fills ``table`` from the wanted rows of ``source``; its answer counts the changes.

    :param deletes_matter: whether a delete counts that a write of the same key follows.
    """
    # Without an order, rows of one key are refused, and each change is the last one.
    is_last_enough = not table.unread and (table.upsert.order_by is None or not (table.frozen or deletes_matter))
    if is_last_enough:
        return _created(table, _last_of_each(table, source, wanted))
    return _created(table, _deciding(table, all_changes(table, source, wanted)))


def create_of_all(table: ChangeTable, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
    """The statement that fills ``table`` with every wanted row of ``source``, several of a key among them."""
    return _created(table, _all(table, source, wanted))


def create_from(table: ChangeTable, given: ChangeTable) -> sql.Composed:
    """The statement that fills ``table`` from one that :func:`create_of_all` has filled."""
    return _created(table, _deciding(table, given.name))


def all_changes(table: ChangeTable, source: sql.Identifier, wanted: sql.Composable) -> sql.Composable:
    """Every wanted row of ``source`` as a relation, with what it lacks and its place."""
    return sql.SQL("({})").format(_all(table, source, wanted))


def changes_since_deleted(table: ChangeTable, changes: sql.Composable) -> sql.Composed:
    """The writes of each key that no delete follows."""
    return sql.SQL('SELECT * FROM ({}) AS ranked WHERE NOT {} AND "pgonce: later" OPERATOR(pg_catalog.=) 0').format(
        _ranked(table, changes), DELETED
    )


def _created(table: ChangeTable, query: sql.Composable) -> sql.Composed:
    return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(table.name, query)


def wanted_changes(table: ChangeTable, wanted: sql.Composable) -> sql.Composable:
    """The condition that picks the changes of which one can decide."""
    if table.changes is None or table.changes.deletes != "ignore":
        return wanted
    # Before the last change of a key is looked for: the row stays as the last write before the delete left it.
    return sql.SQL("({}) AND NOT {}").format(wanted, table.is_delete)


def _last_of_each(table: ChangeTable, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
    return sql.SQL("SELECT DISTINCT ON ({}) {} FROM {} WHERE {} ORDER BY {}, {}ctid DESC").format(
        _keys(table),
        sql.SQL(", ").join(table.values()),
        source,
        wanted_changes(table, wanted),
        table.keys_in_order(),
        _latest_first(table),
    )


def _all(table: ChangeTable, source: sql.Identifier, wanted: sql.Composable) -> sql.Composed:
    unread = [sql.SQL("{} AS {}").format(is_unread, table.unread[name]) for name, is_unread in table.is_unread.items()]
    return sql.SQL('SELECT {}, ctid AS "pgonce: place" FROM {} WHERE {}').format(
        sql.SQL(", ").join([*table.values(), *unread]), source, wanted_changes(table, wanted)
    )


def _deciding(table: ChangeTable, changes: sql.Composable) -> sql.Composed:
    """
    The last change of each key, and one before it where that counts too.

    A row that was deleted and written again is deleted first: it loses what others put into it. A soft delete leaves
    the values of the last write before it.
    """
    # Of each key the last write and the last delete, but one of them only if it is the last change: a write before a
    # delete that removes the row, or a soft delete before a write.
    return sql.SQL(
        "SELECT DISTINCT ON ({keys}, {deleted}) * FROM ({chosen}) AS chosen "
        'WHERE "pgonce: ends" OPERATOR(pg_catalog.=) {deleted} OR {earlier} '
        'ORDER BY {in_order}, {deleted}, "pgonce: rank"'
    ).format(
        keys=_keys(table),
        deleted=DELETED,
        chosen=_with_known_values(table, _ranked(table, changes)),
        earlier=sql.SQL("NOT {}" if table.deletes_softly else "{}").format(DELETED),
        in_order=table.keys_in_order(),
    )


def _ranked(table: ChangeTable, changes: sql.Composable) -> sql.Composed:
    """
    Each change with three numbers of its key.

    ``pgonce: ends`` says whether the last change deletes, ``pgonce: later`` how many deletes come later, and
    ``pgonce: rank`` is 1 for the last change.
    """
    # A soft delete takes no value away.
    later = (
        "0" if table.deletes_softly else "pg_catalog.count(*) FILTER (WHERE {}) OVER (newest ROWS UNBOUNDED PRECEDING)"
    )
    return sql.SQL(
        'SELECT *, pg_catalog.first_value({deleted}) OVER newest AS "pgonce: ends", {later} AS "pgonce: later", '
        'pg_catalog.row_number() OVER newest AS "pgonce: rank" FROM {changes} AS given '
        'WINDOW newest AS (PARTITION BY {keys} ORDER BY {latest_first}"pgonce: place" DESC)'
    ).format(
        deleted=DELETED,
        later=sql.SQL(later).format(DELETED),
        changes=changes,
        keys=_keys(table),
        latest_first=_latest_first(table),
    )


def _with_known_values(table: ChangeTable, ranked: sql.Composable) -> sql.Composed:
    """
    The ranked changes, with what is known of the columns for which an earlier change of the key may count.

    A value that was not read is that of the last write which has one, and a column that may not change has that of the
    first write (which has one), each since the key was last deleted.
    """
    keys = _keys(table)
    frozen = table.frozen
    gone = sql.SQL('{} OR "pgonce: later" OPERATOR(pg_catalog.<>) 0').format(DELETED)
    window = sql.SQL('(PARTITION BY {} ORDER BY {}, "pgonce: rank" {})')
    first = window.format(keys, gone, sql.SQL("DESC"))
    known = [
        sql.SQL("pg_catalog.first_value({0}) OVER {1} AS {0}").format(sql.Identifier(name), first)
        for name in frozen
        if name not in table.unread
    ]
    for name, unread in table.unread.items():
        useless = sql.SQL("({} OR {})").format(unread, gone)
        last = window.format(keys, useless, sql.SQL("ASC"))
        known.append(sql.SQL("pg_catalog.first_value({}) OVER {} AS {}").format(useless, last, unread))
        # Of a column that may not change, the first write that has a value.
        chosen = window.format(keys, useless, sql.SQL("DESC")) if name in frozen else last
        known.append(
            sql.SQL(
                "CASE WHEN pg_catalog.first_value({useless}) OVER {chosen} THEN NULL "
                "ELSE pg_catalog.first_value({column}) OVER {chosen} END AS {column}"
            ).format(useless=useless, chosen=chosen, column=sql.Identifier(name))
        )
    rest = [sql.Identifier(column.target) for column in table.written if column.target not in {*table.unread, *frozen}]
    rest += [sql.Identifier(ORDER)] if table.order_column == ORDER else []
    return sql.SQL("SELECT {} FROM ({}) AS ranked").format(
        sql.SQL(", ").join([*rest, DELETED, NEW, sql.SQL('"pgonce: ends", "pgonce: rank"'), *known]), ranked
    )


def _keys(table: ChangeTable) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(key.target) for key in table.upsert.keys)


def _latest_first(table: ChangeTable) -> sql.Composable:
    """The beginning of an ORDER BY, with a comma at its end; the place of a change comes last."""
    parts: list[sql.Composable] = []
    if table.order_column is not None:
        parts.append(sql.SQL("{} DESC NULLS LAST, ").format(sql.Identifier(table.order_column)))
    if table.changes is not None and table.changes.feed in ("delta", "spark"):
        # A version of a table that deletes a row and inserts it again has replaced it.
        parts.append(sql.SQL("{}, ").format(DELETED))
    return sql.Composed(parts)
