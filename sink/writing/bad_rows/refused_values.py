"""
Find the row and the column of a value that Postgres refused, for the text of the error.

Runs in the commit, only after Postgres has refused rows. Invariant: a transaction that had failed is still failed
afterwards; the error tells columns and types, and the row's key, position or place, but never another value.

Postgres names the column only for a COPY. For an INSERT of gathered rows, each column is tried by itself: its values
are assigned, one after the other, to a table that has only that column. A sequence counts them, because a rollback does
not reset it.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import sql
from psycopg.adapt import Transformer
from psycopg.pq import Format, TransactionStatus

from pgonce.offsets_store.postgres.refused_rows import add_note

from ...encoding.copy_encoder import body_fields, body_rows
from ..by_key.keys import Written
from ..by_key.statements import value_of
from ..checked_table import ColumnPlan
from ..rows import BACK, fail_in_tx
from ..table.fit import Fit

# The writer's row is locked meanwhile, and the error is raised without the name of a row if none is found in time.
_MOST_SECONDS = 60
# A table of any size is read in one order, so that a row can be found by its number.
_IN_ORDER = sql.SQL(
    "SET LOCAL statement_timeout = '{}s'; SET LOCAL synchronize_seqscans = off; "
    "SET LOCAL max_parallel_workers_per_gather = 0; CREATE TEMPORARY SEQUENCE pgonce_row_number"
).format(_MOST_SECONDS)


def _is_about_values(error: psycopg.Error) -> bool:
    state = error.sqlstate or ""
    # XX000 is PostGIS's error for bytes that are not WKB.
    return (state.startswith("22") and state != "2200H") or state in ("23502", "23514", "XX000")


def note_copied(
    connection: psycopg.Connection,
    error: psycopg.Error,
    written: Written,
    bodies: Callable[[], Iterable[bytes]],
) -> None:
    """Add a note to ``error``: which value of a COPY into the target was refused, as far as Postgres says."""
    # "COPY events, line 3, column name", in the server's language.
    context = (error.diag.context or "").rpartition("\n")[2]
    line = re.search(rf"COPY {re.escape(written.table.name)}\D*(\d+)(.*)", context)
    if line is None or not _is_about_values(error):
        return
    number, rest = int(line[1]), f" {error.diag.column_name}" if error.diag.column_name else line[2]
    found = [column for column in written.plan if rest.endswith(f" {column.target}")]
    try:
        values = _read(connection, written, bodies(), number)
    except Exception:  # noqa: BLE001 (rows that cannot be read again; the error of Postgres is what is raised)
        values = None
    where = written.row(values, number)
    column = max(found, key=lambda column: len(column.target), default=None)
    add_note(error, f"It is {written.described(column)} in {where}" if column else f"It is {where}")


def _read(
    connection: psycopg.Connection, written: Written, bodies: Iterable[bytes], number: int
) -> list[object] | None:
    """The values that tell the row of that number from others, read from the bytes that were copied."""
    rows = (memoryview(body)[start:end] for body in bodies for start, end in body_rows(memoryview(body)))
    row = next(itertools.islice(rows, number - 1, None), None)
    if row is None:
        return None
    fields = dict(zip((column.name for column in written.columns), body_fields(row), strict=True))
    types = {column.name: connection.adapters.types.get(column.postgres_type) for column in written.columns}
    loaders = Transformer(connection)
    values: list[object] = []
    for name in written.telling:
        field, type_info = fields[name], types[name]
        if field is None or type_info is None:
            return None
        values.append(loaders.get_loader(type_info.oid, Format.BINARY).load(field))
    return values


def note_gathered(
    connection: psycopg.Connection,
    error: psycopg.Error,
    written: Written,
    source: sql.Identifier,
    wanted: sql.Composable,
) -> None:
    """Add a note to ``error``: which value of the wanted rows of ``source`` was refused, if that can be found out."""
    if not _is_about_values(error) or connection.info.transaction_status is not TransactionStatus.INERROR:
        return
    search = _Search(connection, error, written, source, wanted)
    # There is no note if the role may not create a temporary table, if the connection is lost, or if it takes too long.
    with suppress(psycopg.Error):
        connection.execute(BACK)
        connection.execute(_IN_ORDER, prepare=False)
        found = search.null() or search.value()
        if found:
            add_note(error, found)
    with suppress(psycopg.Error):
        connection.execute(BACK)
    fail_in_tx(connection)


@dataclass(frozen=True)
class _Search:
    """The search for the value that caused ``error``, among the wanted rows of ``source``."""

    connection: psycopg.Connection
    error: psycopg.Error
    written: Written
    source: sql.Identifier
    wanted: sql.Composable
    ends: float = field(default_factory=lambda: time.monotonic() + _MOST_SECONDS)

    def null(self) -> str | None:
        """For a NOT NULL violation Postgres names the column."""
        name = self.error.diag.column_name if self.error.sqlstate == "23502" else None
        column = next((column for column in self.written.plan if column.target == name), None)
        if column is None:
            return None
        is_null = sql.SQL("({}) AND {} IS NULL").format(self.wanted, sql.Identifier(column.source))
        row = self._telling(is_null, 1)
        # If there is no such row, a trigger has made the value null.
        return f"It is {self.written.described(column)} in {self.written.row(row, None)}" if row is not None else None

    def value(self) -> str | None:
        """The first column with a value that fails as the batch did; the likely columns are tried first."""
        if self.error.diag.table_name:
            # A constraint of the table, not of a column's type.
            return None
        for column in sorted(self.written.plan, key=lambda c: c.fitting.fit is Fit.EXACT and "(" not in c.full_type):
            seconds = self.ends - time.monotonic()
            number = self._first_refused(column, seconds) if seconds > 0 else None
            if number is not None:
                row = self._telling(self.wanted, number)
                return f"It is {self.written.described(column)} in {self.written.row(row, number)}"
        return None

    def _first_refused(self, column: ColumnPlan, seconds: float) -> int | None:
        """The number of the first wanted row whose value is refused; found in so many seconds, or cancelled."""
        # A number is drawn before the value is cast or assigned: nextval is volatile, so the inner SELECT is kept.
        try_all = sql.SQL(
            "SET LOCAL statement_timeout = {timeout}; "
            "CREATE TEMPORARY TABLE pgonce_probe ON COMMIT DROP AS SELECT {name} FROM {table} WITH NO DATA; "
            "SELECT pg_catalog.setval('pg_temp.pgonce_row_number', 1, false); "
            "INSERT INTO pg_temp.pgonce_probe SELECT s.value FROM ("
            "SELECT pg_catalog.nextval('pg_temp.pgonce_row_number') AS number, {value} AS value "
            "FROM {source} WHERE {wanted}) AS s"
        ).format(
            timeout=math.ceil(seconds * 1000),
            name=sql.Identifier(column.target),
            table=self.written.table.identifier,
            value=value_of(column),
            source=self.source,
            wanted=self.wanted,
        )
        try:
            with self.connection.transaction() as probe:
                self.connection.execute(try_all, prepare=False)
                raise psycopg.Rollback(probe)
        except psycopg.errors.QueryCanceled:
            raise
        except psycopg.Error as refused:
            if refused.sqlstate != self.error.sqlstate:
                return None
            row = self.connection.execute("SELECT last_value FROM pg_temp.pgonce_row_number").fetchone()
            return None if row is None else row[0]
        return None

    def _telling(self, wanted: sql.Composable, number: int) -> tuple[object, ...] | None:
        """The values that tell the wanted row of that number from others, as text."""
        names = map(sql.Identifier, self.written.telling)
        values = sql.SQL(", ").join(sql.SQL("{}::pg_catalog.text").format(name) for name in names)
        query = sql.SQL("SELECT {} FROM {} WHERE {} LIMIT 1 OFFSET {}").format(values, self.source, wanted, number - 1)
        return self.connection.execute(query).fetchone()
