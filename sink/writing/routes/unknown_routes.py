"""
What becomes of rows whose route is not in the user's list?

Runs in the commit, before any table is locked. Invariant: such a row goes into none of the tables; it stops the batch,
or is counted with the batch, or is put aside in the batch's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.verdict.facts import Batch

from ...encoding.encoded_types import EncodedColumn
from ...options.position_columns import PositionColumns
from ...options.routes import Routes
from ..bad_rows.letters import COUNTED, Letters
from ..gathering import GatheredRows
from .gathered_rows import RowsByRoute

CODE = "ROUTE_UNKNOWN"
DROPPED = "unrouted"
"""What rows of unknown routes are counted as that are left out."""
_NAMED_IN_ERROR = 5
_LONGEST_VALUE = 100


def settle_unknown_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    rows: RowsByRoute,
    batch: Batch | None,
    columns: Sequence[EncodedColumn],
    positions: PositionColumns | None,
) -> dict[str, int]:
    """
    Do with rows of unknown routes what the user wants; return their number as the batch's ``counts`` name it.

    :raises TargetError: ROUTE_UNKNOWN.
    """
    known = {route.value for route in routes}
    unknown = {value: number for value, number in rows.counts.items() if value not in known}
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
    aside.write_all_in_tx(connection, GatheredRows(rows.source, rows.of(*unknown), total), why, columns, positions)
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
