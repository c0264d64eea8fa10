"""
One stream into several tables: which value of a column goes to which of them, and how?

Pure: runs wherever settings are made, in tasks, and in the commit. Invariant: a row goes into a table only if the user
has listed the table; the rows bring a value that is compared with this list, and never a table's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types as t

from pgonce.offsets_store.errors import bad_option

from ..encoding.encoded_types import EncodedColumn
from .by_key import ChangeFeed
from .destination import DeadLetters, Destination

UnknownRoutes = Literal["refuse", "drop", "deadLetters"]
"""What becomes of rows whose value is not in the list: the batch, they, or a record of them."""

# Types whose values have one text only, which is the same in Spark and in Postgres, whatever the session's settings.
_COMPARABLE = (
    t.StringType,
    t.CharType,
    t.VarcharType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.BooleanType,
)


@dataclass(frozen=True)
class Route:
    """Rows with this ``value`` go to ``destination``; with ``columns``, only these of their columns do."""

    value: str
    destination: Destination
    columns: tuple[str, ...] = ()

    def written(self, encoded: Sequence[EncodedColumn]) -> tuple[EncodedColumn, ...]:
        """The columns of the rows that are written to the table, or that say how the others are."""
        if not self.columns:
            return tuple(encoded)
        where = self.destination
        needed = {*self.columns, where.order_column, *(where.changes.about_changes if where.changes else ())}
        return tuple(column for column in encoded if column.name in needed)


@dataclass(frozen=True)
class Routes:
    """
    Where the rows of one stream go, by the value of ``column``, in the order in which the user lists the tables.

    ``dead_letters`` is where rows go that belong to none of them, if ``unknown`` says that they are put aside.
    """

    column: str
    each: tuple[Route, ...]
    unknown: UnknownRoutes = "refuse"
    dead_letters: DeadLetters | None = None

    def __iter__(self) -> Iterator[Route]:
        return iter(self.each)

    @property
    def sink_name(self) -> str:
        """The sink's name, unless the user gives it one."""
        return f"route:{self.column}"

    @property
    def feed(self) -> ChangeFeed | None:
        """The change feed that the frame is; then it is one for all tables."""
        changes = self.each[0].destination.changes
        return changes.feed if changes else None

    @property
    def delete_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns that say which rows delete, and for each the values of the rows that it speaks of."""
        found: dict[str, tuple[str, ...]] = {}
        for route in self.each:
            changes = route.destination.changes
            if changes and changes.delete_when:
                found[changes.delete_when] = (*found.get(changes.delete_when, ()), route.value)
        return found

    def refuse_unfit(self, struct_type: t.StructType) -> None:
        """:raises ConfigurationError: ROUTE_COLUMN, if rows with these columns cannot be told apart by value."""
        field = next((field for field in struct_type.fields if field.name == self.column), None)
        if field is None or not isinstance(field.dataType, _COMPARABLE):
            raise bad_option(
                "ROUTE_COLUMN",
                f"route names a column {self.column!r}, "
                + (f"whose type is {field.dataType.simpleString()}." if field else "which the rows do not have."),
                "Name a column of texts, whole numbers or booleans, whose values are those in tables."
                if field
                else f"The rows have {', '.join(struct_type.names)}.",
            )
        for route in self.each:
            missing = [name for name in route.columns if name not in struct_type.names]
            if missing:
                raise bad_option(
                    "ROUTE_COLUMN",
                    f"columns of {route.value!r} in tables names {', '.join(missing)}, which the rows do not have.",
                    f"The rows have {', '.join(struct_type.names)}.",
                )


def sink_name_of(where: Destination | Routes) -> str:
    """What a sink is called before Postgres has been asked which table is meant."""
    return where.sink_name if isinstance(where, Routes) else where.table
