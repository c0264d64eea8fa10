"""
Name the row and the column of a value that Postgres refused, for the text of the error.

Runs in the commit, only after Postgres has refused rows that may not be put aside. Invariant: a transaction that had
failed is still failed afterwards; the error tells columns and types, and the row's key, position or place, but never
another value.

Postgres says where a COPY stopped. Gathered rows are searched as for dead letters, up to the first one that is refused
as the batch was.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import psycopg
from psycopg import sql
from psycopg.adapt import Transformer
from psycopg.pq import Format, TransactionStatus

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres.refused_rows import add_note, set_remedy

from ...encoding.copy_encoder import body_fields, body_rows
from ...encoding.encoded_types import EncodedColumn
from ..by_key.keys import shortened_value
from ..checked_table import ColumnPlan
from ..rows import BACK, GatheredRows, fail_in_tx
from ..table.catalogue import TargetColumn
from ..table.new_table import retyped
from ..written import Written
from .about_a_row import BadRow, SearchBound, at, is_for_itself, names_of, up_to
from .in_turn import InTurn
from .one_round import Rounds

# The writer's row is locked meanwhile, and the error is raised without the name of a row if none is found in time.
_MOST_SECONDS = 60
_MANY = 1_000_000_000


def note_copied(
    connection: psycopg.Connection, error: psycopg.Error, written: Written, bodies: Callable[[], Iterable[bytes]]
) -> None:
    """Add a note to ``error``: which value of a COPY into the target was refused, as far as Postgres says."""
    # "COPY events, line 3, column name", in the server's language.
    context = (error.diag.context or "").rpartition("\n")[2]
    line = re.search(rf"COPY {re.escape(written.table.name)}\D*(\d+)(.*)", context)
    if line is None or not _may_be_found(error):
        return
    number, rest = int(line[1]), f" {error.diag.column_name}" if error.diag.column_name else line[2]
    found = [column for column in written.plan if rest.endswith(f" {column.target}")]
    try:
        values = _read(connection, written, bodies(), number)
    except Exception:  # noqa: BLE001 (rows that cannot be read again; the error of Postgres is what is raised)
        values = None
    column = max(found, key=lambda column: len(column.target), default=None)
    _tell(error, written, column, _row(written, values, number))


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
    for name in _telling(written):
        field, type_info = fields[name], types[name]
        if field is None or type_info is None:
            return None
        values.append(loaders.get_loader(type_info.oid, Format.BINARY).load(field))
    return values


def note_gathered(
    connection: psycopg.Connection, error: psycopg.Error, written: Written, gathered: GatheredRows
) -> None:
    """Add a note to ``error``: which row, and which value of it, was refused, if that can be found out."""
    if not _may_be_found(error) or connection.info.transaction_status is not TransactionStatus.INERROR:
        return
    # There is no note if the role may not create a temporary table, if the connection is lost, or if it takes too long.
    with suppress(psycopg.Error, TargetError):
        connection.execute(BACK)
        # The bound is looked at between two statements.
        connection.execute(sql.SQL("SET LOCAL statement_timeout = '{}s'").format(_MOST_SECONDS))
        bound = SearchBound(written.table.qualified_name, most_seconds=_MOST_SECONDS)
        names = names_of(connection, written.table)
        # A trigger may write other tables.
        if not error.diag.table_name or names.of_error(error):
            in_turn = InTurn(written, Rounds(connection, names, bound, _MANY, until=error.sqlstate or ""))
            in_turn.write_in_tx(replace(gathered, staged=None))
            row = next((row for row in in_turn.refused if row.code == error.sqlstate), None)
            if row is not None:
                column = next((column for column in written.plan if column.target == row.column_name), None)
                _tell(error, written, column, _row(written, *_told(connection, gathered, written, row)))
    with suppress(psycopg.Error):
        connection.execute(BACK)
    fail_in_tx(connection)


def _tell(error: psycopg.Error, written: Written, column: ColumnPlan | None, where: str) -> None:
    if column is None:
        add_note(error, f"It is {where}")
        return
    encoded = next(found for found in written.columns if found.name == column.source)
    source = "" if column.source == column.target else f" {column.source}"
    described = f"column {column.target} ({column.full_type}; in Spark{source} {encoded.spark_type})"
    add_note(error, f"It is {described} in {where}")
    target = next(found for found in written.table.columns if found.column_name == column.target)
    if _is_too_large(error, column, encoded) and (roomier := roomier_type(target, encoded)) is not None:
        statement = retyped(written.table, target, roomier)
        set_remedy(error, f"Repair the value in Spark, or let the owner of the table make room for it: {statement}.")


_TOO_LARGE = frozenset({"22001", "22003", "22026"})
# What Postgres reads may be no value of the column's type at all, however large that is.
_READ_BY_POSTGRES = frozenset({"text", "jsonb", "bytea"})


def _is_too_large(error: psycopg.Error, column: ColumnPlan, encoded: EncodedColumn) -> bool:
    """Whether a larger type would hold the value: it is too long, has too many digits, or would be rounded."""
    is_read = encoded.postgres_type.removesuffix("[]") in _READ_BY_POSTGRES
    is_rounded = column.fitting.expression is not None and (error.sqlstate or "").startswith("22")
    return error.sqlstate in _TOO_LARGE or (is_rounded and not is_read)


def _may_be_found(error: psycopg.Error) -> bool:
    # XX000 is PostGIS's error for bytes that are not WKB.
    return is_for_itself(error) or error.sqlstate == "XX000"


def _told(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, row: BadRow
) -> tuple[Sequence[object], int]:
    """The values that tell the row from others, as text; and its number among the gathered rows."""
    values = [sql.SQL("{}::pg_catalog.text").format(sql.Identifier(name)) for name in _telling(written)]
    before = gathered.only(up_to(row.place))
    number = sql.SQL("(SELECT pg_catalog.count(*) FROM {} WHERE {})").format(before.source, before.wanted)
    query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        sql.SQL(", ").join([*values, number]), gathered.source, at(row.place)
    )
    *told, place = connection.execute(query).fetchone() or (0,)
    return told, place


def _telling(written: Written) -> list[str]:
    """The columns of the rows that tell one row from another: keys, else positions, else the primary key."""
    if written.upsert is not None:
        return [key.source for key in written.upsert.keys]
    names = {column.name for column in written.columns}
    if written.positions is not None and names.issuperset(written.positions.names):
        return list(written.positions.names)
    primary = written.table.primary_key
    found = [column.source for column in written.plan if column.target in primary]
    return found if len(found) == len(primary) else []


def _row(written: Written, values: Sequence[object] | None, number: int | None) -> str:
    """A row, named by the columns that tell it from others, or else by its place."""
    if values:
        of = ", ".join(f"{n} = {shortened_value(v)}" for n, v in zip(_telling(written), values, strict=True))
        return f"the row with {of}"
    return f"row {number} of the batch, in the order in which rows came to Postgres" if number else "a row"


_ROOMIER = {"character varying": "text", "character": "text", "bit": "bit varying", "bigint": "numeric"}
_WHOLE = ("smallint", "integer")


def roomier_type(column: TargetColumn, encoded: EncodedColumn) -> str | None:
    """
    The type without a length in which ``column`` would hold all values of ``encoded``, and those that it has.

    None if it has no length, or if it is a type of the user's.
    """
    base, source = (name.removesuffix("[]") for name in (column.base_type, encoded.postgres_type))
    if base in _WHOLE:
        found = "bigint" if source in ("int2", "int4", "int8") else "numeric"
    else:
        found = _ROOMIER.get(base, base)
    if column.base_type.endswith("[]"):
        found += "[]"
    return None if column.user_type or column.is_domain or found == column.full_type else found
