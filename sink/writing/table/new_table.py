"""
Create the target table for the rows of the first batch, if the user wants that; write what would alter one.

Runs in the commit, and before a query starts to say what would be refused. Invariant: the table gets the columns of the
rows, and those that are keys, but no column that only says what is to be done with a row. Columns are added without a
default, so that Postgres does not write the table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target
from pgonce.offsets_store.postgres import search_path

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import Destination
from .catalogue import TargetColumn, TargetTable
from .table_name import QualifiedName


def nested_key(name: str, column: EncodedColumn) -> TargetError:
    """
    The error for a key whose values would be compared as JSON.

    JSON calls values equal that differ in Spark (the numbers 1 and 1.0), and such a primary key is never intended.
    """
    parts = [f"{column.name}.{field.name}" for field in getattr(column.data_type, "fields", ())]
    columns = ", ".join(f'col("{part}").alias("{part.replace(".", "_")}")' for part in parts)
    put_apart = (
        f"Make columns of its fields in Spark, such as {columns}, and name those in keys instead."
        if parts
        else "In Spark, make columns, or one string, of the values that tell rows apart, and name these in keys."
    )
    return bad_target(
        "NESTED_KEY",
        f"Column {column.name!r} is {column.spark_type} in Spark, and one of the keys of {name}; in Postgres it "
        "would be JSON, which compares values differently from Spark.",
        put_apart,
    )


def create_table(
    connection: psycopg.Connection, new: QualifiedName, encoded: Sequence[EncodedColumn], destination: Destination
) -> None:
    """
    Create the table that fits the rows, with the keys as its primary key.

    :raises TargetError: KEY_UNKNOWN, NESTED_KEY.
    :raises psycopg.errors.SerializationFailure: if another session has created it meanwhile.
    """
    keys = keys_of_new(new, encoded, destination)
    # An orderBy column is among them, even if it only says which row of a key is the last one of a batch.
    of_rows = [c for c in encoded if c.name not in destination.not_of_the_row or c.name in keys]
    parts = [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.ddl_type)) for c in of_rows]
    if keys:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
    create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
    try:
        search_path.execute_in_tx(connection, create.format(new.identifier, sql.SQL(", ").join(parts)))
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable) as error:
        if error.diag.schema_name not in (None, "pg_catalog"):
            raise
        # Postgres has looked for the name before the other session's COMMIT, and fails when it takes the name.
        what = f"{new.qualified_name} was created by another session meanwhile"
        raise psycopg.errors.SerializationFailure(what) from error


def keys_of_new(new: QualifiedName, encoded: Sequence[EncodedColumn], destination: Destination) -> list[str]:
    """
    The keys of a table that is created: as the rows' columns are written, which the options need not be.

    :raises TargetError: KEY_UNKNOWN; NESTED_KEY, if they would be compared as JSON.
    """
    columns = {column.name: column for column in encoded}
    keys: list[str] = []
    for key in destination.keys:
        found = [key] if key in columns else [name for name in columns if name.lower() == key.lower()]
        if len(found) != 1:
            raise key_unknown(key, list(columns))
        if columns[found[0]].postgres_type == "jsonb":
            raise nested_key(new.qualified_name, columns[found[0]])
        keys += found
    return keys


def key_unknown(key: str, names: Sequence[str], option: str = "keys or orderBy") -> TargetError:
    """The error for an option that names a column which is not among ``names``, those that are written."""
    return bad_target(
        "KEY_UNKNOWN",
        f"{option} names a column {key!r}, which is not among those that are written.",
        f"These are {', '.join(names)}.",
    )


def retyped(table: TargetTable, column: TargetColumn, new_type: str) -> str:
    """The ALTER TABLE that gives a column another type. Texts keep their collation, by which values may be equal."""
    of_texts = column.collation and new_type.startswith("text")
    statement = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}{}").format(
        table.identifier,
        sql.Identifier(column.column_name),
        sql.SQL(new_type),
        sql.SQL(f" COLLATE {column.collation}" if of_texts else ""),
    )
    return statement.as_string(None)


@dataclass(frozen=True)
class NewColumn:
    """A column to be added."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"column {self.name} {self.type} was added"


def alter_statement(table: sql.Composable, columns: Sequence[NewColumn]) -> sql.Composed:
    """The one ALTER TABLE that adds all columns."""
    add = sql.SQL("ADD COLUMN {} {}")
    added = [add.format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns]
    return sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(added))
