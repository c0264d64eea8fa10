"""
Find the columns of the rows that a table lacks, and the statement that adds them or makes room for values.

Pure; runs before Spark's job and in the commit. Invariant: a table is altered only where its batch would be refused
otherwise. Columns are added without a default, so that Postgres does not write the table again. No type is changed: the
error shows the statement to the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError

from ..encoding.encoded_types import EncodedColumn
from ..options.definitions import BY_KEY
from ..options.destination import Destination
from .table.catalogue import TargetColumn, TargetTable

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


def columns_to_add(
    table: TargetTable, encoded: Sequence[EncodedColumn], destination: Destination
) -> tuple[NewColumn, ...]:
    """
    The columns without which the table does not take the rows, if the user wants them to be added.

    :raises TargetError: TARGET_NOT_ALTERED, for one that cannot be added.
    """
    if destination.schema_evolution != "addColumns" or table.kind not in ("r", "p"):
        return ()
    columns = tuple(
        NewColumn(column.name, column.ddl_type)
        for column in encoded
        if not table.columns_named(column.name) and not destination.is_only_if_there(column.name)
    )
    for column in columns:
        if _is_key(column.name, table, destination):
            reason = f"a column that it lacks ({column.name}) is one of the keys, and also needs a unique index"
            raise not_altered(table, [column], reason)
    return columns


def as_altered(table: TargetTable, columns: Sequence[NewColumn]) -> TargetTable:
    """The table as it will be, as far as fitting the rows goes."""
    added = (TargetColumn(column.name, _base(column.type), column.type) for column in columns)
    return replace(table, columns=(*table.columns, *added))


def _base(full_type: str) -> str:
    return re.sub(r"\([-\d, ]+\)", "", full_type)


def without_extra(
    table: TargetTable, encoded: Sequence[EncodedColumn], destination: Destination
) -> tuple[EncodedColumn, ...]:
    """
    With ``ignoreExtra``, the columns that the table has; otherwise all of them.

    Keys are never left out, because without one of them other rows would be meant, nor is the column of ``onlyNewer``.
    """
    if destination.schema_evolution != "ignoreExtra":
        return tuple(encoded)
    kept = tuple(
        column
        for column in encoded
        if table.columns_named(column.name)
        or _is_key(column.name, table, destination)
        or destination.is_only_if_there(column.name)
        or column.name == destination.order_column
    )
    # If nothing is left, the error names a column.
    return kept or tuple(encoded)


def left_out(encoded: Sequence[EncodedColumn], kept: Sequence[EncodedColumn], table: TargetTable) -> str:
    """A sentence on the columns that are not written; empty if all are."""
    kept_names = {column.name for column in kept}
    names = [column.name for column in encoded if column.name not in kept_names]
    columns = f"columns {', '.join(names)}" if len(names) > 1 else f"column {', '.join(names)}"
    return (
        f"{table.qualified_name} lacks {columns} of the rows, left out by schemaEvolution=ignoreExtra." if names else ""
    )


def _is_key(name: str, table: TargetTable, destination: Destination) -> bool:
    if destination.mode not in BY_KEY:
        return False
    primary = (column.column_name for column in table.columns if column.primary_key is not None)
    return name.lower() in {key.lower() for key in destination.keys or primary}


def alter_statement(table: sql.Composable, columns: Sequence[NewColumn]) -> sql.Composed:
    """The one ALTER TABLE that adds all columns."""
    add = sql.SQL("ADD COLUMN {} {}")
    added = [add.format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns]
    return sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(added))


def not_altered(
    table: TargetTable, columns: Sequence[NewColumn], reason: str, *, altered: str | None = None
) -> TargetError:
    """
    The error for columns that cannot be added, with the statement that adds them.

    :param altered: the table to alter, as SQL names it, if it is another one.
    """
    statement = alter_statement(sql.SQL(altered) if altered else table.identifier, columns).as_string(None)
    return TargetError(
        "TARGET_NOT_ALTERED",
        f"{table.qualified_name} lacks columns of the rows, and schemaEvolution=addColumns cannot add them: {reason}.",
        NOTHING,
        f"Remove what prevents it, and let the owner of the table run this: {statement}; then start the query "
        "again. Or rename or drop the column in Spark.",
    )
