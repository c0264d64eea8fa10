"""
Which rows of a staging table belong to the batch?

Runs in the commit. Invariant: the staged rows are exactly those that the commit messages promised, or there is no
commit; and of those, only what is not stored already goes into the target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING
from pgonce.offsets_store.ledger.tables import SCHEMA
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.offsets.positions import places

from ..errors import StagingError
from ..options.position_columns import PositionColumns
from .table import ATTEMPT_COLUMN, INLINE_ATTEMPT, StagingTable


@dataclass(frozen=True)
class StagedRows:
    """
    The rows that the commit messages promised: mark to row count.

    Rows below the positions ``stored`` are left out; ``positions`` names the columns that hold a row's position.
    """

    table: StagingTable
    promised: tuple[tuple[int, int], ...]
    positions: PositionColumns | None = None
    stored: Offsets | None = None

    @property
    def identifier(self) -> sql.Identifier:
        """The table's qualified name, quoted."""
        return self.table.identifier

    @property
    def wanted(self) -> sql.Composable:
        """The condition that picks the promised rows, and the inline rows that joined them."""
        marks = [INLINE_ATTEMPT, *(mark for mark, _ in self.promised)]
        promised = sql.SQL("{} OPERATOR(pg_catalog.=) ANY ({}::bigint[])").format(
            sql.Identifier(ATTEMPT_COLUMN), sql.Literal(marks)
        )
        if self.positions is None or not self.stored:
            return promised
        return sql.SQL("{} AND NOT ({})").format(promised, self._stored_before(self.positions, self.stored))

    def _stored_before(self, columns: PositionColumns, stored: Offsets) -> sql.Composable:
        """The condition that picks rows below the stored positions; inline rows were sorted out before they came."""
        ends = {_key(topic, partition): position for (_, topic, partition), position in places(stored).items()}
        # One look-up for each row, however many partitions there are: with a comparison for each of 1,000 partitions,
        # a million rows would need a thousand million.
        return sql.SQL(
            "{mark} OPERATOR(pg_catalog.<>) {inline} AND COALESCE({offset} OPERATOR(pg_catalog.<) "
            "({ends}::pg_catalog.jsonb OPERATOR(pg_catalog.->>) ({partition}::pg_catalog.text "
            "OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) {topic}))::bigint, false)"
        ).format(
            mark=sql.Identifier(ATTEMPT_COLUMN),
            inline=sql.Literal(INLINE_ATTEMPT),
            topic=sql.Identifier(columns.topic),
            partition=sql.Identifier(columns.partition),
            offset=sql.Identifier(columns.offset),
            ends=sql.Literal(json.dumps(ends)),
        )

    def count_dropped(self, connection: psycopg.Connection) -> int:
        """How many promised rows are not wanted, because they were stored before."""
        if self.positions is None or not self.stored:
            return 0
        marks = sql.Literal([mark for mark, _ in self.promised])
        row = connection.execute(
            sql.SQL(
                "SELECT pg_catalog.count(*) FROM {} WHERE {} OPERATOR(pg_catalog.=) ANY ({}::bigint[]) AND ({})"
            ).format(
                self.identifier, sql.Identifier(ATTEMPT_COLUMN), marks, self._stored_before(self.positions, self.stored)
            )
        ).fetchone()
        return row[0] if row else 0


def _key(topic: str, partition: str) -> str:
    """One text for a partition of a topic: digits, a space, and all that follows is the topic."""
    return f"{partition} {topic}"


def refuse_missing_table(connection: psycopg.Connection, staged: StagedRows) -> None:
    """:raises StagingError: if somebody has dropped the staging table."""
    exists = connection.execute("SELECT pg_catalog.to_regclass(%s)", [f"{SCHEMA}.{staged.table.name}"]).fetchone()
    if exists is None or exists[0] is None:
        mark, rows = staged.promised[0]
        raise _lost(mark, rows, 0)


def check_staged_rows(connection: psycopg.Connection, staged: StagedRows) -> None:
    """
    Refuse staged rows that are not exactly those that were promised: a crash of Postgres empties unlogged tables.

    :raises StagingError: naming the first mark that differs.
    """
    count = sql.SQL("SELECT {0}, pg_catalog.count(*) FROM {1} GROUP BY {0}").format(
        sql.Identifier(ATTEMPT_COLUMN), staged.identifier
    )
    counted: dict[int, int] = dict(connection.execute(count).fetchall())
    for mark, rows in staged.promised:
        if counted.get(mark, 0) != rows:
            raise _lost(mark, rows, counted.get(mark, 0))


def _lost(mark: int, promised: int, found: int) -> StagingError:
    return StagingError(
        "STAGED_ROWS_LOST",
        f"A task staged {promised} rows under mark {mark}, but {found} are there: Postgres crashed in between "
        "(unlogged tables empty themselves), somebody dropped the table, or executorUrl leads to another database than "
        "url does.",
        NOTHING,
        "Start the query again: Spark runs the batch again from its source.",
    )
