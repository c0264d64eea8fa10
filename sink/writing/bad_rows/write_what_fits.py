"""
Write the rows of a batch without those that cannot be written, and put these aside.

Runs in the commit. Invariant: the whole batch is tried first. If Postgres refuses it for a row's sake, its rows are
written in their turn (:mod:`~pgonce.sink.writing.bad_rows.in_turn`), and the table as it stands in the end refuses each
row that is put aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.verdict.facts import Batch

from ...encoding.unfit_rows import UnfitRow
from ...options.destination import Destination
from ...options.routes import Routes, most_dead_letters
from ...staging import check_staged_rows
from ..by_key.unread_value import VALUE_NOT_READ
from ..by_key.write_changes import StillReferredToError
from ..recorded_destination import recorded
from ..rooms import Rooms
from ..rows import BACK, RELEASE, SAVEPOINT, GatheredRows, whole_or_failed
from ..table.catalogue import TargetTable
from ..write_table import copy_in_tx, goes_straight, outcome_of, write_gathered_in_tx
from ..written import PUT_ASIDE, UNROUTED, Counts, MustTakeTurnsError, RowsForTable, TableOutcome, Written
from .about_a_row import (
    BadRow,
    Kind,
    SearchBound,
    kind_of,
    may_be_a_rows,
    names_of,
    none_fits,
    of_one,
    refused_by,
    too_many,
)
from .in_turn import InTurn
from .letters import Letters
from .one_round import Rounds
from .refused_values import note_gathered


class Constraints:
    """
    The deferred constraints of a table: they are checked after the rows are written, while the transaction can still go
    back.

    Not where other tables of the transaction are still to be written, because a child may come before its parent.
    """

    def __init__(self, connection: psycopg.Connection, table: TargetTable, *, is_last: bool) -> None:
        self._connection = connection
        find = sql.SQL(_DEFERRED if is_last else "SELECT WHERE false").format(oid=table.oid)
        cursor = connection.cursor()
        # In one round trip with the savepoint for going back.
        cursor.execute(sql.SQL("SAVEPOINT pgonce_letters; {}").format(search_path.under_ours(find)), prepare=False)
        for _ in range(1 + search_path.ANSWERS_BEFORE):
            cursor.nextset()
        self.names = [sql.Identifier(*row) for row in cursor.fetchall()]

    def check(self) -> None:
        """:raises psycopg.errors.IntegrityError: if one of them is broken."""
        if self.names:
            names = sql.SQL(", ").join(self.names)
            self._connection.execute(sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(names))


_DEFERRED = """
SELECT n.nspname, c.conname FROM pg_constraint AS c JOIN pg_namespace AS n ON n.oid = c.connamespace
WHERE c.condeferred AND c.conrelid IN (SELECT {oid} UNION ALL SELECT relid FROM pg_partition_tree({oid}))
"""


def write_what_fits_in_tx(
    connection: psycopg.Connection,
    part: RowsForTable,
    written: Written,
    batch: Batch,
    most: int,
    rooms: Rooms,
) -> TableOutcome:
    """
    Write what the table takes, and the others, at most ``most``, as dead letters, with those that were not encoded.

    :raises TargetError: TOO_MANY_DEAD_LETTERS, SEARCH_TOO_LONG; and if no batch at all can be written.
    :raises psycopg.Error: what Postgres says that is not about the values of a row.
    """
    counts, gathered, bad = _written_and_bad_in_tx(connection, part, written, most, rooms)
    rows, unfit, table = part.rows, part.rows.unfit(), written.table
    outcome = outcome_of(connection, part, written, counts, len(bad))
    aside: list[BadRow | UnfitRow] = [*bad, *unfit]
    if not aside:
        return outcome
    why = of_one(aside[0])
    if len(aside) > most:
        raise too_many(table.qualified_name, most, why)
    named = replace(part.destination, table=table.identifier.as_string(None), dead_letters=None)
    letters = Letters(batch, table.qualified_name, recorded(named, rows.columns, table.oid))
    letters.write_unfit_in_tx(connection, unfit)
    if gathered is not None:
        letters.write_refused_in_tx(connection, gathered, bad, part.gathering.columns, rows.positions)
    counts = {**outcome.counts, PUT_ASIDE: len(aside)}
    # A record that is no object of JSON would be none for any table.
    apart = sum(row.code == VALUE_NOT_READ for row in bad) + sum(
        row.record is not None and not row.column_name for row in unfit
    )
    return replace(outcome, counts=counts, too_early=apart, why=why)


def _written_and_bad_in_tx(
    connection: psycopg.Connection, part: RowsForTable, written: Written, most: int, rooms: Rooms
) -> tuple[Counts, GatheredRows | None, Sequence[BadRow]]:
    """Write what the table takes; the others, at most ``most``, are returned with the rows among which they are."""
    refused = None
    if goes_straight(part, written):
        constraints = Constraints(connection, written.table, is_last=part.is_last)
        try:
            copy_in_tx(connection, part, written, rooms)
            constraints.check()
        except psycopg.Error as error:
            if not may_be_a_rows(error):
                raise
            refused = error
            _go_back(connection)
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
    counts, bad = _gathered_and_bad_in_tx(connection, part, gathered, written, most, refused, rooms)
    return counts, gathered, bad


def _gathered_and_bad_in_tx(
    connection: psycopg.Connection,
    part: RowsForTable,
    gathered: GatheredRows,
    written: Written,
    most: int,
    error: Exception | None,
    rooms: Rooms,
) -> tuple[Counts, list[BadRow]]:
    """
    Write those of the gathered rows that the table takes, and return their counts and the others.

    :param error: Postgres's refusal of the whole batch, if that was tried.
    """
    constraints = Constraints(connection, written.table, is_last=part.is_last)
    if error is None:
        try:
            counts = write_gathered_in_tx(connection, gathered, written, rooms)
            constraints.check()
        except MustTakeTurnsError:
            pass
        except (psycopg.Error, TargetError) as refused:
            if not may_be_a_rows(refused):
                if isinstance(refused, psycopg.Error):
                    note_gathered(connection, refused, written, gathered)
                raise
            error = refused
        else:
            return counts, []
    with whole_or_failed(connection):
        _go_back(connection)
        if gathered.staged is not None:
            check_staged_rows(connection, gathered.staged)
        names = names_of(connection, written.table)
        why = ""
        if isinstance(error, psycopg.Error):
            if kind_of(error) is Kind.CONSTRAINT and not names.of_error(error):
                raise error
            why = of_one(refused_by(error))
        bound = SearchBound.after(error, written.table.qualified_name, why)
        in_turn = InTurn(written, Rounds(connection, names, bound, most, constraints.names))
        counts = in_turn.write_in_tx(replace(gathered, staged=None), instead=error)
        constraints.check()
        return counts, in_turn.refused


_BY_ANOTHER = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation, StillReferredToError)


def _may_fit_in_turn(connection: psycopg.Connection, error: psycopg.Error, written: Written) -> bool:
    """
    Whether rows that ``error`` refuses may fit in their turn: a value may have moved from one of them to another, or a
    row may have left its parent before that is deleted. If so, the transaction is as it was before the rows.
    """
    if written.upsert is None or not isinstance(error, _BY_ANOTHER):
        return False
    try:
        # Released, because an error of another table of the batch would go back to it, and undo what is written.
        connection.execute(sql.SQL("; ").join([BACK, RELEASE]))
    except psycopg.errors.InvalidSavepointSpecification:
        # All rows had been written.
        return False
    return names_of(connection, written.table).of_error(error)


def write_in_turn_in_tx(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error | None
) -> Counts:
    """
    Write all rows in their turn, unless that cannot help.

    :param error: Postgres's refusal of the whole batch, if that was tried.
    :raises psycopg.Error: this refusal, with the row that it is about; or that of a row in its turn.
    """
    if error is not None and not _may_fit_in_turn(connection, error, written):
        note_gathered(connection, error, written, gathered)
        raise error
    if gathered.staged is not None:
        check_staged_rows(connection, gathered.staged)
    bound = SearchBound.after(error, written.table.qualified_name)
    rounds = Rounds(connection, names_of(connection, written.table), bound)
    connection.execute(SAVEPOINT)
    try:
        counts = InTurn(written, rounds).write_all_in_tx(replace(gathered, staged=None), instead=error)
    except psycopg.Error as refused:
        note_gathered(connection, refused, written, gathered)
        raise
    connection.execute(RELEASE)
    return counts


def _go_back(connection: psycopg.Connection) -> None:
    """Undo what was written since :class:`Constraints` was made."""
    connection.execute("ROLLBACK TO SAVEPOINT pgonce_letters")


def refuse_bad_batch(
    where: Destination | Routes, outcomes: Sequence[TableOutcome], counts: Mapping[str, int], unrouted: int
) -> None:
    """
    Refuse a batch with more dead letters than any of its tables may have, or with bad rows alone.

    :param unrouted: how many rows have unknown routes. No table was to take them, so those that were put aside are not
        among the bad ones.
    """
    aside = counts[PUT_ASIDE]
    name = f"the tables of {where.sink_name}" if isinstance(where, Routes) else outcomes[0].table.qualified_name
    why = next((one.why for one in outcomes if one.why), "")
    most = most_dead_letters(where)
    if most is not None and aside > most:
        raise too_many(name, most, why)
    dropped = counts.get(UNROUTED, 0)
    # Rows that could not be encoded may be among those that were dropped, but not among the unrouted ones.
    fit, bad = sum(one.rows for one in outcomes) + dropped, aside - max(0, unrouted - dropped)
    if not fit and bad > max(1, sum(one.too_early for one in outcomes)):
        raise none_fits(name, why)
