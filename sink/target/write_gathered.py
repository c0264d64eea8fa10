"""
How do rows that are gathered get from there into the target?

Runs in the commit. Invariant: the first statement that may refuse a row comes behind a savepoint, so that the row can
be looked for; staged rows are counted, if somebody has not done so yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from pgonce.sink.staging.staged_rows import StagedRows, check_staged_rows
from pgonce.sink.target.applying.apply import apply_in_tx, needs_changes
from pgonce.sink.target.keys.upsert import upsert_in_tx
from pgonce.sink.target.refused_values import RELEASE, SAVEPOINT, Written
from pgonce.sink.target.statements import insert_statement


@dataclass(frozen=True)
class GatheredRows:
    """
    The rows of the table ``source`` that are ``wanted``: ``count`` of them, or fewer.

    ``staged`` are those whose number nobody has checked yet.
    """

    source: sql.Identifier
    wanted: sql.Composable
    count: int
    staged: StagedRows | None = None

    def only(self, condition: sql.Composable) -> GatheredRows:
        """Those of which ``condition`` is true."""
        return replace(self, wanted=sql.SQL("({}) AND {}").format(self.wanted, condition))


def write_gathered_in_tx(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written
) -> Mapping[str, int] | None:
    """
    Write the rows; the counts say what became of them, if they do more than replace stored ones.

    :raises TargetError: if the rows, or the table, lack what writing by key needs.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    table, plan, upsert, staged = written.table, written.plan, written.upsert, gathered.staged
    source, wanted = gathered.source, gathered.wanted
    if upsert is not None:
        if staged is not None:
            check_staged_rows(connection, staged)
        if needs_changes(upsert, written.changes):
            return apply_in_tx(connection, source, wanted, written)
        upsert_in_tx(connection, source, wanted, table, plan, upsert, gathered.count)
        return None
    if staged is not None and staged.stored:
        check_staged_rows(connection, staged)
    insert = insert_statement(source, wanted, table, plan)
    cursor = connection.cursor()
    cursor.execute(sql.SQL("; ").join([SAVEPOINT, insert, RELEASE]), prepare=False)
    cursor.nextset()
    # If as many rows were inserted as were promised, the staging table need not be read again. If not, the user's
    # triggers may have left rows out, so only a count tells whether staged rows are missing.
    if staged is not None and not staged.stored and cursor.rowcount != gathered.count:
        check_staged_rows(connection, staged)
    return None
