"""
Put a batch's rows into their target table, inside the transaction that records the batch.

Runs in the commit. Invariant: a row is written, or counted as something else that became of it, or put aside as a dead
letter; whatever is left of it is left by this transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import psycopg
from sqlalchemy import Connection

from pgonce.offsets_store.commit.work import NamedSink, Work
from pgonce.offsets_store.ledger.published import Published, WrittenAs
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch

from ..options.destination import DeadLetters, Destination
from .bad_rows.bad_row import BadRow
from .bad_rows.bounds import none_fits, of_one, too_many
from .bad_rows.letters import COUNTED, Letters
from .bad_rows.recorded_destination import recorded, written_as
from .bad_rows.write_what_fits import Constraints
from .by_key.apply import WRITTEN
from .by_key.deciding_changes import (
    VALUE_NOT_READ,
)
from .checked_table import not_durable, target_for
from .evolution.too_narrow import written_to_wider
from .gathering import Gathered, GatheredRows, Gathering
from .rows import Rows
from .start_over import StartOver
from .table.catalogue import TargetTable
from .table.lock import unsafe_partition
from .table.table_name import ResolvedName, resolve_table
from .whole_or_failed import fail_in_tx, whole_or_failed
from .write_rows import Counts, RowsForTable


@dataclass(frozen=True)
class TableResult:
    """
    The table that rows were written to, as it is now.

    ``counts`` says what became of the rows, if they do more than replace stored ones. ``put_aside`` of them could not
    be written, and are dead letters now; ``why`` says of one of them why, as a sentence. ``too_early`` of them say
    nothing about the table, because only their rows are not there yet. ``written_as`` says how rows are written into
    it.
    """

    table: TargetTable
    counts: Counts | None
    put_aside: int = 0
    too_early: int = 0
    why: str = ""
    written_as: WrittenAs | None = None


@dataclass(frozen=True)
class Turn:
    """
    How the writing of one table stands in its transaction.

    ``found`` is what is known about the table's name, and ``gathering`` says how the rows come to Postgres, if not for
    this table alone. ``over`` is given if the rows take the place of all that the table has. ``is_last`` says whether
    nothing else is written afterwards, and ``is_emptied`` whether the table that a complete batch replaces is empty.
    """

    found: ResolvedName | None = None
    gathering: Gathered | None = None
    over: StartOver | None = None
    is_last: bool = False
    is_emptied: bool = False


def publication(sink_name: str | None, destination: Destination, rows: Rows) -> Work:
    """
    The work of a commit that writes ``rows`` into one table.

    The sink's name is the one that the user gave it, else the qualified target table.
    """
    # The table after which the sink was named, for the same transaction.
    found: ResolvedName | None = None

    def name_sink(connection: Connection) -> NamedSink:
        nonlocal found
        found = resolve_table(driver_connection(connection), destination.table)
        return NamedSink(sink_name or found.qualified_name, {found.qualified_name: found.oid})

    def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
        chosen = rows.not_stored(stored)
        driver = driver_connection(connection)
        over = StartOver(batch.starts_over, batch.sink_name) if batch.starts_over else None
        result = publish_rows_in_tx(driver, destination, chosen, batch, Turn(found, over=over, is_last=True))
        kept = chosen.count() - (chosen.staged.count_dropped(driver) if chosen.staged else 0)
        name, emptied = result.table.qualified_name, over.deleted if over else None
        notes = {name: result.table.note} if result.table.note else {}
        return Published(
            kept - result.put_aside,
            rows.transport,
            rows.count() - kept,
            {name: result.table.oid},
            result.counts,
            emptied=emptied,
            notes=notes,
            written_as={name: result.written_as} if result.written_as else {},
        )

    return Work(name_sink, publish)


def publish_rows_in_tx(
    connection: psycopg.Connection,
    destination: Destination,
    rows: Rows,
    batch: Batch | None = None,
    turn: Turn = Turn(),
) -> TableResult:
    """
    Write ``rows`` as ``destination`` says.

    :param batch: whose rows they are, for the record of those that are put aside as dead letters.
    :raises TargetError: if the table is unfit or lacks what the mode needs.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    gathering, over = turn.gathering or Gathering(connection, rows), turn.over
    for_table = RowsForTable(connection, destination, rows, gathering, turn.is_emptied)
    letters = destination.dead_letters if batch else None

    def write(too_narrow: Collection[str] = (), *, may_divert: bool = True) -> TableResult:
        table, plan = target_for(connection, destination, rows.columns, turn.found, gathering, too_narrow)
        # From here on something may have been written when an error comes.
        with whole_or_failed(connection):
            if letters is None or batch is None:
                return TableResult(table, for_table.write_in_tx(table, plan, over))
            among: GatheredRows | None = None
            bad: Sequence[BadRow] = ()
            if may_divert:
                counts, among, bad = for_table.write_what_fits_in_tx(
                    table, plan, over, letters.most, is_last=turn.is_last
                )
            else:
                constraints = Constraints(connection, table, is_last=turn.is_last)
                counts = for_table.write_in_tx(table, plan, over)
                constraints.check()
            result = TableResult(table, counts, len(bad))
            # The rows of several tables are judged together.
            return _with_dead_letters(for_table, batch, letters, result, among, bad, is_whole=turn.gathering is None)

    if destination.schema_evolution == "addColumns":
        result = written_to_wider(connection, destination, rows.columns, gathering, write)
    else:
        result = write()
    if not result.table.is_temporary and (culprit := unsafe_partition(connection, result.table)) is not None:
        fail_in_tx(connection)
        raise not_durable(culprit)
    identifier = result.table.identifier.as_string(None)
    return replace(result, written_as=written_as(destination, tuple(rows.columns), identifier, result.table.oid))


def _with_dead_letters(
    for_table: RowsForTable,
    batch: Batch,
    settings: DeadLetters,
    result: TableResult,
    gathered: GatheredRows | None,
    bad: Sequence[BadRow],
    *,
    is_whole: bool,
) -> TableResult:
    """Write the rows that are left as dead letters, and count them; ``is_whole``: these are all rows of the batch."""
    rows, unfit, table = for_table.rows, for_table.rows.unfit(), result.table.qualified_name
    if not bad and not unfit:
        return result
    first = bad[0] if bad else unfit[0]
    stored_before = rows.staged.count_dropped(for_table.connection) if rows.staged else 0
    written = rows.count() - stored_before - len(bad)
    if len(bad) + len(unfit) > settings.most:
        raise too_many(table, settings.most, of_one(first))
    too_early = sum(row.code == VALUE_NOT_READ for row in bad)
    if is_whole and not written and len(bad) + len(unfit) > max(1, too_early):
        raise none_fits(table, of_one(first))
    named = replace(for_table.destination, table=result.table.identifier.as_string(None), dead_letters=None)
    how = recorded(named, rows.columns, result.table.oid)
    letters = Letters(settings, batch, table, how)
    letters.write_unfit_in_tx(for_table.connection, unfit)
    if gathered is not None:
        letters.write_refused_in_tx(for_table.connection, gathered, bad, rows.columns, rows.positions)
    counts = {**(result.counts or {WRITTEN: written}), COUNTED: len(bad) + len(unfit)}
    return replace(result, counts=counts, too_early=too_early, why=of_one(first))
