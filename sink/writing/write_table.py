"""
Write the rows of a batch that are for one table: lock it, fit the rows to it, write them, put the bad ones aside.

Runs in the commit. Invariant: rows are copied straight into the target only if their bytes are those of its columns'
types. Otherwise they go through a table of the encoded types and an INSERT, whose assignments Postgres checks. The
first statement that may refuse a gathered row comes behind a savepoint, so that the row can be looked for; staged rows
are counted, unless they were counted before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.ledger.published import WrittenAs
from pgonce.offsets_store.verdict.facts import Batch

from ..encoding.unfit_rows import UnfitRow
from ..options.destination import DeadLetters, Destination
from ..staging import check_staged_rows
from .bad_row import BadRow, RowsRefusedError, may_be_a_rows, of_one, too_many
from .bad_rows.letters import COUNTED, Letters
from .bad_rows.recorded_destination import recorded, written_as
from .bad_rows.refused_values import note_copied, note_gathered
from .bad_rows.write_what_fits import (
    Constraints,
    go_back,
    may_fit_in_turn,
    must_take_turns,
    write_all_in_turn_in_tx,
    write_what_fits_in_tx,
)
from .by_key.apply import WRITTEN, apply_in_tx, needs_changes
from .by_key.deciding_changes import VALUE_NOT_READ
from .by_key.keys import Written, plan_upsert
from .by_key.statements import insert_statement
from .by_key.upsert import upsert_in_tx
from .checked_table import ColumnPlan, not_durable, target_for
from .empty_table import replace_all_in_tx
from .rows import RELEASE, SAVEPOINT, GatheredRows, Gathering, Rows, copy_rows, fail_in_tx, whole_or_failed
from .table.catalogue import TargetTable
from .table.fit import Fit
from .table.lock import unsafe_partition
from .table.table_name import ResolvedName

Counts = Mapping[str, int]


@dataclass(frozen=True)
class RowsForTable:
    """
    The ``rows`` of a batch that are to be written as ``destination`` says, and how the transaction stands by then.

    :param gathering: brings them to Postgres.
    :param found: what is known about the table's name.
    :param route: the value that chooses this table among several.
    :param is_last: whether nothing else is written afterwards.
    :param is_emptied: whether the table that a complete batch replaces is empty.
    :param leaves: whether our search_path is still in force, and the user's is to be set with the lock.
    """

    destination: Destination
    rows: Rows
    gathering: Gathering
    found: ResolvedName | None = None
    route: str | None = None
    is_last: bool = False
    is_emptied: bool = False
    leaves: bool = False


@dataclass(frozen=True)
class TableOutcome:
    """
    What became of the rows for ``table``, which is described as it is now.

    ``refused`` of the batch's rows were put aside, and ``rows`` are the others that were not stored before; ``counts``
    says what became of all rows, including those that could not be encoded. ``too_early`` of them do not speak against
    the table: they are bad only because the rows that they update are not there yet. ``why`` says in a sentence why a
    row is bad.
    """

    table: TargetTable
    written_as: WrittenAs
    rows: int
    counts: Counts
    refused: int = 0
    too_early: int = 0
    why: str = ""


def write_table_in_tx(connection: psycopg.Connection, part: RowsForTable, batch: Batch | None) -> TableOutcome:
    """
    Write the rows, all of them; or, where the user wants dead letters, those that the table takes.

    :param batch: whose rows they are, for the record of those that are put aside.
    :raises TargetError: if the table is unfit or lacks what the mode needs.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    table, plan = target_for(
        connection, part.destination, part.rows.columns, part.found, part.gathering, leaves=part.leaves
    )
    # From here on something may have been written when an error comes.
    with whole_or_failed(connection):
        outcome = _written_in_tx(connection, part, batch, table, plan)
    if not outcome.table.is_temporary and (culprit := unsafe_partition(connection, outcome.table)) is not None:
        fail_in_tx(connection)
        raise not_durable(culprit)
    return outcome


def _written_in_tx(
    connection: psycopg.Connection,
    part: RowsForTable,
    batch: Batch | None,
    table: TargetTable,
    plan: tuple[ColumnPlan, ...],
) -> TableOutcome:
    letters, written = part.destination.dead_letters, _begun_in_tx(connection, part, table, plan)
    if letters is None or batch is None:
        try:
            return _outcome(connection, part, table, _write_all_in_tx(connection, part, written))
        except RowsRefusedError as refused:
            raise refused.error from None
    counts, gathered, bad = _write_what_fits_in_tx(connection, part, written, letters.most)
    outcome = _outcome(connection, part, table, counts, len(bad))
    return _with_dead_letters(connection, part, batch, letters, outcome, gathered, bad)


def _begun_in_tx(
    connection: psycopg.Connection, part: RowsForTable, table: TargetTable, plan: tuple[ColumnPlan, ...]
) -> Written:
    """What is to be written. Rows that it takes the place of are gone."""
    rows, destination = part.rows, part.destination
    upsert = plan_upsert(destination, plan, table, rows.columns)
    # Nothing is written before there are rows; some commits wait for them here.
    part.gathering.bodies()
    if destination.mode == "complete" and not part.is_emptied:
        replace_all_in_tx(connection, table, table.oid)
    return Written(table, plan, rows.columns, upsert, rows.positions, destination.changes)


