"""
The table that gathers a batch's rows in Postgres, before they are written from there into their target.

Runs in the commit. Invariant: the rows are gathered in a table that no other session waits for, and only once in a
transaction, unless that was rolled back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ..encoding.copy_encoder import HEADER, TRAILER
from ..staging.table import StagedRows, column_definitions, refuse_missing_table
from .rows import Rows

_counter = itertools.count()


@dataclass(frozen=True)
class GatheredRows:
    """
    The rows of the table ``source`` that are ``wanted``: ``count`` of them, or fewer.

    ``staged`` are those whose number was not checked yet.
    """

    source: sql.Identifier
    wanted: sql.Composable
    count: int
    staged: StagedRows | None = None

    def only(self, condition: sql.Composable) -> GatheredRows:
        """Those for which ``condition`` is true."""
        return replace(self, wanted=sql.SQL("({}) AND {}").format(self.wanted, condition))


class Gathering:
    """
    Gathers all ``rows`` in a table of their encoded types, once: the batch's staging table, or a temporary one.

    :param gathered: where the rows are, if they were gathered with those of other tables.
    """

    def __init__(self, connection: psycopg.Connection, rows: Rows, gathered: GatheredRows | None = None) -> None:
        self._connection = connection
        self._rows = rows
        self._with_others = gathered
        self._bodies: Iterable[bytes] | None = None
        self._table = gathered.source if gathered else None

    @property
    def is_done(self) -> bool:
        """Whether the rows are in that table."""
        return self._table is not None

    @property
    def wanted(self) -> sql.Composable:
        """The condition that picks the wanted rows of that table."""
        if self._with_others is not None:
            return self._with_others.wanted
        return sql.SQL("true") if self._rows.staged is None else self._rows.staged.wanted

    def bodies(self) -> Iterable[bytes]:
        """The rows that are not staged; some commits wait for them here."""
        if self._bodies is None:
            self._bodies = self._rows.bodies()
        return self._bodies

    def undone(self) -> None:
        """What was done since the last savepoint was rolled back; rows of several tables are gathered before it."""
        self._bodies = None
        self._table = self._with_others.source if self._with_others else None

    def rows(self) -> GatheredRows:
        """The gathered rows."""
        source = self()
        return GatheredRows(source, self.wanted, self._rows.count(), self._rows.staged)

    def __call__(self) -> sql.Identifier:
        """The table that has them."""
        if self._table is None:
            self._table = self._gathered()
        return self._table

    def _gathered(self) -> sql.Identifier:
        connection, staged, columns = self._connection, self._rows.staged, self._rows.columns
        names = [column.name for column in columns]
        if staged is not None:
            refuse_missing_table(connection, staged)
            copy_rows(connection, staged.identifier, names, self.bodies())
            return staged.identifier
        table = sql.Identifier("pg_temp", f"pgonce_rows_{next(_counter)}")
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP")
        search_path.execute_in_tx(connection.cursor(), create.format(table, column_definitions(columns)))
        copy_rows(connection, table, names, self.bodies())
        return table


class _RowsFailedError(Exception):
    """Rows could not be read; psycopg tells the server the name of this class, and nothing about what happened."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def copy_rows(
    connection: psycopg.Connection, table: sql.Identifier, columns: Iterable[str], bodies: Iterable[bytes]
) -> None:
    """Copy ``bodies`` into these columns of ``table``."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        table, sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    try:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(HEADER)
            for body in _until_failure(bodies):
                copy.write(body)
            copy.write(TRAILER)
    except _RowsFailedError as failed:
        raise failed.error from None


def _until_failure(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """The bodies; an error in making one is put aside, because Postgres logs the text of an error that ends a COPY."""
    try:
        yield from bodies
    except Exception as error:  # noqa: BLE001 (raised again once the COPY has ended)
        raise _RowsFailedError(error) from None
