"""
Put a batch's rows into the tables that they choose, inside the transaction that records the batch.

Runs in the commit. Invariant: each row is written to the one table that the user lists for its value; the tables are
written in the order in which the user lists them, so that rows can refer to those of a table before theirs.

The steps, in this order:

1. gather all rows in one table, and count those of each route: ``gather_in_tx``
2. decide about rows of unknown routes, and those that could not be encoded: ``settle_unknown_in_tx``,
   ``put_unfit_aside_in_tx``
3. lock the tables that get rows, and take the turns that they need, in the order of their oids: ``lock_listed_in_tx``
4. write table by table: ``publish_rows_in_tx``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.published import WrittenAs
from pgonce.offsets_store.postgres.refused_rows import add_note
from pgonce.offsets_store.verdict.facts import Batch

from ...encoding.encoded_types import EncodedColumn
from ...options.by_key import Changes
from ...options.routes import Routes
from ..bad_rows.bounds import none_fits, too_many
from ..bad_rows.letters import COUNTED
from ..bad_rows.recorded_destination import written_as
from ..by_key.apply import WRITTEN
from ..by_key.keys import (
    refuse_actions_between,
)
from ..publish import Turn, publish_rows_in_tx
from ..rows import Rows
from ..table.catalogue import TargetTable
from ..table.empty_table import replace_all_in_tx
from ..whole_or_failed import whole_or_failed
from .gathered_rows import gather_in_tx, indexed_in_tx, rows_of
from .listed_tables import Listed, listed_tables, lock_listed_in_tx
from .unfit_routes import put_unfit_aside_in_tx
from .unknown_routes import DROPPED, settle_unknown_in_tx


@dataclass(frozen=True)
class RoutedResult:
    """
    What became of the rows.

    ``targets`` are all listed tables that exist, with their oids, and ``tables`` those that were written, with the
    number of their rows. ``counts`` says what became of the rows if not all were simply written. ``gathered`` counts
    all rows, those included that belong to no table. ``notes`` has a sentence on some of the tables, and ``written_as``
    says how rows are written into each listed table that exists.
    """

    targets: Mapping[str, int]
    tables: Mapping[str, int]
    counts: Mapping[str, int] | None
    gathered: int
    notes: Mapping[str, str]
    written_as: Mapping[str, WrittenAs]

    @property
    def rows(self) -> int:
        """How many rows went into the tables."""
        return sum(self.tables.values())


def publish_routes_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    rows: Rows,
    listed: Listed | None = None,
    batch: Batch | None = None,
) -> RoutedResult:
    """
    Write each of ``rows`` into its table.

    :param listed: what is known about the tables' names in this transaction.
    :param batch: whose rows they are, for the record of those that are put aside.
    :raises ConfigurationError: BAD_ROUTES, if two routes end in one table.
    :raises TargetError: if a table is unfit, or if there are rows of unknown routes.
    :raises StagingError: if staged rows are missing, or if there are too many.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    with whole_or_failed(connection):
        gathered = gather_in_tx(connection, rows, routes.column)
        listed = listed or listed_tables(connection, routes)
        counts = Counter(settle_unknown_in_tx(connection, routes, gathered, batch, rows.columns, rows.positions))
        if batch is not None and (unfit := rows.unfit()):
            counts[COUNTED] += put_unfit_aside_in_tx(connection, routes, unfit, rows.columns, listed, batch)
        # In complete mode a table that gets no rows is emptied.
        due = [r for r in routes if gathered.counts.get(r.value) or r.destination.mode == "complete"]
        notes = lock_listed_in_tx(connection, due, listed, rows.columns)
        # All of them first: a DELETE reaches into partitions, and by ON DELETE CASCADE into children, which may have
        # got their rows of this batch by then. Children first, which come after their parents in the list.
        for route in reversed(due):
            table = listed[route.value]
            if route.destination.mode == "complete" and table.oid is not None:
                replace_all_in_tx(connection, table, table.oid)
        source = indexed_in_tx(connection, gathered, len(due))
        targets = {table.qualified_name: table.oid for table in listed.values() if table.oid is not None}
        tables: dict[str, int] = {}
        written: list[tuple[TargetTable, Changes | None]] = []
        why, too_early = "", 0
        for route in due:
            of_one, gathering = rows_of(route, rows, source)
            found = listed[route.value]
            try:
                turn = Turn(found, gathering, is_emptied=True)
                result = publish_rows_in_tx(connection, route.destination, of_one, batch, turn)
            except TargetError as error:
                raise error.beginning(f"For {route.value!r} in tables") from None
            except psycopg.Error as error:
                add_note(error, f"It is for {route.value!r} in tables")
                raise
            name, number = result.table.qualified_name, of_one.count() - result.put_aside
            targets[name], tables[name] = result.table.oid, number
            written.append((result.table, route.destination.changes))
            why, too_early = why or result.why, too_early + result.too_early
            counts.update({WRITTEN: number} if result.counts is None else result.counts)
            if result.table.note:
                notes[name] = f"{notes.get(name, '')} {result.table.note}".strip()
        refuse_actions_between(written)
        fit = sum(tables.values()) + counts.get(DROPPED, 0)
        _refuse_too_many(routes, counts.get(COUNTED, 0), fit, why, too_early)
        return RoutedResult(
            targets,
            tables,
            dict(counts) if set(counts) - {WRITTEN} else None,
            sum(gathered.counts.values()),
            notes,
            _written_as(routes, listed, rows.columns),
        )


def _written_as(routes: Routes, listed: Listed, columns: Sequence[EncodedColumn]) -> dict[str, WrittenAs]:
    """Of tables that get no rows in this batch, too: the next one may have some for them."""
    there = ((route, listed[route.value]) for route in routes)
    return {
        table.qualified_name: written_as(
            route.destination,
            tuple(route.written(columns)),
            sql.Identifier(table.schema, table.name).as_string(None),
            table.oid,
        )
        for route, table in there
        if table.oid is not None
    }


def _refuse_too_many(routes: Routes, aside: int, fit: int, why: str, too_early: int) -> None:
    """A batch may have no more dead letters than any of its tables, and must have rows that are none."""
    settings = [routes.dead_letters, *(route.destination.dead_letters for route in routes)]
    most = max((each.most for each in settings if each is not None), default=0)
    where = f"the tables of {routes.sink_name}"
    if aside > most:
        raise too_many(where, most, why)
    if not fit and aside > max(1, too_early):
        raise none_fits(where, why)
