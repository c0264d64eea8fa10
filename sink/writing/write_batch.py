"""
Write one batch: gather, lock, fit, write, and have bad rows put aside.

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

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import psycopg

from pgonce.offsets_store.commit.work import AskedSink, NamedSink, Work
from pgonce.offsets_store.errors import TargetError, bad_option
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.refused_rows import add_note
from pgonce.offsets_store.postgres.search_path import leave_in_tx
from pgonce.offsets_store.verdict.facts import Batch

from ..options.destination import Destination
from ..options.routes import Routes
from .empty_table import refuse_reaching_others
from .rooms import Plan, Rooms
from .rows import Gathering, Rows, whole_or_failed
from .table.table_name import ResolvedName, ask_for_tables
from .write_table import write_table_in_tx
from .written import PUT_ASIDE, WRITTEN, RowsForTable, TableOutcome

if TYPE_CHECKING:
    from sqlalchemy import Connection


def work_into(sink_name: str | None, where: Destination | Routes, rows: Rows, *, rooms: Rooms) -> Work[Batch | None]:
    """The work of a commit that writes ``rows``; the sink has the name that the user gave it, or one of its own."""
    # The tables as they were found when the sink was named, for the same transaction.
    found: Sequence[ResolvedName] | None = None

    def name_sink(connection: Connection) -> AskedSink:
        read_tables, name = ask_for_each_table(driver_connection(connection), where), _name_of(sink_name, where)

        def read() -> NamedSink:
            nonlocal found
            found = read_tables()
            return _named(name, found)

        return AskedSink(read, name)

    def write_rows_in_tx(connection: Connection, batch: Batch | None, stored: Offsets | None) -> Published:
        driver = driver_connection(connection)
        return write_batch_in_tx(
            driver, where, rows, batch, stored, found, rooms=rooms, is_last=True, restores_path=True
        )

    return Work(name_sink, write_rows_in_tx, has_several_tables=isinstance(where, Routes), restores_path=True)


def named_sink(connection: psycopg.Connection, sink_name: str | None, where: Destination | Routes) -> NamedSink:
    """The sink, and its tables as Postgres finds them along the user's search_path; in one round trip."""
    return _named(_name_of(sink_name, where), ask_for_each_table(connection, where)())


def ask_for_each_table(
    connection: psycopg.Connection, where: Destination | Routes
) -> Callable[[], Sequence[ResolvedName]]:
    """
    Ask which tables are meant along the user's search_path; the function that is returned reads the answer.

    It raises BAD_OPTION if two routes end in one table.
    """
    if not isinstance(where, Routes):
        return ask_for_tables(connection, [where.table])
    read = ask_for_tables(connection, [route.destination.table for route in where])

    def one_each() -> Sequence[ResolvedName]:
        found, by_table = read(), dict[int | str, str]()
        for route, table in zip(where, found, strict=True):
            other = by_table.setdefault(table.oid or table.qualified_name, route.value)
            if other != route.value:
                raise bad_option(
                    "BAD_OPTION",
                    f"{other!r} and {route.value!r} in tables both go into {table.qualified_name}, so it is unknown "
                    "which rows come first.",
                    "Give both values the same name in Spark, before the rows are written.",
                )
        return found

    return one_each


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
    rooms: Rooms,
    is_last: bool = False,
    restores_path: bool = False,
) -> Published:
    """
    Write those of ``rows`` that are at or past the positions ``stored``, and say what became of all.

    :param batch: whose rows they are, for the record of those that are put aside.
    :param found: what is known about the tables' names in this transaction.
    :param is_last: whether nothing else is written in it, so that deferred constraints are due.
    :param restores_path: whether our search_path is still in force; the user's is so afterwards.
    :raises ConfigurationError: BAD_OPTION, if two routes end in one table.
    :raises TargetError: if a table is unfit or lacks what the mode needs, or if there are rows of unknown routes.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    wanted = rows.not_stored(stored)
    if restores_path and (isinstance(where, Routes) or where.schema_evolution == "addColumns"):
        # Several tables are looked at, or a savepoint comes first that may be gone back to.
        leave_in_tx(connection)
        restores_path = False
    # Rows of several tables are gathered before one of these is refused.
    with whole_or_failed(connection) if isinstance(where, Routes) else nullcontext():
        if isinstance(where, Routes):
            plan = rooms.routes().plan_in_tx(connection, where, wanted, batch, found)
        else:
            gathering, name, done = Gathering(connection, wanted), found[0] if found else None, ""
            if where.schema_evolution == "addColumns":
                adding = rooms.new_columns()
                name, done = adding.add_columns_in_tx(connection, where, wanted.columns, name, gathering)
            part = RowsForTable(where, wanted, gathering, name, is_last=is_last, restores_path=restores_path)
            plan = Plan([part], notes={name.qualified_name: done} if name and done else {})
        outcomes = []
        for part in plan.parts:
            with said_of(part.route):
                outcomes.append(write_table_in_tx(connection, part, batch, rooms))
    with whole_or_failed(connection):
        counts = Counter(plan.counts)
        for one in outcomes:
            counts.update(one.counts)
        changes = [part.destination.changes for part in plan.parts]
        if any(changes):
            tables = (one.table for one in outcomes)
            rooms.by_key().refuse_actions_between(list(zip(tables, changes, strict=True)))
        written = zip(plan.parts, outcomes, strict=True)
        replaced = [one.table for part, one in written if part.destination.mode == "complete"]
        refuse_reaching_others(connection, replaced)
        if counts[PUT_ASIDE]:
            rooms.bad_rows().refuse_bad_batch(where, outcomes, counts, plan.unrouted)
    return _published(where, rows, plan, outcomes, counts)


@contextmanager
def said_of(route: str | None) -> Iterator[None]:
    """An error names the table that the rows are for, if there are several."""
    try:
        yield
    except TargetError as error:
        if route is None:
            raise
        raise error.beginning(f"For {route!r} in tables") from None
    except psycopg.Error as error:
        if route is not None:
            add_note(error, f"It is for {route!r} in tables")
        raise


def _published(
    where: Destination | Routes, rows: Rows, plan: Plan, outcomes: Sequence[TableOutcome], counts: Mapping[str, int]
) -> Published:
    """What the ledger records. A temporary table of a function is left out: the next batch's is another one."""
    lasting = [one for one in outcomes if not one.table.is_temporary]
    targets = {**plan.listed} | {one.table.qualified_name: one.table.oid for one in lasting}
    notes = {name: note for name, note in plan.notes.items() if name in targets}
    for table in (one.table for one in lasting if one.table.note):
        notes[table.qualified_name] = f"{notes.get(table.qualified_name, '')} {table.note}".strip()
    written = {one.table.qualified_name: one.rows for one in outcomes}
    return Published(
        sum(written.values()),
        rows.transport,
        rows.count() - plan.unrouted - sum(one.rows + one.refused for one in outcomes),
        targets,
        dict(counts) if set(counts) - {WRITTEN} else None,
        written if isinstance(where, Routes) else None,
        notes,
        {**plan.written_as} | {one.table.qualified_name: one.written_as for one in lasting},
    )
