"""
Put a batch's rows into their target table, inside the transaction that records the batch.

Runs in the commit. Invariant: rows are copied straight into the target only if their bytes are those of its columns'
types. Otherwise they go through a table of the encoded types and an INSERT, whose assignments Postgres checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.settings import Destination
from pgonce.sink.staging.staged_rows import check_staged_rows
from pgonce.sink.target.apply import apply_in_tx, needs_changes
from pgonce.sink.target.batch_rows import BatchRows
from pgonce.sink.target.catalogue import ResolvedName, TargetTable, resolve_table
from pgonce.sink.target.checked_table import ColumnPlan, not_durable, target_for
from pgonce.sink.target.fit import Fit
from pgonce.sink.target.gathering import Gathering, copy_rows
from pgonce.sink.target.key_plan import plan_upsert
from pgonce.sink.target.lock import unsafe_partition
from pgonce.sink.target.refused_values import RELEASE, SAVEPOINT, Written, note_copied, note_gathered
from pgonce.sink.target.start_over import StartOver
from pgonce.sink.target.statements import insert_statement
from pgonce.sink.target.too_narrow import written_to_wider
from pgonce.sink.target.upsert import upsert_in_tx

Counts = Mapping[str, int]


def publication(sink_name: str | None, destination: Destination, rows: BatchRows) -> Work:
    """
    The work of a commit that writes ``rows`` into one table.

    The sink's name is the one that the user gave it, else the qualified target table.
    """
    # The table after which the sink was named, for the same transaction.
    found: ResolvedName | None = None

    def name_sink(connection: Connection) -> str:
        nonlocal found
        found = resolve_table(driver_connection(connection), destination.table)
        return sink_name or found.qualified_name

    def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
        chosen = rows.since(stored) if stored and rows.positions else rows
        driver = driver_connection(connection)
        over = StartOver(batch.starts_over, batch.sink_name) if batch.starts_over else None
        table, counts = publish_rows_in_tx(driver, destination, chosen, found, over)
        published = chosen.count() - (chosen.staged.count_dropped(driver) if chosen.staged else 0)
        targets, emptied = {table.qualified_name: table.oid}, over.deleted if over else None
        notes = {table.qualified_name: table.note} if table.note else {}
        return Published(published, rows.transport, rows.count() - published, targets, counts, emptied, notes)

    return Work(name_sink, publish)


def publish_rows_in_tx(
    connection: psycopg.Connection,
    destination: Destination,
    rows: BatchRows,
    found: ResolvedName | None = None,
    over: StartOver | None = None,
) -> tuple[TargetTable, Counts | None]:
    """
    Write ``rows`` as ``destination`` says, and return the table that they are in.

    The counts say what became of the rows, if they do more than replace stored ones.

    :param found: what is known about the table's name in this transaction.
    :param over: given if the rows take the place of all that the table has.
    :raises TargetError: if the table is unfit or lacks what the mode needs.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    gathering = Gathering(connection, rows)

    def write(too_narrow: Collection[str] = ()) -> tuple[TargetTable, Counts | None]:
        table, plan = target_for(connection, destination, rows.columns, found, gathering, too_narrow)
        return table, _write_rows_in_tx(connection, destination, rows, table, plan, gathering, over)

    if destination.schema_evolution == "addColumns":
        table, counts = written_to_wider(connection, destination, rows.columns, gathering, write)
    else:
        table, counts = write()
    if (culprit := unsafe_partition(connection, table)) is not None:
        raise not_durable(culprit)
    return table, counts


def _write_rows_in_tx(
    connection: psycopg.Connection,
    destination: Destination,
    rows: BatchRows,
    table: TargetTable,
    plan: tuple[ColumnPlan, ...],
    gathering: Gathering,
    over: StartOver | None,
) -> Counts | None:
    upsert = plan_upsert(destination, plan, table, rows.columns)
    written = Written(table, plan, rows.columns, upsert, rows.positions, destination.changes)
    # Nothing is written before there are rows; some commits wait for them here.
    bodies = gathering.bodies()
    if over is not None:
        over.empty_in_tx(connection, table)
    if destination.mode == "complete":
        # Not TRUNCATE: it locks readers out, and older snapshots would see the table empty. Whoever replaces all rows
        # takes turns with others that do: of two at once, neither would see, and delete, the rows of the other.
        replace = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({}, 0)); DELETE FROM {}"
        whose_turn = sql.Literal(f"replacing all rows of {table.qualified_name}")
        connection.execute(sql.SQL(replace).format(whose_turn, table.identifier), prepare=False)
    is_direct = rows.staged is None and upsert is None and not gathering.is_done
    if is_direct and _goes_straight(table, plan, rows.columns):
        try:
            copy_rows(connection, table.identifier, [column.target for column in plan], bodies)
        except psycopg.Error as error:
            note_copied(connection, error, written, rows.bodies)
            raise
        return None
    source, wanted = gathering(), gathering.wanted
    try:
        return _write_gathered_in_tx(connection, rows, written, source, wanted)
    except psycopg.Error as error:
        note_gathered(connection, error, written, source, wanted)
        raise


def _write_gathered_in_tx(
    connection: psycopg.Connection,
    rows: BatchRows,
    written: Written,
    source: sql.Identifier,
    wanted: sql.Composable,
) -> Counts | None:
    table, plan, upsert = written.table, written.plan, written.upsert
    if upsert is not None:
        if rows.staged is not None:
            check_staged_rows(connection, rows.staged)
        if needs_changes(upsert, written.changes):
            return apply_in_tx(connection, source, wanted, written)
        upsert_in_tx(connection, source, wanted, table, plan, upsert, rows.count())
        return None
    if rows.staged is not None and rows.staged.stored:
        check_staged_rows(connection, rows.staged)
    insert = insert_statement(source, wanted, table, plan)
    cursor = connection.cursor()
    cursor.execute(sql.SQL("; ").join([SAVEPOINT, insert, RELEASE]), prepare=False)
    cursor.nextset()
    # If as many rows were inserted as were promised, the staging table need not be read again. If not, the user's
    # triggers may have left rows out, so only a count tells whether staged rows are missing.
    if rows.staged is not None and not rows.staged.stored and cursor.rowcount != rows.count():
        check_staged_rows(connection, rows.staged)
    return None


def _goes_straight(table: TargetTable, plan: Sequence[ColumnPlan], columns: Sequence[EncodedColumn]) -> bool:
    # COPY FROM is not supported with row-level security (0A000), and takes every column of the rows.
    is_whole = len(plan) == len(columns)
    return is_whole and not table.row_security and all(column.fitting.fit is Fit.EXACT for column in plan)
