"""
Which columns of a routed dead letter are not of its row, if the letter does not say so?

Runs in a replay. Invariant: only a column that can choose a table, or say that rows of another one delete, is passed
over, and only if the table lacks it; every other column was one of the table's when the row was put aside.

Letters say it by themselves now (``aside`` in what is recorded), and older ones do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg

from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.settings import Destination
from pgonce.sink.target.catalogue import TargetTable, look_up_table
from pgonce.sink.target.dead_letters.recorded_destination import ASIDE

_ROUTED = "route:"


def lacks_aside(letter: StoredLetter) -> bool:
    """Whether rows were routed to the letter's table, as its sink's name says, and nothing says what was aside."""
    is_recorded = not isinstance(letter.destination, dict) or ASIDE in letter.destination
    return letter.sink_name.startswith(_ROUTED) and not is_recorded


def with_aside_in_tx(
    connection: psycopg.Connection, destination: Destination, columns: Sequence[EncodedColumn], letter: StoredLetter
) -> Destination:
    """The destination of ``letter``, with the columns that are about something else than a row of its table."""
    if not lacks_aside(letter):
        return destination
    _, table = look_up_table(connection, destination.table)
    return replace(destination, aside=_aside(table, columns, letter.sink_name.removeprefix(_ROUTED)))


def _aside(table: TargetTable | None, columns: Sequence[EncodedColumn], route: str) -> frozenset[str]:
    if table is None:
        # It may be created, and then gets what may be of its rows.
        return frozenset({route})
    return frozenset(
        column.name
        for column in columns
        # deleteWhen names booleans only.
        if not table.columns_named(column.name) and (column.name == route or column.postgres_type == "bool")
    )
