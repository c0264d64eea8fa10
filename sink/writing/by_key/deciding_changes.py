"""
Find the changes of each key that decide what a batch leaves of it.

Runs in the commit, on rows that were gathered. Invariant: which change of a key is the last does not depend on how
Spark cut the stream into batches: what a batch leaves in the table is what its changes would leave one by one. A value
that the source could not read is never replaced by NULL because the row that has it had not come yet: such a change is
refused, or put aside. What Debezium calls an insert has no value anywhere, and is counted; so is a row that stays
without the value because the stored one has NULL.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from operator import and_

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...options.destination import OPERATION_COLUMN
from ..rows import GatheredRows
from ..written import BadRow, RowsRefusedError
from .change_table import DELETED, NEW, ORDER, ChangeTable
from .keys import execute_joined
from .moved_rows import MovedRows

_log = logging.getLogger("pgonce")


def create_deciding(table: ChangeTable, rows: GatheredRows, *, deletes_matter: bool) -> sql.Composed:
    """
    The statement that fills ``table`` from ``rows``; its answer counts the changes.

    :param deletes_matter: whether a delete counts if a write of the same key follows it.
    """
    # Without an order, rows of one key are refused, and each change is the last one.
    is_last_enough = (
        not table.unread and not table.moves and (table.upsert.order_by is None or not (table.frozen or deletes_matter))
    )
    if is_last_enough:
        return _created(table, _last_of_each(table, rows))
    return _created(table, _deciding(table, all_changes(table, rows)))


def create_of_all(table: ChangeTable, rows: GatheredRows) -> sql.Composed:
    """The statement that fills ``table`` with each of ``rows``, several of a key among them."""
    return _created(table, _all(table, rows))


def create_from(table: ChangeTable, given: ChangeTable) -> sql.Composed:
    """The statement that fills ``table`` from one that :func:`create_of_all` has filled."""
    return _created(table, _deciding(table, given.name))


def all_changes(table: ChangeTable, rows: GatheredRows) -> sql.Composable:
    """Each of ``rows`` as a relation, with what it lacks and its place."""
    return sql.SQL("({})").format(_all(table, rows))


def changes_since_deleted(table: ChangeTable, changes: sql.Composable) -> sql.Composed:
    """The writes of each key that no delete follows."""
    return sql.SQL('SELECT * FROM ({}) AS ranked WHERE NOT {} AND "pgonce: later" OPERATOR(pg_catalog.=) 0').format(
        _ranked(table, changes), DELETED
    )


def _created(table: ChangeTable, query: sql.Composable) -> sql.Composed:
    return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(table.name, query)


def wanted_changes(table: ChangeTable, rows: GatheredRows) -> GatheredRows:
    """The changes among which one can decide."""
    if table.changes is None or table.changes.deletes != "ignore":
        return rows
    # Before the last change of a key is looked for: the row stays as the last write before the delete left it.
    return rows.only(sql.SQL("NOT {}").format(table.is_delete))


def _last_of_each(table: ChangeTable, rows: GatheredRows) -> sql.Composed:
    return sql.SQL("SELECT DISTINCT ON ({}) {} FROM {} WHERE {} ORDER BY {}, {}ctid DESC").format(
        _keys(table),
        sql.SQL(", ").join(table.values()),
        rows.source,
        wanted_changes(table, rows).wanted,
        table.keys_in_order(),
        _latest_first(table),
    )


def _all(table: ChangeTable, rows: GatheredRows) -> sql.Composed:
    unread = [sql.SQL("{} AS {}").format(is_unread, table.unread[name]) for name, is_unread in table.is_unread.items()]
    values, rows = sql.SQL(", ").join([*table.values(), *unread]), wanted_changes(table, rows)
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
        "SELECT DISTINCT ON ({keys}, {deleted}) * FROM ({chosen}) AS chosen "
        'WHERE "pgonce: ends" OPERATOR(pg_catalog.=) {deleted} OR {earlier} '
        'ORDER BY {in_order}, {deleted}, "pgonce: rank"'
    ).format(
        keys=_keys(table),
        deleted=DELETED,
        chosen=_with_known_values(table, _ranked(table, changes)),
        earlier=sql.SQL(earlier).format(DELETED),
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
        'WINDOW newest AS (PARTITION BY {keys} ORDER BY {latest_first}"pgonce: place" DESC, {deleted})'
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
        # For a column that may not change, the first write that has a value.
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
    if table.changes is not None and table.changes.has_versions:
        # A version of a table that deletes a row and inserts it again has replaced it.
        parts.append(sql.SQL("{}, ").format(DELETED))
    return sql.Composed(parts)


VALUE_NOT_READ = "VALUE_NOT_READ"
UNREAD = "not_read"
"""The count of rows that were written without a value; they also count as written."""
_INSERTS = ("c", "r")


def refuse_unread_moves_in_tx(connection: psycopg.Connection, batch: ChangeTable, rows: GatheredRows) -> None:
    """
    Refuse changes that move a row and lack a value: what is stored under either key may be another row's.

    :raises RowsRefusedError: VALUE_NOT_READ.
    """
    flags = list(batch.is_unread.values())
    if not flags:
        return
    query = sql.SQL("SELECT ctid::pg_catalog.text, {} FROM {} WHERE {} AND {} AND ({})").format(
        sql.SQL(", ").join(flags),
        rows.source,
        rows.wanted,
        MovedRows(batch.columns, batch.upsert).is_moved,
        sql.SQL(" OR ").join(flags),
    )
    bad = [(place, lacks) for place, *lacks in connection.execute(query, prepare=False).fetchall()]
    if bad:
        names = [name for number, name in enumerate(batch.unread) if any(lacks[number] for _, lacks in bad)]
        raise RowsRefusedError(unread_error(batch, len(bad), names), [_bad_row(batch.unread, *row) for row in bad])


def refuse_unread_in_tx(
    connection: psycopg.Connection, batch: ChangeTable, changes: sql.Composable, source: sql.Composable
) -> int:
    """
    Refuse the changes that would insert a row without one of its values; called before anything is written.

    :param changes: all changes of the batch; ``batch`` has those that decide.
    :return: how many rows will lack a value all the same: those that the source's own insert lacks it for, and stored
        ones that have NULL instead.
    :raises RowsRefusedError: VALUE_NOT_READ.
    """
    if not batch.unread:
        return 0
    found, new = execute_joined(connection, count_unread(batch), batch.upsert).fetchone() or (0, 0)
    flags = [sql.SQL("change.{}").format(flag) for flag in batch.unread.values()]
    lacking = sql.SQL("({})").format(sql.SQL(" OR ").join(flags))
    if new:
        concerned = sql.SQL("NOT {} AND NOT change.{} AND {}").format(batch.exists(), DELETED, lacking)
        rows = execute_joined(connection, _asked(batch, changes, source, flags, concerned), batch.upsert).fetchall()
        not_null = {column.column_name for column in batch.target.columns if column.not_null}
        needed = [name in not_null for name in batch.unread]
        # Postgres would refuse NULL in such a column without saying that a value was not read.
        bad = [(place, lacks) for place, is_insert, *lacks in rows if not is_insert or any(map(and_, lacks, needed))]
        if bad:
            names = [name for number, name in enumerate(batch.unread) if any(lacks[number] for _, lacks in bad)]
            raise RowsRefusedError(unread_error(batch, len(bad), names), [_bad_row(batch.unread, *row) for row in bad])
    if found:
        _log.warning(
            "%s rows are written to %s without a value that the source could not read, because nothing holds it: the "
            "row had another key before, or has NULL in the table (page `change-data` of the documentation)",
            found,
            batch.target.qualified_name,
        )
    return int(found)


def count_unread(batch: ChangeTable) -> sql.Composed:
    """How many writes would leave a row without a value that was not read; how many of these rows are new."""
    updated = batch.reduced_upsert.changed(batch.written)
    is_null = sql.SQL(" OR (change.{} AND target.{} IS NULL)")
    stored_nulls = [
        is_null.format(flag, sql.Identifier(name)) for name, flag in batch.unread.items() if name in updated
    ]
    flags = [sql.SQL("change.{}").format(flag) for flag in batch.unread.values()]
    return sql.SQL(
        "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE target.{key} IS NULL) "
        "FROM {batch} AS change LEFT JOIN {target} AS target ON {same_key} "
        "WHERE NOT change.{deleted} AND ({lacking}) AND (target.{key} IS NULL OR (false{stored_nulls}) AND {not_older})"
    ).format(
        key=sql.Identifier(batch.upsert.keys[0].target),
        batch=batch.name,
        target=batch.target.only,
        same_key=batch.same_key(),
        deleted=DELETED,
        lacking=sql.SQL(" OR ").join(flags),
        stored_nulls=sql.Composed(stored_nulls),
        not_older=batch.not_older(),
    )


def is_source_insert(batch: ChangeTable) -> sql.Composable:
    """Whether a gathered row ``given`` is what Debezium calls an insert, which has no earlier value anywhere."""
    has_operation = batch.changes is not None and batch.changes.feed == "debezium"
    if not has_operation or OPERATION_COLUMN not in {column.name for column in batch.columns}:
        return sql.SQL("false")
    inserts = sql.SQL(", ").join(map(sql.Literal, _INSERTS))
    return sql.SQL("given.{} OPERATOR(pg_catalog.=) ANY (ARRAY[{}])").format(sql.Identifier(OPERATION_COLUMN), inserts)


def _asked(
    batch: ChangeTable,
    changes: sql.Composable,
    source: sql.Composable,
    flags: Iterable[sql.Composable],
    concerned: sql.Composable,
) -> sql.Composed:
    """The place of each change of the rows that lack a value, whether one of them is an insert, and what is lacking."""
    return sql.SQL(
        "SELECT given.ctid::pg_catalog.text, "
        "COALESCE(pg_catalog.bool_or({is_insert}) OVER (PARTITION BY change.ctid), false), {flags} "
        "FROM {batch} AS change JOIN ({changes}) AS target ON {same_key} "
        'JOIN {source} AS given ON given.ctid OPERATOR(pg_catalog.=) target."pgonce: place" WHERE {concerned}'
    ).format(
        is_insert=is_source_insert(batch),
        flags=sql.SQL(", ").join(flags),
        batch=batch.name,
        changes=changes_since_deleted(batch, changes),
        same_key=batch.same_key(),
        source=source,
        concerned=concerned,
    )


def _bad_row(unread: Iterable[str], place: str, lacks: Sequence[bool]) -> BadRow:
    names = [name for name, is_unread in zip(unread, lacks, strict=True) if is_unread]
    message = f"The source could not read {', '.join(names)}, and the table has no row that holds the value."
    return BadRow(place, VALUE_NOT_READ, message, names[0])


def unread_error(batch: ChangeTable, count: int, names: list[str]) -> TargetError:
    """The error for so many changes that lack values of these columns."""
    return TargetError(
        "VALUE_NOT_READ",
        f"{count} changes of the batch lack a value that the source could not read ({', '.join(names)}), and "
        f"{batch.target.qualified_name} has no row with it: the change that has the value has not arrived yet, or "
        "was put aside. If these changes were written now, the value would be lost.",
        NOTHING,
        "Write the rows of the source into the table first. Or set deadLetters, so that such changes are put aside "
        "until their row is there. Or let the source send every value: run ALTER TABLE ... REPLICA IDENTITY FULL "
        "there.",
    )
