"""
Read the rows that were put aside instead of published, and why.

Runs where a user or a program asks. Invariant: it only reads, in a transaction that the caller owns; a table of the
user's own is read only if it has all columns of ``pgonce.dead_letters``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    Table,
    Text,
    any_,
    cast,
    literal,
    null,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

from ..errors import NotFoundError
from ..ledger.tables import dead_letters
from ..postgres.connect import connect
from ..postgres.translate import ledger_error


@dataclass(frozen=True)
class StoredLetter:
    """
    One row that was put aside. ``target`` is the table that it was for, with its schema.

    ``position`` says where in Kafka it comes from, and ``column_name`` whose value was refused, where these are known.
    ``code`` is an SQLSTATE, or the code of an error of pgonce. ``destination`` is how the row was to be written.
    ``row_data`` is the text of a JSON object: Python's numbers would not hold every decimal that is in it. Of a record
    that could not be decoded there is no row, and ``record_value`` has its value.
    """

    dead_letter_id: int
    query_id: str
    sink_name: str
    batch_id: int
    target: str
    position: Any
    row_data: str
    column_name: str | None
    code: str
    message: str
    destination: Any
    made_at: datetime
    record_value: bytes | None = None

    @property
    def row_or_record(self) -> str:
        """The row; of a record that could not be decoded its value, in which bytes that are no UTF-8 are escaped."""
        record = self.record_value
        return self.row_data if record is None else record.decode(errors="backslashreplace")


def letters_table(url: str, name: str | None) -> Table:
    """
    The table that has the dead letters: the ledger's, or the one that ``name`` means along the user's search_path.

    :raises OffsetsError: DEAD_LETTERS_TABLE, if there is no such table, or it lacks a column, or code of another role
        would run when it is read or changed.
    """
    if name is None:
        return dead_letters
    try:
        with connect(url) as connection:
            found = connection.execute(_FIND, [name]).fetchone()
    except _NO_NAME:
        found = None
    except psycopg.Error as error:
        raise ledger_error(error, "looking for the table of the dead letters") from error
    if found is None:
        raise _no_such_table(f"There is no table {name!r}.")
    schema, table, columns, is_unique, strange = found
    missing = [column.name for column in dead_letters.columns if column.name not in columns]
    if missing:
        raise _no_such_table(f"{schema}.{table} has no column {', '.join(missing)}: it does not hold dead letters.")
    if not is_unique:
        # A letter is chosen, written and deleted by its id.
        raise _no_such_table(f"{schema}.{table} has no primary key or unique index on dead_letter_id.")
    if strange:
        raise _no_such_table(
            f"{schema}.{table}, or a part of it, belongs to role {strange} and has triggers, rules or row-level "
            "security, which would run with the rights of this role.",
            f"Look at them and drop them, or give the command as {strange}.",
        )
    return dead_letters.to_metadata(MetaData(), schema=schema, name=table)


# An open quote or an empty name, too many dots, another database, a NUL.
_NO_NAME = (
    psycopg.errors.InvalidName,
    psycopg.errors.SyntaxError,
    psycopg.errors.FeatureNotSupported,
    psycopg.DataError,
)

# The user's search_path is in force, so that every name has its schema.
_FIND = """
SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0
               AND NOT a.attisdropped),
       EXISTS(SELECT FROM pg_catalog.pg_index AS i
              JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) c.oid
                AND a.attname OPERATOR(pg_catalog.=) 'dead_letter_id'
              WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisunique AND i.indpred IS NULL
                AND i.indnatts OPERATOR(pg_catalog.=) 1 AND i.indkey[0] OPERATOR(pg_catalog.=) a.attnum),
       (WITH RECURSIVE part (oid) AS (
            SELECT c.oid UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i
            JOIN part ON i.inhparent OPERATOR(pg_catalog.=) part.oid)
        SELECT r.rolname::pg_catalog.text FROM part
        JOIN pg_catalog.pg_class AS p ON p.oid OPERATOR(pg_catalog.=) part.oid
        JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) p.relowner
        WHERE NOT r.rolsuper AND r.rolname OPERATOR(pg_catalog.<>) current_user
          AND r.oid OPERATOR(pg_catalog.<>) ALL (SELECT o.nspowner FROM pg_catalog.pg_namespace AS o
                                                 WHERE o.nspname OPERATOR(pg_catalog.=) 'pgonce')
          AND (p.relrowsecurity OR EXISTS(SELECT FROM pg_catalog.pg_trigger AS t
                                          WHERE t.tgrelid OPERATOR(pg_catalog.=) p.oid AND NOT t.tgisinternal)
               OR EXISTS(SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class OPERATOR(pg_catalog.=) p.oid))
        LIMIT 1)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)::pg_catalog.oid
"""


Key = tuple[str, str]
"""A writer: the query's id, and its sink's name."""


def letters_of(
    table: Table,
    writers: Collection[Key],
    *,
    ids: Collection[int] = (),
    code: str | None = None,
    with_rows: bool = True,
) -> Select[Any]:
    """
    What asks for all dead letters of these writers; for those with one of ``ids``, or with ``code``, if given.

    :param with_rows: False to leave ``row_data`` and ``record_value`` empty: rows may be large, and there may be many.
    """
    large = {
        "row_data": cast(table.c.row_data, Text) if with_rows else literal("", Text),
        "record_value": table.c.record_value if with_rows else null(),
    }
    others = [table.c[field.name] for field in fields(StoredLetter) if field.name not in large]
    chosen = select(*(what.label(name) for name, what in large.items()), *others).where(
        tuple_(table.c.query_id, table.c.sink_name).in_(writers)
    )
    if ids:
        chosen = chosen.where(one_of(table.c.dead_letter_id, ids))
    return chosen if code is None else chosen.where(table.c.code == code)


def one_of(column: ColumnElement[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether a column has one of these values: one parameter, because a statement takes 65,535 at most."""
    return column == any_(literal(list(ids), ARRAY(BigInteger)))


def as_letters(connection: Connection, chosen: Select[Any]) -> list[StoredLetter]:
    """The letters that a statement of :func:`letters_of` finds."""
    return [StoredLetter(**row) for row in connection.execute(chosen).mappings()]


def _no_such_table(what: str, remedy: str | None = None) -> NotFoundError:
    return NotFoundError.usual(
        "DEAD_LETTERS_TABLE",
        what,
        remedy
        or "Name the table that the query's option deadLetters names, with odd names in double quotes; leave the name "
        "out for pgonce.dead_letters. CREATE TABLE ... (LIKE pgonce.dead_letters INCLUDING ALL) makes such a table.",
    )
