"""
Write the rows that cannot be written into the table of dead letters.

Runs in the commit, in the transaction that publishes the other rows. Invariant: each row is either in this table,
whole, or published; a batch that is skipped as a replay writes neither.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import bad_target
from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.translate import ledger_error
from pgonce.offsets_store.verdict.facts import Batch

from ...encoding.encoded_types import ATTEMPT_COLUMN, EncodedColumn
from ...encoding.unfit_rows import UnfitRow
from ...options.position_columns import KAFKAS_NAMES, PositionColumns
from ..rows import GatheredRows
from .about_a_row import BadRow

_log = logging.getLogger("pgonce")

# Postgres closes the connection on a statement of more than 1 GB, which then reads like a lost connection: the batch
# would be tried again without end. (Seen with 40 rows of 30 MB.)
_STATEMENT_CHARACTERS = 16 * 1024 * 1024
_LARGEST_JSONB = 268_435_455
_RECORD = ("record_key", "record_value", "record_headers")
_OF_RECORD = sql.SQL(
    "pg_catalog.decode(s.record_key, 'base64'), pg_catalog.decode(s.record_value, 'base64'), s.record_headers"
)
_NO_RECORD = sql.SQL("NULL, NULL, NULL")


@dataclass(frozen=True)
class Letters:
    """
    The dead letters of a batch for one table, and what is noted about all of them.

    ``target`` is the table that the rows were for, and ``destination`` says how they were to be written.
    """

    batch: Batch
    target: str
    destination: Mapping[str, Any]

    def write_unfit_in_tx(self, connection: psycopg.Connection, rows: Sequence[UnfitRow]) -> None:
        """
        Write rows that could not be encoded, in as many statements as their size asks for.

        :raises TargetError: ROW_TOO_LARGE.
        """
        if not rows:
            return
        for some in _in_parts(rows):
            values = _values(
                ("jsonb", "jsonb", "text", "text", "text", "text", "text", "jsonb"),
                (
                    (_position(row), row.row_data, row.column_name or None, row.code, row.message, *_record(row))
                    for row in some
                ),
            )
            bad = sql.SQL("(VALUES {}) AS s(position, row_data, {})").format(values, _names((*_REASONS, *_RECORD)))
            self._write(connection, bad, len(some), _OF_RECORD)

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
        self._write(connection, bad, len(rows))

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
        self._write(connection, bad, gathered.count)

    def _write(
        self, connection: psycopg.Connection, rows: sql.Composable, count: int, record: sql.Composable = _NO_RECORD
    ) -> None:
        """:raises TargetError: if not just ``count`` letters were written; LedgerError: LEDGER_NOT_PERMITTED."""
        batch = self.batch
        insert = sql.SQL(
            "INSERT INTO pgonce.dead_letters (query_id, sink_name, batch_id, target, position, row_data, column_name, "
            "code, message, destination, record_key, record_value, record_headers) "
            "SELECT {}, {}, {}, {}, s.position, s.row_data, s.column_name, s.code, s.message, {}::jsonb, {} FROM {}"
        ).format(
            *map(sql.Literal, (batch.query_id, batch.sink_name, batch.batch_id, self.target)),
            sql.Literal(json.dumps(self.destination)),
            record,
            rows,
        )
        try:
            # JSON has floats and intervals in the form that the session's settings say.
            done = search_path.execute_in_tx(connection, insert, makes_texts=True)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ledger_error(error, "putting rows aside") from error
        if done.rowcount != count:
            raise bad_target(
                "TRIGGER_CHANGED_ROWS",
                f"pgonce.dead_letters took {done.rowcount} of {count} dead letters: a trigger or a rule left the "
                "others out, and their rows would be lost.",
                "Drop it, so that the table keeps all dead letters.",
            )
        # The batch may still be refused, and its letters with it.
        said = (
            "batch %s of query %s: rows for %s that cannot be written, put aside if the batch is committed: %s "
            "(`pgonce dead-letters %s`)"
        )
        word = in_command(batch.query_id, "QUERY")
        _log.warning(said, batch.batch_id, batch.query_id, self.target, count, word)


def _in_parts(rows: Sequence[UnfitRow]) -> Iterator[list[UnfitRow]]:
    """The rows in their order, so many at a time as a statement may carry."""
    some: list[UnfitRow] = []
    size = 0
    for row in rows:
        if row.size > _LARGEST_JSONB:
            raise bad_target(
                "ROW_TOO_LARGE",
                f"A row that cannot be written, because of {row.column_name!r} ({row.code}), is too large to be put "
                f"aside: its {row.size:,} characters are more than Postgres can store.",
                "Repair the row in the source or in Spark, or store large values elsewhere and write a reference to "
                "them.",
            )
        if some and size + row.size > _STATEMENT_CHARACTERS:
            yield some
            some, size = [], 0
        some.append(row)
        size += row.size
    yield some


_REASONS = ("column_name", "code", "message")


def _whole_rows(
    source: sql.Composable,
    columns: Sequence[EncodedColumn],
    positions: PositionColumns | None,
    reasons: Sequence[sql.Composable],
    chosen: sql.Composable,
) -> sql.Composable:
    """The rows of ``source`` that are ``chosen``, each with the ``reasons`` why it is refused."""
    named = (sql.SQL("{} AS {}").format(*each) for each in zip(reasons, map(sql.Identifier, _REASONS), strict=True))
    return sql.SQL(
        "(SELECT {} AS position, (to_jsonb(given.*) - {}::text){} AS row_data, {} FROM {} AS given {} "
        "ORDER BY given.ctid) AS s"
    ).format(
        _position_of(columns, positions),
        sql.Literal(ATTEMPT_COLUMN),
        _negative_zeros(columns),
        sql.SQL(", ").join(named),
        source,
        chosen,
    )


def _negative_zeros(columns: Sequence[EncodedColumn]) -> sql.Composable:
    """What is added to a row's JSON so that its negative zeros are read back as such: they are texts, as NaN is."""
    # A number in jsonb is a numeric, which has no negative zero.
    added = []
    for column in columns:
        kind, _, is_array = column.postgres_type.partition("[")
        if kind in ("float4", "float8"):
            value = sql.SQL("{}::text[]" if is_array else "{}::text").format(sql.Identifier("given", column.name))
            values = value if is_array else sql.SQL("ARRAY[{}]").format(value)
            add = sql.SQL(" || CASE WHEN '-0' = ANY ({}) THEN jsonb_build_object({}, {}) ELSE '{{}}' END")
            added.append(add.format(values, sql.Literal(column.name), value))
    return sql.Composed(added)


