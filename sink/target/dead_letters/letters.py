"""
How do rows that cannot be written get into the table of dead letters?

Runs in the commit, in the transaction that publishes the other rows. Invariant: a row is there, whole, or it is
published; a batch that is skipped as a replay writes neither.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.ledger.tables import SCHEMA
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.verdict.facts import Batch
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.positions.columns import PositionColumns
from pgonce.sink.settings import DeadLetters
from pgonce.sink.staging.table import ATTEMPT_COLUMN
from pgonce.sink.target.dead_letters.bad_row import BadRow
from pgonce.sink.target.gathering import GatheredRows
from pgonce.sink.target.table_name import resolve_table
from pgonce.sink.unfit_row import UnfitRow

_log = logging.getLogger("pgonce")

COUNTED = "dead_letters"
"""What they are counted as in ``pgonce.batches``."""


@dataclass(frozen=True)
class Letters:
    """
    Where the dead letters of a batch go, and what is noted about all of them.

    ``target`` is the table that the rows were for, and ``destination`` says how they were to be written.
    """

    settings: DeadLetters
    batch: Batch
    target: str
    destination: Mapping[str, Any]

    def write_unfit_in_tx(self, connection: psycopg.Connection, rows: Sequence[UnfitRow]) -> None:
        """Write rows that could not be encoded."""
        if not rows:
            return
        values = _values(
            ("jsonb", "jsonb", "text", "text", "text"),
            ((_position(row), row.row_data, row.column_name, row.code, row.message) for row in rows),
        )
        bad = sql.SQL("(VALUES {}) AS s(position, row_data, column_name, code, message)").format(values)
        self._say(len(rows))
        search_path.execute_in_tx(connection.cursor(), self._insert(self._table(connection), bad))

    def write_refused_in_tx(
        self,
        connection: psycopg.Connection,
        gathered: GatheredRows,
        rows: Sequence[BadRow],
        columns: Sequence[EncodedColumn],
        positions: PositionColumns | None,
    ) -> None:
        """Write rows of ``gathered`` that were refused; ``positions`` says where in Kafka they come from."""
        if not rows:
            return
        values = _values(
            ("tid", "text", "text", "text"), ((row.place, row.column_name, row.code, row.message) for row in rows)
        )
        why = sql.SQL("JOIN (VALUES {}) AS why(place, column_name, code, message) ON given.ctid = why.place")
        reasons = [sql.Identifier("why", name) for name in _REASONS]
        bad = _whole_rows(gathered.source, columns, positions, reasons, why.format(values))
        self._say(len(rows))
        self._write(connection, bad)

    def write_all_in_tx(
        self,
        connection: psycopg.Connection,
        gathered: GatheredRows,
        why: tuple[str, str, str],
        columns: Sequence[EncodedColumn],
        positions: PositionColumns | None,
    ) -> None:
        """Write all rows of ``gathered``, for the same reason: a column, a code and a message."""
        reasons = [sql.SQL("{}::text").format(sql.Literal(text)) for text in why]
        # Nothing is joined: the condition names the rows' columns, which may be called as anything else is.
        wanted = sql.SQL("WHERE {}").format(gathered.wanted)
        bad = _whole_rows(gathered.source, columns, positions, reasons, wanted)
        self._say(gathered.count)
        self._write(connection, bad)

    def _say(self, count: int) -> None:
        batch = self.batch
        said = "batch %s of query %s: rows for %s that cannot be written, put aside in %s: %s (`pgonce dead-letters`)"
        _log.warning(said, batch.batch_id, batch.query_id, self.target, self.settings.table, count)

    def _write(self, connection: psycopg.Connection, rows: sql.Composable) -> None:
        # JSON would have fewer digits of a float if the role's settings say so.
        digits = connection.execute("SELECT pg_catalog.current_setting('extra_float_digits')").fetchone()
        connection.execute("SET LOCAL extra_float_digits = 1")
        search_path.execute_in_tx(connection.cursor(), self._insert(self._table(connection), rows))
        if digits:
            connection.execute(sql.SQL("SET LOCAL extra_float_digits = {}").format(sql.Literal(digits[0])))

    def _insert(self, table: sql.Identifier, rows: sql.Composable) -> sql.Composed:
        return sql.SQL(
            "INSERT INTO {} (query_id, sink_name, batch_id, target, position, row_data, column_name, code, message, "
            "destination) SELECT {}, {}, {}, {}, s.position, s.row_data, s.column_name, s.code, s.message, {}::jsonb "
            "FROM {}"
        ).format(
            table,
            *map(sql.Literal, (self.batch.query_id, self.batch.sink_name, self.batch.batch_id, self.target)),
            sql.Literal(json.dumps(self.destination)),
            rows,
        )

    def _table(self, connection: psycopg.Connection) -> sql.Identifier:
        return letters_table(connection, self.settings.table)


def letters_table(connection: psycopg.Connection, name: str) -> sql.Identifier:
    """
    The table of this name, as the user's search_path finds it.

    :raises TargetError: DEAD_LETTERS_MISSING.
    """
    found = resolve_table(connection, name)
    if found.kind is None:
        raise TargetError(
            "DEAD_LETTERS_MISSING",
            f"The table {found.qualified_name}, which deadLetters names, does not exist.",
            NOTHING,
            f"CREATE TABLE {found.qualified_name} (LIKE {SCHEMA}.dead_letters INCLUDING ALL). Or set deadLetters to "
            "true: then it is the ledger's.",
        )
    return sql.Identifier(found.schema, found.name)


_REASONS = ("column_name", "code", "message")


def _whole_rows(
    source: sql.Identifier,
    columns: Sequence[EncodedColumn],
    positions: PositionColumns | None,
    reasons: Sequence[sql.Composable],
    chosen: sql.Composable,
) -> sql.Composable:
    """The rows of ``source`` that are ``chosen``, each with the ``reasons`` why it is refused."""
    named = (sql.SQL("{} AS {}").format(*each) for each in zip(reasons, map(sql.Identifier, _REASONS), strict=True))
    return sql.SQL(
        "(SELECT {} AS position, to_jsonb(given.*) - {}::text AS row_data, {} FROM {} AS given {} "
        "ORDER BY given.ctid) AS s"
    ).format(_position_of(columns, positions), sql.Literal(ATTEMPT_COLUMN), sql.SQL(", ").join(named), source, chosen)


def _values(types: Sequence[str], rows: Iterable[tuple[str | None, ...]]) -> sql.Composable:
    """The rows of a VALUES list; NULL has no type by itself."""
    row = sql.SQL("({})").format(sql.SQL(", ").join(sql.SQL(f"{{}}::{name}") for name in types)).as_string(None)
    return sql.SQL(", ").join(sql.SQL(row).format(*map(sql.Literal, values)) for values in rows)


def _position(row: UnfitRow) -> str | None:
    return json.dumps(dict(zip(("topic", "partition", "offset"), row.place, strict=True))) if row.place else None


def _position_of(columns: Sequence[EncodedColumn], positions: PositionColumns | None) -> sql.Composable:
    """Where a gathered row comes from, as far as it says so."""
    names = {column.name for column in columns}
    if positions is None or not names.issuperset(positions.names):
        return sql.SQL("NULL::jsonb")
    topic, partition, offset = (sql.Identifier("given", name) for name in positions.names)
    return sql.SQL("jsonb_build_object('topic', {}, 'partition', {}, 'offset', {})").format(topic, partition, offset)
