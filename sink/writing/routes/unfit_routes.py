"""
Which table was a row for that could not be encoded?

Runs in the commit. Invariant: such a row becomes a dead letter of the table that its route chooses; if its route is not
known, one of the sink.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.verdict.facts import Batch

from ...encoding.encoded_types import EncodedColumn
from ...encoding.unfit_rows import UnfitRow
from ...options.routes import Routes
from ..bad_rows.bounds import of_one, too_many
from ..bad_rows.letters import Letters
from ..bad_rows.recorded_destination import recorded
from .listed_tables import Listed


def put_unfit_aside_in_tx(
    connection: psycopg.Connection,
    routes: Routes,
    rows: Sequence[UnfitRow],
    columns: Sequence[EncodedColumn],
    listed: Listed,
    batch: Batch,
) -> int:
    """
    Write the rows into the tables of dead letters, and return their number.

    :raises TargetError: TOO_MANY_DEAD_LETTERS.
    """
    settings = routes.dead_letters
    if settings is None or not rows:
        return 0
    if len(rows) > settings.most:
        raise too_many(f"the tables of {routes.sink_name}", settings.most, of_one(rows[0]))
    by_value: dict[str | None, list[UnfitRow]] = defaultdict(list)
    for row in rows:
        by_value[_value(row, routes.column)].append(row)
    for route in routes:
        table, found = listed[route.value], by_value.pop(route.value, [])
        named = sql.Identifier(table.schema, table.name).as_string(None)
        where = replace(route.destination, table=named, dead_letters=None)
        how = recorded(where, route.written(columns), table.oid)
        letters = Letters(route.destination.dead_letters or settings, batch, table.qualified_name, how)
        letters.write_unfit_in_tx(connection, found)
    for found in by_value.values():
        Letters(settings, batch, routes.sink_name, {}).write_unfit_in_tx(connection, found)
    return len(rows)


def _value(row: UnfitRow, column: str) -> str | None:
    """The route of a row, as a text; None for null, and for a text that cannot be read."""
    value = json.loads(row.row_data).get(column)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int)) else None
