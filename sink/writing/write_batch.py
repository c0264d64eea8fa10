"""
Write one batch: gather, lock, fit, write, put bad rows aside.

Runs in the commit, inside the transaction that records the batch. Invariant: a row is written to its table, or counted
as skipped or changed in another way, or put aside as a dead letter; all of its effects are in this transaction. A row
of an unknown route goes into none of the tables; it stops the batch, or is counted with the batch, or is put aside. A
row that could not be encoded becomes a dead letter of the table that its route chooses; if its route is not known, one
of the sink.

A batch for one table need not be gathered before the lock: its rows may be copied straight into the table.
Where rows choose among several tables, all are gathered first (:mod:`~pgonce.sink.writing.routes`), those of no table
are dealt with, and the tables are locked in the order of their oids. Then the tables are written in the order in which
the user lists them (:mod:`~pgonce.sink.writing.write_table`), so that rows can refer to those of a table before theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.commit.work import AskedSink, NamedSink, Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.search_path import leave_in_tx
from pgonce.offsets_store.verdict.facts import Batch

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.destination import DeadLetters, Destination
from ..options.routes import Routes, most_dead_letters
from .bad_row import none_fits, not_encoded, of_one, too_many
from .bad_rows.letters import COUNTED, Letters
from .bad_rows.recorded_destination import recorded
from .by_key.apply import WRITTEN
from .by_key.keys import refuse_actions_between
from .empty_table import refuse_reaching_others
from .routes import (
    RowsByRoute,
    ask_for_listed_tables,
    gather_by_route_in_tx,
    has_readable_route,
    listed_tables,
    lock_due_in_tx,
    route_of,
    rows_by_table,
    said_of,
    unknown_routes,
    written_as_listed,
)
from .rows import Gathering, Rows, whole_or_failed
from .table.table_name import ResolvedName, ask_for_tables
from .write_table import RowsForTable, TableOutcome, write_table_in_tx

if TYPE_CHECKING:
    from sqlalchemy import Connection

_DROPPED = "unrouted"
"""The count of rows with unknown routes that are left out."""


def work_into(sink_name: str | None, where: Destination | Routes, rows: Rows) -> Work[Batch | None]:
    """The work of a commit that writes ``rows``; the sink has the name that the user gave it, or one of its own."""
    # The tables as they were found when the sink was named, for the same transaction.
    found: Sequence[ResolvedName] | None = None

    def name_sink(connection: Connection) -> AskedSink:
        read_tables, name = _ask_for_tables(driver_connection(connection), where), _name_of(sink_name, where)

        def read() -> NamedSink:
            nonlocal found
            found = read_tables()
            return _named(name, found)

        return AskedSink(read, name)

    def write_rows_in_tx(connection: Connection, batch: Batch | None, stored: Offsets | None) -> Published:
        driver = driver_connection(connection)
        return write_batch_in_tx(driver, where, rows, batch, stored, found, is_last=True, leaves=True)

    return Work(name_sink, write_rows_in_tx, has_several_tables=isinstance(where, Routes), leaves=True)


def named_sink(connection: psycopg.Connection, sink_name: str | None, where: Destination | Routes) -> NamedSink:
    """The sink, and its tables as Postgres finds them along the user's search_path; in one round trip."""
    return _named(_name_of(sink_name, where), _ask_for_tables(connection, where)())


def _ask_for_tables(
    connection: psycopg.Connection, where: Destination | Routes
) -> Callable[[], Sequence[ResolvedName]]:
    if isinstance(where, Routes):
        return ask_for_listed_tables(connection, where)
    return ask_for_tables(connection, [where.table])


def _name_of(sink_name: str | None, where: Destination | Routes) -> str | None:
    """The sink's name, unless it is the name of its one table."""
    return sink_name or (where.sink_name if isinstance(where, Routes) else None)


def _named(sink_name: str | None, found: Sequence[ResolvedName]) -> NamedSink:
    return NamedSink(sink_name or found[0].qualified_name, {table.qualified_name: table.oid for table in found})


