"""
Which rows of a staging table belong to the batch?

Runs in the commit. Invariant: the staged rows are exactly those that the commit messages promised, or there is no
commit; and of those, only what is not stored already goes into the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING
from pgonce.offsets_store.ledger.tables import SCHEMA
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.offsets.positions import places
from pgonce.sink.errors import StagingError
from pgonce.sink.positions.columns import PositionColumns
from pgonce.sink.staging.table import ATTEMPT_COLUMN, INLINE_ATTEMPT, StagingTable


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
        below = sql.SQL(
            "{mark} OPERATOR(pg_catalog.<>) {inline} AND {topic} OPERATOR(pg_catalog.=) {t} "
            "AND {partition} OPERATOR(pg_catalog.=) {p} AND {offset} OPERATOR(pg_catalog.<) {position}"
        )
        conditions = [
            below.format(
                mark=sql.Identifier(ATTEMPT_COLUMN),
                inline=sql.Literal(INLINE_ATTEMPT),
                topic=sql.Identifier(columns.topic),
                partition=sql.Identifier(columns.partition),
                offset=sql.Identifier(columns.offset),
                t=sql.Literal(topic),
                p=sql.Literal(int(partition)),
                position=sql.Literal(position),
            )
            for (_, topic, partition), position in places(stored).items()
        ]
        return sql.SQL(" OR ").join([sql.SQL("false"), *conditions])

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
        "(unlogged tables empty themselves), or somebody dropped the table.",
        NOTHING,
        "Start the query again: Spark runs the batch again from its source.",
    )
