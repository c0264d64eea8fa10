"""
Refuse changes that would insert a row without a value that the source could not read.

Runs in the commit, once the batch's new rows are inserted. Invariant: a value is never replaced by NULL because the row
that has it had not come yet, or was put aside: such a change is refused, or put aside as a dead letter. What Debezium
calls an insert has no value anywhere, and is counted.
"""

from __future__ import annotations

import logging

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...options.by_key import OPERATION
from ..bad_rows.bad_row import BadRow, RowsRefusedError
from .by_index import execute_joined
from .change_table import DELETED, NEW, ChangeTable
from .deciding_changes import changes_since_deleted

VALUE_NOT_READ = "VALUE_NOT_READ"
UNREAD = "not_read"
"""What rows are counted as that were written without a value; they are among the written ones."""
_INSERTS = ("c", "r")
_log = logging.getLogger("pgonce")


def refuse_unread_in_tx(
    connection: psycopg.Connection,
    batch: ChangeTable,
    changes: sql.Composable,
    source: sql.Identifier,
) -> int:
    """
    Refuse the changes that have inserted a row without one of its values.

    :param changes: all changes of the batch, of which ``batch`` has those that decide.
    :return: how many rows lack a value that the source's own insert of the row did not have.
    :raises RowsRefusedError: VALUE_NOT_READ.
    """
    lacking = sql.SQL("({})").format(sql.SQL(" OR ").join(_lacking(batch)))
    found = connection.execute(
        sql.SQL("SELECT pg_catalog.count(*) FROM {} AS change WHERE {} AND NOT {} AND {}").format(
            batch.name, NEW, DELETED, lacking
        )
    ).fetchone()
    if not found or not found[0]:
        return 0
    rows = execute_joined(connection, _asked(batch, changes, source, lacking), batch.upsert).fetchall()
    bad = [(place, unread) for place, is_insert, *unread in rows if not is_insert]
    if bad:
        names = [name for number, name in enumerate(batch.unread) if any(unread[number] for _, unread in bad)]
        raise RowsRefusedError(_error(batch, len(bad), names), [_bad_row(batch, *row) for row in bad])
    _log.warning(
        "%s rows were written to %s without a value that the source could not read: nothing holds it, because it was "
        "stored under another key (`pgonce explain change-data`)",
        found[0],
        batch.target.qualified_name,
    )
    return int(found[0])


def _asked(
    batch: ChangeTable, changes: sql.Composable, source: sql.Identifier, lacking: sql.Composable
) -> sql.Composed:
    """The place of each change of the rows that lack a value, whether one of them is an insert, and what is lacking."""
    has_operation = batch.changes and batch.changes.feed == "debezium"
    has_operation = has_operation and OPERATION in {column.name for column in batch.columns}
    inserts = sql.SQL(", ").join(map(sql.Literal, _INSERTS))
    is_insert = sql.SQL("given.{} OPERATOR(pg_catalog.=) ANY (ARRAY[{}])").format(sql.Identifier(OPERATION), inserts)
    return sql.SQL(
        "SELECT given.ctid::pg_catalog.text, "
        "COALESCE(pg_catalog.bool_or({is_insert}) OVER (PARTITION BY change.ctid), false), {unread} "
        "FROM {batch} AS change JOIN ({changes}) AS target ON {same_key} "
        'JOIN {source} AS given ON given.ctid OPERATOR(pg_catalog.=) target."pgonce: place" '
        "WHERE change.{new} AND NOT change.{deleted} AND {lacking}"
    ).format(
        is_insert=is_insert if has_operation else sql.SQL("false"),
        unread=sql.SQL(", ").join(_lacking(batch)),
        batch=batch.name,
        changes=changes_since_deleted(batch, changes),
        same_key=batch.same_key(),
        source=source,
        new=NEW,
        deleted=DELETED,
        lacking=lacking,
    )


def _lacking(batch: ChangeTable) -> list[sql.Composed]:
    return [sql.SQL("change.{}").format(name) for name in batch.unread.values()]


def _bad_row(batch: ChangeTable, place: str, unread: list[bool]) -> BadRow:
    names = [name for name, is_unread in zip(batch.unread, unread, strict=True) if is_unread]
    message = f"The source could not read {', '.join(names)}, and the table has no row that holds the value."
    return BadRow(place, VALUE_NOT_READ, message, names[0], is_proven=True)


def _error(batch: ChangeTable, count: int, names: list[str]) -> TargetError:
    return TargetError(
        "VALUE_NOT_READ",
        f"{count} changes of the batch lack a value that the source could not read ({', '.join(names)}), and "
        f"{batch.target.qualified_name} has no row that holds it: the change that brings the value has not come yet, "
        "or was put aside. Written now, the value would be lost.",
        NOTHING,
        "Write the rows of the source into the table first. Or set deadLetters, so that such changes are put aside "
        "until their row is there. Or let the source send every value: ALTER TABLE ... REPLICA IDENTITY FULL, there.",
    )
