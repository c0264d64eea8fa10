"""
Write one batch: gather, lock, fit, write, put bad rows aside.

Runs in the commit, inside the transaction that records the batch. Invariant: a row is written to its table, or counted
as skipped or changed in another way, or put aside as a dead letter; all of its effects are in this transaction.

A batch for one table need not be gathered before the lock: its rows may be copied straight into the table.
Where rows choose among several tables, all are gathered first (:mod:`~pgonce.sink.writing.routes`), those of no table
are dealt with (:mod:`~pgonce.sink.writing.unrouted`), and the tables are locked in the order of their oids. Then the
tables are written in the order in which the user lists them (:mod:`~pgonce.sink.writing.write_table`), so that rows can
refer to those of a table before theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import psycopg
from sqlalchemy import Connection

from pgonce.offsets_store.commit.work import NamedSink, Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch

from ..options.destination import Destination
from ..options.routes import Routes
from .bad_rows.bounds import none_fits, too_many
from .bad_rows.letters import COUNTED
from .by_key.apply import WRITTEN
from .by_key.keys import refuse_actions_between
from .gathered import Gathering
from .routes import (
    gather_by_route_in_tx,
    listed_tables,
    lock_due_in_tx,
    rows_by_table,
    said_of,
    written_as_listed,
)
from .rows import Rows
from .savepoints import whole_or_failed
from .start_over import StartOver
from .table.table_name import ResolvedName, resolve_table
from .unrouted import DROPPED, settle_unrouted_in_tx
from .write_table import RowsForTable, TableOutcome, write_table_in_tx


def work_into(sink_name: str | None, where: Destination | Routes, rows: Rows) -> Work:
    """The work of a commit that writes ``rows``; the sink has the name that the user gave it, or one of its own."""
    # The tables as they were found when the sink was named, for the same transaction.
    found: Sequence[ResolvedName] | None = None

    def name_sink(connection: Connection) -> NamedSink:
        nonlocal found
        named, found = named_sink(driver_connection(connection), sink_name, where)
        return named

    def write(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
        return write_batch_in_tx(driver_connection(connection), where, rows, batch, stored, found, is_last=True)

    return Work(name_sink, write, has_several_tables=isinstance(where, Routes))


def named_sink(
    connection: psycopg.Connection, sink_name: str | None, where: Destination | Routes
) -> tuple[NamedSink, Sequence[ResolvedName]]:
    """The sink, and its tables as Postgres finds them along the user's search_path; in one round trip."""
    if isinstance(where, Routes):
        found, own_name = listed_tables(connection, where), where.sink_name
    else:
        found = [resolve_table(connection, where.table)]
        own_name = found[0].qualified_name
    return NamedSink(sink_name or own_name, {table.qualified_name: table.oid for table in found}), found