def _write_all_in_tx(connection: psycopg.Connection, part: RowsForTable, written: Written) -> Counts | None:
    """
    Write all rows, or none; the counts say what became of them, if they do more than replace stored ones.

    :raises RowsRefusedError: for rows that were found to be the reason.
    """
    if _go_straight(part, written):
        _copy_in_tx(connection, part, written)
        return None
    gathered = part.gathering.rows()
    refused = None
    if not must_take_turns(connection, gathered, written):
        try:
            return _write_gathered_in_tx(connection, gathered, written)
        except psycopg.Error as error:
            if not may_fit_in_turn(connection, error, written):
                note_gathered(connection, error, written, gathered)
                raise
            refused = error
    return write_all_in_turn_in_tx(connection, gathered, written, refused)


def _write_what_fits_in_tx(
    connection: psycopg.Connection, part: RowsForTable, written: Written, most: int
) -> tuple[Counts | None, GatheredRows | None, Sequence[BadRow]]:
    """Write what the table takes; the others, at most ``most``, are returned with the rows among which they are."""
    refused = None
    if _go_straight(part, written):
        constraints = Constraints(connection, written.table, is_last=part.is_last)
        try:
            _copy_in_tx(connection, part, written)
            constraints.check()
        except psycopg.Error as error:
            if not may_be_a_rows(error):
                raise
            refused = error
            go_back(connection)
            part.gathering.undone()
        else:
            return None, None, ()
    try:
        gathered = part.gathering.rows()
    except psycopg.errors.InsufficientPrivilege:
        if refused is None:
            raise
        # The role may not create a temporary table, so the rows cannot be looked at.
        raise refused from None
    constraints = Constraints(connection, written.table, is_last=part.is_last)

    def attempt(rows: GatheredRows) -> Counts | None:
        counts = _write_gathered_in_tx(connection, rows, written)
        constraints.check()
        return counts

    counts, bad = write_what_fits_in_tx(connection, gathered, written, attempt, constraints, most, refused)
    return counts, gathered, bad


def _go_straight(part: RowsForTable, written: Written) -> bool:
    """Whether the rows can be copied into the target as they are."""
    if part.rows.staged is not None or written.upsert is not None or part.gathering.is_done:
        return False
    # COPY FROM is not supported with row-level security (0A000), and takes every column of the rows. It does not look
    # whether the domain of a column that the rows lack takes NULL.
    given = {column.target for column in written.plan}
    is_whole = len(written.plan) == len(written.columns)
    is_whole &= not any(column.is_domain for column in written.table.columns if column.column_name not in given)
    return is_whole and not written.table.row_security and all(c.fitting.fit is Fit.EXACT for c in written.plan)


def _copy_in_tx(connection: psycopg.Connection, part: RowsForTable, written: Written) -> None:
    columns = [column.target for column in written.plan]
    try:
        copy_rows(connection, written.table.identifier, columns, part.gathering.bodies())
    except psycopg.Error as error:
        note_copied(connection, error, written, part.rows.bodies)
        raise


def _write_gathered_in_tx(connection: psycopg.Connection, gathered: GatheredRows, written: Written) -> Counts | None:
    """
    Write gathered rows.

    :raises TargetError: if the rows, or the table, lack what writing by key needs.
    :raises RowsRefusedError: for rows that were found to be the reason.
    :raises StagingError: if staged rows are missing, or if there are too many.
    """
    staged, upsert = gathered.staged, written.upsert
    if upsert is not None:
        if staged is not None:
            check_staged_rows(connection, staged)
        rows = replace(gathered, staged=None)
        if needs_changes(upsert, written.changes):
            return apply_in_tx(connection, rows, written)
        done = upsert_in_tx(connection, rows, written)
        return {WRITTEN: done} if upsert.existing.stored_stays else None
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


def _outcome(
    connection: psycopg.Connection, part: RowsForTable, table: TargetTable, counts: Counts | None, refused: int = 0
) -> TableOutcome:
    rows, name = part.rows, table.identifier.as_string(None)
    number = rows.count() - (rows.staged.count_dropped(connection) if rows.staged else 0) - refused
    recorded_as = written_as(part.destination, tuple(rows.columns), name, table.oid)
    counts = counts or {WRITTEN: number}
    if counts.keys() == {WRITTEN} and counts[WRITTEN] < number:
        # Rows that came upon a stored row, which stays.
        counts = {WRITTEN: counts[WRITTEN], "passed_over": number - counts[WRITTEN]}
    return TableOutcome(table, recorded_as, number, counts, refused)


def _with_dead_letters(
    connection: psycopg.Connection,
    part: RowsForTable,
    batch: Batch,
    settings: DeadLetters,
    outcome: TableOutcome,
    gathered: GatheredRows | None,
    bad: Sequence[BadRow],
) -> TableOutcome:
    """Write the rows that are left as dead letters, and count them."""
    rows, unfit, table = part.rows, part.rows.unfit(), outcome.table
    aside: list[BadRow | UnfitRow] = [*bad, *unfit]
    if not aside:
        return outcome
    why = of_one(aside[0])
    if len(aside) > settings.most:
        raise too_many(table.qualified_name, settings.most, why)
    named = replace(part.destination, table=table.identifier.as_string(None), dead_letters=None)
    letters = Letters(settings, batch, table.qualified_name, recorded(named, rows.columns, table.oid))
    letters.write_unfit_in_tx(connection, unfit)
    if gathered is not None:
        letters.write_refused_in_tx(connection, gathered, bad, part.gathering.columns, rows.positions)
    counts = {**outcome.counts, COUNTED: len(aside)}
    return replace(outcome, counts=counts, too_early=sum(row.code == VALUE_NOT_READ for row in bad), why=why)
