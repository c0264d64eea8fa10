"""
Write the rows of a batch that are for one table: lock it, fit the rows to it, write them.

Runs in the commit. Invariant: rows are copied straight into the target only if their bytes are those of its columns'
types. Otherwise they go through a table of the encoded types and an INSERT, whose assignments Postgres checks. The
first statement that may refuse a gathered row comes behind a savepoint, so that the row can be looked for; staged rows
are counted, unless they were counted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.verdict.facts import Batch

from ..options.definitions import BY_KEY
from ..staging import check_staged_rows
from .checked_table import ColumnPlan, not_durable, target_for
from .empty_table import replace_all_in_tx
from .recorded_destination import written_as
from .rooms import Rooms
from .rows import RELEASE, SAVEPOINT, GatheredRows, copy_rows, fail_in_tx, whole_or_failed
from .table.catalogue import TargetTable
from .table.fit import Fit
from .table.lock import unsafe_partition
from .written import WRITTEN, Counts, MustTakeTurnsError, RowsForTable, TableOutcome, Written


def write_table_in_tx(
    connection: psycopg.Connection, part: RowsForTable, batch: Batch | None, rooms: Rooms
) -> TableOutcome:
    """
    Write the rows, all of them; or, where the user wants dead letters, those that the table takes.

    :param batch: whose rows they are, for the record of those that are put aside.
    """
    rows, to = part.rows, part.destination
    table, plan = target_for(connection, to, rows.columns, part.found, part.gathering, restores_path=part.restores_path)
    # From here on something may have been written when an error comes.
    with whole_or_failed(connection):
        upsert = rooms.by_key().plan_upsert(to, plan, table, rows.columns) if to.mode in BY_KEY else None
        # Nothing is written before there are rows; some commits wait for them here.
        part.gathering.bodies()
        if to.mode == "complete" and not part.is_emptied:
            replace_all_in_tx(connection, table, table.oid)
        written = Written(table, plan, rows.columns, upsert, rows.positions, to.changes)
        if to.dead_letters is not None and batch is not None:
            writing = rooms.bad_rows()
            outcome = writing.write_what_fits_in_tx(connection, part, written, batch, to.dead_letters, rooms)
        else:
            outcome = outcome_of(connection, part, written, _write_all_in_tx(connection, part, written, rooms))
    if not outcome.table.is_temporary and (culprit := unsafe_partition(connection, outcome.table)) is not None:
        fail_in_tx(connection)
        raise not_durable(culprit)
    return outcome


def _write_all_in_tx(connection: psycopg.Connection, part: RowsForTable, written: Written, rooms: Rooms) -> Counts:
    """Write all rows, or none; the counts say what became of them, if they do more than replace stored ones."""
    if goes_straight(part, written):
        copy_in_tx(connection, part, written, rooms)
        return None
    gathered, refused = part.gathering.rows(), None
    try:
        return write_gathered_in_tx(connection, gathered, written, rooms)
    except MustTakeTurnsError:
        pass
    except psycopg.Error as error:
        refused = error
    return rooms.bad_rows().write_in_turn_in_tx(connection, gathered, written, refused)


def goes_straight(part: RowsForTable, written: Written) -> bool:
    """Whether the rows can be copied into the target as they are."""
    if part.rows.staged is not None or written.upsert is not None or part.gathering.is_done:
        return False
    # COPY FROM is not supported with row-level security (0A000), and takes every column of the rows. It does not look
    # whether the domain of a column that the rows lack takes NULL.
    given = {column.target for column in written.plan}
    is_whole = len(written.plan) == len(written.columns)
    is_whole &= not any(column.is_domain for column in written.table.columns if column.column_name not in given)
    return is_whole and not written.table.row_security and all(c.fitting.fit is Fit.EXACT for c in written.plan)


def copy_in_tx(connection: psycopg.Connection, part: RowsForTable, written: Written, rooms: Rooms) -> None:
    """Copy the rows into the target; the error of Postgres says which of them it refuses."""
    columns = [column.target for column in written.plan]
    try:
        copy_rows(connection, written.table.identifier, columns, part.gathering.bodies())
    except psycopg.Error as error:
        rooms.bad_rows().note_copied(connection, error, written, part.rows.bodies)
        raise


def write_gathered_in_tx(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, rooms: Rooms
) -> Counts:
    """
    Write gathered rows.

    :raises MustTakeTurnsError: if the rows cannot be written at once.
    """
    staged = gathered.staged
    if written.upsert is not None:
        if staged is not None:
            check_staged_rows(connection, staged)
        return rooms.by_key().write_by_key_in_tx(connection, replace(gathered, staged=None), written)
    if staged is not None and staged.stored:
        check_staged_rows(connection, staged)
    insert = append_statement(gathered.source, gathered.wanted, written.table, written.plan)
    cursor = connection.cursor()
    cursor.execute(sql.SQL("; ").join([SAVEPOINT, insert, RELEASE]), prepare=False)
    cursor.nextset()
    # If as many rows were inserted as were promised, the staging table need not be read again. If not, the user's
    # triggers may have left rows out, so only a count tells whether staged rows are missing.
    if staged is not None and not staged.stored and cursor.rowcount != gathered.count:
        check_staged_rows(connection, staged)
    return None


def append_statement(
    source: sql.Composable, wanted: sql.Composable, table: TargetTable, plan: Sequence[ColumnPlan]
) -> sql.Composed:
    """``INSERT ... SELECT`` of the wanted rows of ``source``."""
    targets = [sql.Identifier(column.target) for column in plan]
    values = (sql.SQL("{} AS {}").format(column.value, name) for column, name in zip(plan, targets, strict=True))
    return sql.SQL("INSERT INTO {} AS target ({}) SELECT {} FROM {} WHERE {}").format(
        table.identifier, sql.SQL(", ").join(targets), sql.SQL(", ").join(values), source, wanted
    )


def outcome_of(
    connection: psycopg.Connection, part: RowsForTable, written: Written, counts: Counts, refused: int = 0
) -> TableOutcome:
    """What became of the rows, ``refused`` of which were not written, and the others as the ``counts`` say."""
    rows, table = part.rows, written.table
    number = rows.count() - (rows.staged.count_dropped(connection) if rows.staged else 0) - refused
    name, columns = table.identifier.as_string(None), tuple(rows.columns)
    recorded_as = written_as(part.destination, columns, name, table.oid)
    counts = counts or {WRITTEN: number}
    if counts.keys() == {WRITTEN} and counts[WRITTEN] < number:
        # Rows that came upon a stored row, which stays.
        counts = {WRITTEN: counts[WRITTEN], "passed_over": number - counts[WRITTEN]}
    return TableOutcome(table, recorded_as, number, counts, refused)