def write_batch_in_tx(
    connection: psycopg.Connection,
    where: Destination | Routes,
    rows: Rows,
    batch: Batch | None = None,
    stored: Offsets | None = None,
    found: Sequence[ResolvedName] | None = None,
    *,
    is_last: bool = False,
) -> Published:
    """
    Write those of ``rows`` that are at or past the positions ``stored``, and say what became of all.

    :param batch: whose rows they are, for the record of those that are put aside.
    :param found: what is known about the tables' names in this transaction.
    :param is_last: whether nothing else is written in it, so that deferred constraints are due.
    :raises ConfigurationError: BAD_ROUTES, if two routes end in one table.
    :raises TargetError: if a table is unfit or lacks what the mode needs, or if there are rows of unknown routes.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    wanted = rows.not_stored(stored)
    # Rows of several tables are gathered before one of these is refused.
    with whole_or_failed(connection) if isinstance(where, Routes) else nullcontext():
        if isinstance(where, Routes):
            plan = _gather_and_lock_in_tx(connection, where, wanted, batch, found)
        else:
            over = StartOver(batch.starts_over, batch.sink_name) if batch and batch.starts_over else None
            gathering, name = Gathering(connection, wanted), found[0] if found else None
            plan = _Plan([RowsForTable(where, wanted, gathering, name, over=over, is_last=is_last)])
        outcomes = []
        for part in plan.parts:
            with said_of(part.route):
                outcomes.append(write_table_in_tx(connection, part, batch))
    with whole_or_failed(connection):
        counts = Counter(plan.counts)
        for one in outcomes:
            counts.update(one.counts)
        changes = [part.destination.changes for part in plan.parts]
        refuse_actions_between(list(zip((one.table for one in outcomes), changes, strict=True)))
        _refuse_bad_batch(where, outcomes, counts)
    return _published(where, rows, plan, outcomes, counts)


@dataclass(frozen=True)
class _Plan:
    """
    The rows of each table, and what is known before any is written.

    ``listed`` are the tables among which rows choose, ``counts`` and ``unrouted`` are about rows of none of them, and
    ``notes`` says what was altered.
    """

    parts: Sequence[RowsForTable]
    listed: Mapping[str, ResolvedName] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    unrouted: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


def _gather_and_lock_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    rows: Rows,
    batch: Batch | None,
    found: Sequence[ResolvedName] | None,
) -> _Plan:
    """Gather all rows in one table, decide about those of no table, and lock the tables that get the others."""
    gathered = gather_by_route_in_tx(connection, rows, routes)
    found = found or listed_tables(connection, routes)
    listed = {route.value: table for route, table in zip(routes, found, strict=True)}
    counts = settle_unrouted_in_tx(connection, routes, listed, rows, gathered, batch)
    due = gathered.due(routes)
    notes = lock_due_in_tx(connection, due, listed, rows.columns)
    parts = rows_by_table(connection, due, listed, rows, gathered)
    unrouted = sum(gathered.counts.values()) - sum(part.rows.count() for part in parts)
    return _Plan(parts, listed, counts, unrouted, notes)


def _refuse_bad_batch(where: Destination | Routes, outcomes: Sequence[TableOutcome], counts: Mapping[str, int]) -> None:
    """Refuse a batch with more dead letters than any of its tables may have, or with dead letters alone."""
    aside = counts.get(COUNTED, 0)
    if not aside:
        return
    settings, name = [where.dead_letters], outcomes[0].table.qualified_name if outcomes else ""
    if isinstance(where, Routes):
        settings += [route.destination.dead_letters for route in where]
        name = f"the tables of {where.sink_name}"
    why = next((one.why for one in outcomes if one.why), "")
    most = max(each.most for each in settings if each is not None)
    if aside > most:
        raise too_many(name, most, why)
    fit = sum(one.rows for one in outcomes) + counts.get(DROPPED, 0)
    if not fit and aside > max(1, sum(one.too_early for one in outcomes)):
        raise none_fits(name, why)


def _published(
    where: Destination | Routes, rows: Rows, plan: _Plan, outcomes: Sequence[TableOutcome], counts: Mapping[str, int]
) -> Published:
    """What the ledger records. A temporary table of a function is left out: the next batch's is another one."""
    lasting = [one for one in outcomes if not one.table.is_temporary]
    there = {table.qualified_name: table.oid for table in plan.listed.values() if table.oid is not None}
    how = written_as_listed(where, plan.listed, rows.columns) if isinstance(where, Routes) else {}
    notes = dict(plan.notes)
    for table in (one.table for one in lasting if one.table.note):
        notes[table.qualified_name] = f"{notes.get(table.qualified_name, '')} {table.note}".strip()
    written = {one.table.qualified_name: one.rows for one in outcomes}
    return Published(
        sum(written.values()),
        rows.transport,
        rows.count() - plan.unrouted - sum(one.rows + one.refused for one in outcomes),
        there | {one.table.qualified_name: one.table.oid for one in lasting},
        dict(counts) if set(counts) - {WRITTEN} else None,
        written if isinstance(where, Routes) else None,
        next((part.over.deleted for part in plan.parts if part.over), None),
        notes,
        how | {one.table.qualified_name: one.written_as for one in lasting},
    )
