"""
One stream into several tables: the table of each value of a column, and how its rows are written.

Pure: runs where settings are made, in tasks, and in the commit. Invariant: a row goes into a table only if the user
has listed the table; the rows bring a value that is compared with this list, and never a table's name. A list that
cannot work is refused before any row moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import types as t
from typing_extensions import Unpack

from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.postgres.text import refuse_unstorable

from ..encoding.encoded_types import TEXTS, EncodedColumn
from .definitions import OPTIONS, ChangeFeed, RouteOptions, UnknownRoutes
from .destination import Destination, dead_letters_of, destination_of, refuse_columns_alone
from .option import Way, json_object
from .reading import OF_THE_QUERY, Given, named_in, read, refuse_clashes

# Types whose values have one text only, which is the same in Spark and in Postgres under all settings of a session.
_COMPARABLE = (*TEXTS, t.IntegralType, t.BooleanType)
_EXAMPLE = '{"orders": {"table": "sales.orders", "mode": "upsert", "keys": ["id"]}}'
# An entry does not take these from the stream.
_OF_THE_STREAM = ("table", "route", "tables", "unknown_routes")


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
        needed = {*self.columns, *(where.changes.about_changes if where.changes else ())}
        # orderBy means any case, as in a stream for one table.
        order = (where.order_column or "").lower()
        return tuple(column for column in encoded if column.name in needed or column.name.lower() == order)


@dataclass(frozen=True)
class Routes:
    """
    Where the rows of one stream go, by the value of ``column``, in the order in which the user lists the tables.

    ``dead_letters`` is how many rows of a batch may be put aside that belong to none of them.
    """

    column: str
    each: tuple[Route, ...]
    unknown: UnknownRoutes = "refuse"
    dead_letters: int | None = None

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
        """The columns that say which rows delete, and for each the values of the rows that it is used for."""
        found: dict[str, tuple[str, ...]] = {}
        for route in self.each:
            changes = route.destination.changes
            if changes and changes.delete_when:
                found[changes.delete_when] = (*found.get(changes.delete_when, ()), route.value)
        return found

    def refuse_unfit(self, struct_type: t.StructType) -> None:
        """:raises ConfigurationError: ROUTE_COLUMN, if rows with these columns cannot be told apart by value."""
        field = next((field for field in struct_type.fields if field.name == self.column), None)
        if field is not None and not isinstance(field.dataType, _COMPARABLE):
            raise bad_option(
                "ROUTE_COLUMN",
                f"route names a column {self.column!r}, whose type is {field.dataType.simpleString()}.",
                "Name a column of strings, whole numbers or booleans that has the values in tables.",
            )
        named = {"route": [self.column]} | {f"columns of {route.value!r} in tables": route.columns for route in self}
        for where, columns in named.items():
            if missing := [name for name in columns if name not in struct_type.names]:
                what = f"{where} names {', '.join(map(repr, missing))}, which the rows do not have."
                raise bad_option("ROUTE_COLUMN", what, f"The rows have {', '.join(struct_type.names)}.")


def where_to(**options: Unpack[RouteOptions]) -> Destination | Routes:
    """Where rows go, from the arguments of Python."""
    return where_of(read(options, Way.WRITER))


def where_of(given: Given) -> Destination | Routes:
    """Where rows go: into one table, or with ``route`` into several."""
    refuse_columns_alone(given)
    if not given["route"]:
        return destination_of(given)
    column, tables = given["route"], given["tables"]
    refuse_clashes(given, OF_THE_QUERY)
    tables = json_object("tables", tables) if isinstance(tables, str) else tables
    if not isinstance(tables, Mapping) or not tables:
        raise _bad(f"route={column} is set, but tables lists no table.", f"Set it to {_EXAMPLE}")
    pairs = [_route(value, entry, given) for value, entry in tables.items()]
    each = tuple(route for route, _ in pairs)
    _refuse_unlike([settings for _, settings in pairs])
    found = Routes(column, each, given["unknown_routes"], dead_letters_of(given))
    # A column that chooses the table, or says which rows of other tables delete, is written only if the table has it.
    aside = frozenset({column, *found.delete_columns})
    # What an entry lists is for its table, even the column that chooses the table.
    own = [replace(r, destination=replace(r.destination, aside=aside - {*r.columns})) for r in each]
    return replace(found, each=tuple(own))


def _route(value: object, entry: object, outside: Given) -> tuple[Route, Given]:
    """The entry, and its settings with those of the stream where it has none of its own."""
    if not isinstance(value, str):
        raise _bad(f"tables has {value!r}, which is not a string.", "Write the values of the route column as strings.")
    refuse_unstorable(tables=value)
    if not isinstance(entry, Mapping):
        raise _bad(f"The entry for {value!r} in tables is not an object.", f"Write it as in {_EXAMPLE}")
    try:
        own = read(entry, Way.ENTRY)
        mode = own.get("mode", outside["mode"])
        # An entry that sets an option to its default takes back what is set for the stream.
        own_word = {*_OF_THE_STREAM, *named_in(entry)}
        inherited = {
            argument: of
            for argument, of in outside.items()
            # With another mode it does not take options that have no effect in that mode.
            if argument not in own_word
            and (mode == outside["mode"] or not OPTIONS[argument].modes or mode in OPTIONS[argument].modes)
        }
        if not isinstance(own["columns"], Sequence):
            raise _bad("columns is not a list.", 'Write the names of columns, as in ["id", "day"].')
        settings = Given({"table": value, **inherited, **own})
        return Route(value, destination_of(settings), tuple(own["columns"])), settings
    except ConfigurationError as error:
        raise error.beginning(f"For {value!r} in tables") from None


def _refuse_unlike(each: Sequence[Given]) -> None:
    """Refuse tables that differ in what all rows of one frame have in common."""
    for option in OPTIONS.values():
        is_common = any(option.alike in settings for settings in each)
        if is_common and len({settings[option.argument] for settings in each}) > 1:
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{option.name} differs between tables, but with {OPTIONS[option.alike].name} it is the same for all "
                "of them, because all rows come from one frame.",
                f"Set mode and {option.name} for the stream, and neither of them in tables.",
            )


def _bad(what: str, remedy: str) -> ConfigurationError:
    return bad_option("BAD_OPTION", what, remedy)


def most_dead_letters(where: Destination | Routes) -> int | None:
    """How many rows of a batch may be put aside, for all tables together; None if none may."""
    limits = [where.dead_letters]
    if isinstance(where, Routes):
        limits += [route.destination.dead_letters for route in where]
    return max((one for one in limits if one is not None), default=None)


def sink_name_of(where: Destination | Routes) -> str:
    """What a sink is called before Postgres has been asked which table is meant."""
    return where.sink_name if isinstance(where, Routes) else where.table