def write_batch_in_tx(
    connection: psycopg.Connection,
    where: Destination | Routes,
    rows: Rows,
    batch: Batch | None = None,
    stored: Offsets | None = None,
    found: Sequence[ResolvedName] | None = None,
    *,
    is_last: bool = False,
    leaves: bool = False,
) -> Published:
    """
    Write those of ``rows`` that are at or past the positions ``stored``, and say what became of all.

    :param batch: whose rows they are, for the record of those that are put aside.
    :param found: what is known about the tables' names in this transaction.
    :param is_last: whether nothing else is written in it, so that deferred constraints are due.
    :param leaves: whether our search_path is still in force; the user's is so afterwards.
    :raises ConfigurationError: BAD_OPTION, if two routes end in one table.
    :raises TargetError: if a table is unfit or lacks what the mode needs, or if there are rows of unknown routes.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    wanted = rows.not_stored(stored)
    if leaves and (isinstance(where, Routes) or where.schema_evolution == "addColumns"):
        # Several tables are looked at, or a savepoint comes first that may be gone back to.
        leave_in_tx(connection)
        leaves = False
    # Rows of several tables are gathered before one of these is refused.
    with whole_or_failed(connection) if isinstance(where, Routes) else nullcontext():
        if isinstance(where, Routes):
            plan = _gather_and_lock_in_tx(connection, where, wanted, batch, found)
        else:
            gathering, name = Gathering(connection, wanted), found[0] if found else None
            plan = _Plan([RowsForTable(where, wanted, gathering, name, is_last=is_last, leaves=leaves)])
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
        written = zip(plan.parts, outcomes, strict=True)
        replaced = [one.table for part, one in written if part.destination.mode == "complete"]
        refuse_reaching_others(connection, replaced)
        _refuse_bad_batch(where, outcomes, counts, plan.unrouted)
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
    counts = _settle_unrouted_in_tx(connection, routes, listed, rows, gathered, batch)
    due = gathered.due(routes)
    notes = lock_due_in_tx(connection, due, listed, rows.columns)
    parts = rows_by_table(connection, due, listed, rows, gathered)
    unrouted = sum(gathered.counts.values()) - sum(part.rows.count() for part in parts)
    return _Plan(parts, listed, counts, unrouted, notes)


def _refuse_bad_batch(
    where: Destination | Routes, outcomes: Sequence[TableOutcome], counts: Mapping[str, int], unrouted: int
) -> None:
    """
    Refuse a batch with more dead letters than any of its tables may have, or with bad rows alone.

    :param unrouted: how many rows have unknown routes. No table was to take them, so those that were put aside are not
        among the bad ones.
    """
    aside = counts.get(COUNTED, 0)
    if not aside:
        return
    name = f"the tables of {where.sink_name}" if isinstance(where, Routes) else outcomes[0].table.qualified_name
    why = next((one.why for one in outcomes if one.why), "")
    most = most_dead_letters(where)
    if most is not None and aside > most:
        raise too_many(name, most, why)
    dropped = counts.get(_DROPPED, 0)
    # Rows that could not be encoded may be among those that were dropped, but not among the unrouted ones.
    fit, bad = sum(one.rows for one in outcomes) + dropped, aside - max(0, unrouted - dropped)
    if not fit and bad > max(1, sum(one.too_early for one in outcomes)):
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
        notes,
        how | {one.table.qualified_name: one.written_as for one in lasting},
    )


def _settle_unrouted_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    listed: Mapping[str, ResolvedName],
    rows: Rows,
    gathered: RowsByRoute,
    batch: Batch | None,
) -> Counter[str]:
    """
    Do with such rows what the user wants, and return their number as the batch's ``counts`` name it.

    :param batch: whose rows they are; without one, nothing is put aside.
    :raises TargetError: ROUTE_UNKNOWN, TOO_MANY_DEAD_LETTERS, and the error of a row that may not be put aside.
    """
    counts = Counter(_settle_unknown_in_tx(connection, routes, rows, gathered, batch))
    unfit = rows.unfit()
    if batch is not None and unfit:
        aside = _put_unfit_aside_in_tx(connection, routes, listed, unfit, rows.columns, batch)
        counts += Counter({COUNTED: aside, _DROPPED: len(unfit) - aside})
    return counts


def _settle_unknown_in_tx(
    connection: psycopg.Connection, routes: Routes, rows: Rows, gathered: RowsByRoute, batch: Batch | None
) -> dict[str, int]:
    known = {route.value for route in routes}
    unknown = {value: number for value, number in gathered.counts.items() if value not in known}
    if not unknown:
        return {}
    total = sum(unknown.values())
    if routes.unknown == "drop":
        return {_DROPPED: total}
    letters = routes.dead_letters
    if routes.unknown == "refuse" or letters is None or batch is None:
        raise unknown_routes(routes, unknown, "")
    if total > letters.most:
        raise unknown_routes(
            routes, unknown, f" These are more rows than maxDeadLetters={letters.most} allows in a batch."
        )
    # Such a row has no table, and so nothing says how it was to be written.
    aside = Letters(letters, batch, routes.sink_name, {})
    why = routes.column, "ROUTE_UNKNOWN", f"The value of {routes.column} is not in tables."
    aside.write_all_in_tx(connection, gathered.of(*unknown), why, rows.columns, rows.positions)
    return {COUNTED: total}


def _put_unfit_aside_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    listed: Mapping[str, ResolvedName],
    unfit: Sequence[UnfitRow],
    columns: Sequence[EncodedColumn],
    batch: Batch,
) -> int:
    """
    Write the rows that could not be encoded into the tables of dead letters; each table's own settings count.

    :return: how many were put aside. The others have an unknown route, and are to be left out.
    """

    def put_aside(found: list[UnfitRow], settings: DeadLetters | None, target: str, how: Mapping[str, Any]) -> None:
        if not found:
            return
        if settings is None:
            raise not_encoded(found[0])
        if len(found) > settings.most:
            raise too_many(target, settings.most, of_one(found[0]))
        Letters(settings, batch, target, how).write_unfit_in_tx(connection, found)

    by_value: dict[str | None, list[UnfitRow]] = defaultdict(list)
    for row in unfit:
        by_value[route_of(row, routes.column)].append(row)
    for route in routes:
        table, found = listed[route.value], by_value.pop(route.value, [])
        named = sql.Identifier(table.schema, table.name).as_string(None)
        where = replace(route.destination, table=named, dead_letters=None)
        how = recorded(where, route.written(columns), table.oid)
        with said_of(route.value):
            put_aside(found, route.destination.dead_letters, table.qualified_name, how)
    of_none = [row for found in by_value.values() for row in found]
    drops = routes.unknown == "drop"
    left = [row for row in of_none if not (drops and has_readable_route(row, routes.column))]
    put_aside(left, routes.dead_letters, routes.sink_name, {})
    return len(unfit) - (len(of_none) - len(left))
