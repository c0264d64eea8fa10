"""
How do rows that are gathered get from there into the target?

Runs in the commit. Invariant: the first statement that may refuse a row comes behind a savepoint, so that the row can
be looked for; staged rows are counted, if somebody has not done so yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import psycopg
from psycopg import sql

from ..staging.table import check_staged_rows
from .by_key.apply import apply_in_tx, needs_changes
from .by_key.in_order import (
    write_in_order_in_tx,
)
from .by_key.statements import (
    insert_statement,
)
from .by_key.upsert import upsert_in_tx
from .gathering import GatheredRows
from .refused_values import RELEASE, SAVEPOINT, Written


def write_gathered_in_tx(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written
) -> Mapping[str, int] | None:
    """
    Write the rows; the counts say what became of them, if they do more than replace stored ones.

    :raises TargetError: if the rows, or the table, lack what writing by key needs.
    :raises RowsRefusedError: for rows that were found to be the reason.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    staged = gathered.staged
    if written.upsert is not None:
        if staged is not None:
            check_staged_rows(connection, staged)
        return write_in_order_in_tx(
            connection, replace(gathered, staged=None), written, lambda rows: _by_key_in_tx(connection, rows, written)
        )
    if staged is not None and staged.stored:
        check_staged_rows(connection, staged)
    insert = insert_statement(gathered.source, gathered.wanted, written.table, written.plan)
    cursor = connection.cursor()
    cursor.execute(sql.SQL("; ").join([SAVEPOINT, insert, RELEASE]), prepare=False)
    cursor.nextset()
    # If as many rows were inserted as were promised, the staging table need not be read again. If not, the user's
    # triggers may have left rows out, so only a count tells whether staged rows are missing.
    if staged is not None and not staged.stored and cursor.rowcount != gathered.count:
        check_staged_rows(connection, staged)
    return None


def _by_key_in_tx(connection: psycopg.Connection, rows: GatheredRows, written: Written) -> Mapping[str, int] | None:
    if written.upsert is None:
        raise TypeError("rows are written by key")
    if needs_changes(written.upsert, written.changes):
        return apply_in_tx(connection, rows.source, rows.wanted, written)
    upsert_in_tx(connection, rows.source, rows.wanted, written.table, written.plan, written.upsert, rows.count)
    return None