def _values(types: Sequence[str], rows: Iterable[tuple[str | None, ...]]) -> sql.Composable:
    """The rows of a VALUES list; NULL has no type by itself."""
    row = sql.SQL("({})").format(sql.SQL(", ").join(sql.SQL(f"{{}}::{name}") for name in types)).as_string(None)
    return sql.SQL(", ").join(sql.SQL(row).format(*map(sql.Literal, values)) for values in rows)


def _names(names: Iterable[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _record(row: UnfitRow) -> tuple[str | None, str | None, str | None]:
    return (row.record.key, row.record.value, row.record.headers) if row.record else (None, None, None)


def _position(row: UnfitRow) -> str | None:
    place = row.place or tuple(map(json.loads(row.row_data).get, KAFKAS_NAMES))
    time = {"timestamp": int(row.record.time)} if row.record else {}
    return None if None in place else json.dumps(dict(zip(KAFKAS_NAMES, place, strict=True)) | time)


def _position_of(columns: Sequence[EncodedColumn], positions: PositionColumns | None) -> sql.Composable:
    """Where a gathered row comes from, as far as it says so."""
    # Also without positionColumns, rows that have the columns of Spark's Kafka source come from there.
    names = positions.names if positions else KAFKAS_NAMES
    if not {column.name for column in columns}.issuperset(names):
        return sql.SQL("NULL::jsonb")
    topic, partition, offset = (sql.Identifier("given", name) for name in names)
    return sql.SQL("jsonb_build_object('topic', {}, 'partition', {}, 'offset', {})").format(topic, partition, offset)
