"""
Which rows do the writes of a batch insert or update, when each key has one?

Runs in the commit, once deletes are done. Invariant: a stored row that is newer stays, and so does a stored value that
the source could not read.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from ..refused_values import RELEASE
from .change_table import DELETED, NEW, ChangeTable
from .upsert import is_large, write_by_key_in_tx


def write_in_tx(connection: psycopg.Connection, batch: ChangeTable, writes: int) -> int:
    """Insert or update the ``writes`` rows that do not delete; return how many were written."""
    if not writes or batch.unread:
        written = _write_what_was_read_in_tx(connection, batch) if writes else 0
        connection.execute(RELEASE)
        return written
    return write_by_key_in_tx(
        connection,
        batch.name,
        sql.SQL("NOT {}").format(DELETED),
        batch.target,
        batch.written,
        batch.reduced_upsert,
        may_be_merged=is_large(writes) and batch.upsert.has_plain_keys,
    )


def _write_what_was_read_in_tx(connection: psycopg.Connection, batch: ChangeTable) -> int:
    # First the new ones, because the update must find each row of which another session inserted the key meanwhile.
    inserted = connection.execute(_insert_new(batch)).rowcount
    changed = batch.reduced_upsert.changed(batch.written)
    return inserted + (connection.execute(_update(batch, changed)).rowcount if changed else 0)


def _insert_new(batch: ChangeTable) -> sql.Composed:
    """Insert the rows whose keys are new, and mark them."""
    keys = [sql.Identifier(key.target) for key in batch.upsert.keys]
    names = [sql.Identifier(column.target) for column in batch.written]
    return sql.SQL(
        "WITH inserted AS (INSERT INTO {table} AS target ({names}) SELECT {names} FROM {changes} AS change "
        "WHERE NOT {deleted} AND NOT {exists} ORDER BY {in_order} ON CONFLICT ({keys}) DO NOTHING "
        "RETURNING {returned}) UPDATE {changes} AS change SET {new} = true FROM inserted AS target "
        "WHERE NOT change.{deleted} AND {same_key}"
    ).format(
        table=batch.target.identifier,
        names=sql.SQL(", ").join(names),
        changes=batch.name,
        deleted=DELETED,
        exists=batch.exists(),
        in_order=batch.keys_in_order("change"),
        keys=sql.SQL(", ").join(keys),
        returned=sql.SQL(", ").join(sql.SQL("target.{}").format(key) for key in keys),
        new=NEW,
        same_key=batch.same_key(),
    )


def _update(batch: ChangeTable, changed: list[str]) -> sql.Composed:
    """Update the rows that were there, except for values that were not read."""
    keeps = sql.SQL("{0} = CASE WHEN change.{1} THEN target.{0} ELSE change.{0} END")
    sets = [
        keeps.format(sql.Identifier(name), batch.unread[name])
        if name in batch.unread
        else sql.SQL("{0} = change.{0}").format(sql.Identifier(name))
        for name in changed
    ]
    return sql.SQL(
        "UPDATE {} AS target SET {} FROM {} AS change WHERE NOT change.{} AND NOT change.{} AND {} AND {}"
    ).format(
        batch.only_target,
        sql.SQL(", ").join(sets),
        batch.name,
        DELETED,
        NEW,
        batch.same_key(),
        batch.not_older(),
    )
