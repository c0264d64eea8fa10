"""
The rows that one commit writes, the table that gathers them in Postgres, and the savepoint before they are written.

Made in the commit worker, in the receiver, or on the driver, by each way in; gathered in the commit. Invariant: the
rows can be read as often as a commit is tried. They are gathered in a table that no other session waits for, and only
once in a transaction, unless that was rolled back. Once an error has left :func:`whole_or_failed`, the transaction can
only be rolled back: a function of the user that swallows the error cannot commit without these rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres import search_path

from ..encoding.copy_encoder import HEADER, TRAILER
from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.position_columns import PositionColumns
from ..staging import StagedRows, column_definitions, refuse_missing_table


@dataclass(frozen=True, eq=False)
class Rows:
    """
    The rows of one batch.

    :param columns: the columns of every row, in the order in which they are encoded.
    :param count: waits for the rows that are still to come, and returns how many there are, staged ones included.
    :param bodies: the rows that are not staged, as bodies of a binary COPY, from the first at every call.
    :param transport: how the rows came, in the ledger's words (``inline``, ``arrow`` ...).
    :param staged: the rows that tasks have put into a staging table; they are not among the bodies.
    :param unfit: the rows that could not be encoded, which are none of the others; asked once ``bodies`` has ended.
    :param positions: the columns that say where in Kafka each row comes from; None if rows do not say it.
    :param since: makes the same of the rows at or past some positions; None if all rows are written in any case.
    """

    columns: tuple[EncodedColumn, ...]
    count: Callable[[], int]
    bodies: Callable[[], Iterable[bytes]] = tuple
    transport: str = "inline"
    staged: StagedRows | None = None
    unfit: Callable[[], Sequence[UnfitRow]] = tuple
    positions: PositionColumns | None = None
    since: Callable[[Offsets], Rows] | None = None

    def not_stored(self, stored: Offsets | None) -> Rows:
        """The rows at or past the positions ``stored``, if there are any and rows have positions."""
        return self.since(stored) if stored and self.positions and self.since else self


_counter = itertools.count()


@dataclass(frozen=True)
class GatheredRows:
    """
    The rows of the table ``source`` that are ``wanted``: ``count`` of them, or fewer.

    ``staged`` are those whose number was not checked yet.
    """

    source: sql.Composable
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
        # Made in advance, and empty so far.
        self._made: sql.Identifier | None = None

    @property
    def is_done(self) -> bool:
        """Whether the rows are in that table."""
        return self._table is not None

    @property
    def columns(self) -> tuple[EncodedColumn, ...]:
        """The columns of that table, also those that the rows' target does not get."""
        return self._rows.columns

    def bodies(self) -> Iterable[bytes]:
        """The rows that are not staged; some commits wait for them here."""
        if self._bodies is None:
            self._bodies = self._rows.bodies()
        return self._bodies

    def undone(self) -> None:
        """What was done since the last savepoint was rolled back; rows of several tables are gathered before it."""
        self._bodies = self._made = None
        self._table = self._with_others.source if self._with_others else None

    def rows(self) -> GatheredRows:
        """The gathered rows."""
        source, staged, others = self(), self._rows.staged, self._with_others
        wanted = others.wanted if others else staged.wanted if staged else sql.SQL("true")
        return GatheredRows(source, wanted, self._rows.count(), staged)

    def __call__(self) -> sql.Composable:
        """The table that has them."""
        if self._table is None:
            connection, staged = self._connection, self._rows.staged
            if staged is not None:
                refuse_missing_table(connection, staged)
                table = staged.identifier
            elif self._made is not None:
                table = self._made
            else:
                table, create = self._new()
                search_path.execute_in_tx(connection, create)
            copy_rows(connection, table, [column.name for column in self._rows.columns], self.bodies())
            self._table = table
        return self._table

    def creation(self) -> sql.Composable | None:
        """The statement that makes the table in advance, and is to be run; None for rows that have a table already."""
        if self._rows.staged is not None or self.is_done:
            return None
        self._made, create = self._new()
        return create

    def _new(self) -> tuple[sql.Identifier, sql.Composable]:
        table = sql.Identifier("pg_temp", f"pgonce_rows_{next(_counter)}")
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP")
        return table, create.format(table, column_definitions(self._rows.columns))


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


SAVEPOINT = sql.SQL("SAVEPOINT pgonce_rows")
"""To be sent with the first statement that may refuse gathered rows, so that they are still there afterwards."""
RELEASE = sql.SQL("RELEASE SAVEPOINT pgonce_rows")
"""To be sent with the last one."""

BACK = sql.SQL("ROLLBACK TO SAVEPOINT pgonce_rows")
"""To be sent where an error of such a statement does not end the batch."""


@contextmanager
def whole_or_failed(connection: psycopg.Connection) -> Iterator[None]:
    """An error fails the transaction too."""
    try:
        yield
    except Exception:
        fail_in_tx(connection)
        raise


def fail_in_tx(connection: psycopg.Connection) -> None:
    """Fail the transaction, unless it has ended."""
    if connection.info.transaction_status is TransactionStatus.IDLE:
        return
    with suppress(psycopg.Error):
        # There is no savepoint of this name. The server's log shows the name.
        connection.execute('ROLLBACK TO SAVEPOINT "pgonce: the batch was refused"')
