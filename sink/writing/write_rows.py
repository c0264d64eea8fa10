"""
How do a batch's rows get into a table that is locked, checked and planned: straight, or by a table between?

Runs in the commit. Invariant: rows are copied straight into the target only if their bytes are those of its columns'
types. Otherwise they go through a table of the encoded types and an INSERT, whose assignments Postgres checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from ..encoding.encoded_types import EncodedColumn
from ..options.destination import Destination
from .bad_rows.bad_row import BadRow, RowsRefusedError
from .bad_rows.refusals import may_be_a_rows
from .bad_rows.write_what_fits import Constraints, go_back, write_what_fits_in_tx
from .by_key.keys import (
    plan_upsert,
)
from .checked_table import ColumnPlan
from .fitting.fit import (
    Fit,
)
from .gathering import Gathered, GatheredRows, copy_rows
from .refused_values import Written, note_copied, note_gathered
from .rows import Rows
from .start_over import StartOver
from .table.catalogue import TargetTable
from .table.empty_table import replace_all_in_tx
from .write_gathered import write_gathered_in_tx

Counts = Mapping[str, int]


@dataclass(frozen=True)
class RowsForTable:
    """The ``rows`` of a batch that are to be written as ``destination`` says, and how they come to Postgres."""

    connection: psycopg.Connection
    destination: Destination
    rows: Rows
    gathering: Gathered
    is_emptied: bool = False

    def write_in_tx(self, table: TargetTable, plan: tuple[ColumnPlan, ...], over: StartOver | None) -> Counts | None:
        """
        Write all of them, or none; the counts say what became of them, if they do more than replace stored ones.

        :param over: given if the rows take the place of all that the table has.
        """
        written = self._begun_in_tx(table, plan, over)
        if self._go_straight(written):
            self._copy_in_tx(written)
            return None
        gathered = self._gathered()
        try:
            return write_gathered_in_tx(self.connection, gathered, written)
        except RowsRefusedError as refused:
            raise refused.error from None
        except psycopg.Error as error:
            note_gathered(self.connection, error, written, gathered.source, gathered.wanted)
            raise

    def write_what_fits_in_tx(
        self, table: TargetTable, plan: tuple[ColumnPlan, ...], over: StartOver | None, most: int, *, is_last: bool
    ) -> tuple[Counts | None, GatheredRows | None, Sequence[BadRow]]:
        """
        Write those that the table takes; the others are returned, with the rows among which they were gathered.

        :param most: how many others there may be.
        :param is_last: whether nothing else is written in this transaction, so that deferred constraints are due.
        """
        written, refused = self._begun_in_tx(table, plan, over), None
        if self._go_straight(written):
            constraints = Constraints(self.connection, table, is_last=is_last)
            try:
                self._copy_in_tx(written)
                constraints.check()
            except psycopg.Error as error:
                if not may_be_a_rows(error):
                    raise
                refused = error
                go_back(self.connection)
                self.gathering.undone()
            else:
                return None, None, ()
        try:
            gathered = self._gathered()
        except psycopg.errors.InsufficientPrivilege:
            if refused is None:
                raise
            # The role may not create a temporary table, so the rows cannot be looked at.
            raise refused from None
        constraints = Constraints(self.connection, table, is_last=is_last)
        counts, bad = write_what_fits_in_tx(self.connection, gathered, written, constraints, most, refused)
        return counts, gathered, bad

    def _begun_in_tx(self, table: TargetTable, plan: tuple[ColumnPlan, ...], over: StartOver | None) -> Written:
        """What is to be written. Rows that it takes the place of are gone."""
        rows, destination = self.rows, self.destination
        upsert = plan_upsert(destination, plan, table, rows.columns)
        # Nothing is written before there are rows; some commits wait for them here.
        self.gathering.bodies()
        if over is not None:
            over.empty_in_tx(self.connection, table)
        if destination.mode == "complete" and not self.is_emptied:
            replace_all_in_tx(self.connection, table, table.oid)
        return Written(table, plan, rows.columns, upsert, rows.positions, destination.changes)

    def _go_straight(self, written: Written) -> bool:
        is_direct = self.rows.staged is None and written.upsert is None and not self.gathering.is_done
        return is_direct and _takes_bytes(written.table, written.plan, self.rows.columns)

    def _copy_in_tx(self, written: Written) -> None:
        columns = [column.target for column in written.plan]
        try:
            copy_rows(self.connection, written.table.identifier, columns, self.gathering.bodies())
        except psycopg.Error as error:
            note_copied(self.connection, error, written, self.rows.bodies)
            raise

    def _gathered(self) -> GatheredRows:
        source = self.gathering()
        return GatheredRows(source, self.gathering.wanted, self.rows.count(), self.rows.staged)


def _takes_bytes(table: TargetTable, plan: Sequence[ColumnPlan], columns: Sequence[EncodedColumn]) -> bool:
    # COPY FROM is not supported with row-level security (0A000), and takes every column of the rows.
    is_whole = len(plan) == len(columns)
    return is_whole and not table.row_security and all(column.fitting.fit is Fit.EXACT for column in plan)
