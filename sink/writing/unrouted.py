"""
Rows that belong to no table: those whose route is not in the user's list, and those that could not be encoded.

Runs in the commit, before any table is locked. Invariant: a row of an unknown route goes into none of the tables; it
stops the batch, or is counted with the batch, or is put aside in the batch's transaction. A row that could not be
encoded becomes a dead letter of the table that its route chooses; if its route is not known, one of the sink.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.verdict.facts import Batch

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.destination import DeadLetters
from ..options.routes import Routes
from .bad_rows.bounds import of_one, too_many
from .bad_rows.letters import COUNTED, Letters
from .bad_rows.recorded_destination import recorded
from .routes import RowsByRoute
from .rows import Rows
from .table.table_name import ResolvedName

CODE = "ROUTE_UNKNOWN"
DROPPED = "unrouted"
"""The count of rows with unknown routes that are left out."""
_NAMED_IN_ERROR = 5
_LONGEST_VALUE = 100


def settle_unrouted_in_tx(
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
    :raises TargetError: ROUTE_UNKNOWN, TOO_MANY_DEAD_LETTERS.
    """
    counts = Counter(_settle_unknown_in_tx(connection, routes, rows, gathered, batch))
    unfit = rows.unfit()
    if batch is not None and routes.dead_letters is not None and unfit:
        _put_unfit_aside_in_tx(connection, routes, routes.dead_letters, listed, unfit, rows.columns, batch)
        counts[COUNTED] += len(unfit)
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
        return {DROPPED: total}
    letters = routes.dead_letters
    if routes.unknown == "refuse" or letters is None or batch is None:
        raise _refused(routes, unknown, "")
    if total > letters.most:
        raise _refused(
            routes, unknown, f" That is more than maxDeadLetters={letters.most} of a batch may be put aside."
        )
    # Such a row has no table, and so nothing says how it was to be written.
    aside = Letters(letters, batch, routes.sink_name, {})
    why = routes.column, CODE, f"The value of {routes.column} is none of those in tables."
    aside.write_all_in_tx(connection, gathered.of(*unknown), why, rows.columns, rows.positions)
    return {COUNTED: total}


def _refused(routes: Routes, unknown: dict[str | None, int], why: str) -> TargetError:
    most = sorted(unknown.items(), key=lambda item: (-item[1], str(item[0])))
    named = ", ".join(f"{_shortened(value)} ({number} rows)" for value, number in most[:_NAMED_IN_ERROR])
    more = f" and {len(most) - _NAMED_IN_ERROR} more" if len(most) > _NAMED_IN_ERROR else ""
    return TargetError(
        "ROUTE_UNKNOWN",
        f"Rows have values of {routes.column!r} that are not in tables: {named}{more}.{why}",
        NOTHING,
        "Add the value to tables, or filter the rows out in Spark. Or set unknownRoutes=drop, and they are left out "
        "and counted; or unknownRoutes=deadLetters with deadLetters, and they are put aside.",
    )


def _shortened(value: str | None) -> str:
    if value is None:
        return "null"
    return repr(value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}...")


def _put_unfit_aside_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    settings: DeadLetters,
    listed: Mapping[str, ResolvedName],
    unfit: Sequence[UnfitRow],
    columns: Sequence[EncodedColumn],
    batch: Batch,
) -> None:
    """Write the rows that could not be encoded into the tables of dead letters."""
    if len(unfit) > settings.most:
        raise too_many(f"the tables of {routes.sink_name}", settings.most, of_one(unfit[0]))
    by_value: dict[str | None, list[UnfitRow]] = defaultdict(list)
    for row in unfit:
        by_value[_route_of(row, routes.column)].append(row)
    for route in routes:
        table, found = listed[route.value], by_value.pop(route.value, [])
        named = sql.Identifier(table.schema, table.name).as_string(None)
        where = replace(route.destination, table=named, dead_letters=None)
        how = recorded(where, route.written(columns), table.oid)
        letters = Letters(route.destination.dead_letters or settings, batch, table.qualified_name, how)
        letters.write_unfit_in_tx(connection, found)
    for found in by_value.values():
        Letters(settings, batch, routes.sink_name, {}).write_unfit_in_tx(connection, found)


def _route_of(row: UnfitRow, column: str) -> str | None:
    """The route of a row, as a text; None for null, and for a text that cannot be read."""
    value = json.loads(row.row_data).get(column)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int)) else None
