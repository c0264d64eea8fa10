"""
Which tables did the user list for a stream that goes into several, and how are they written?

Pure: runs in the planner's worker, the commit worker and the driver. Invariant: a list that cannot work is refused
before any row moves; an entry means the same in the JSON of the sink's option and in a dict of Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from typing_extensions import Unpack

from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.postgres.text import refuse_unstorable

from .destination import Destination, TableOptions, destination
from .hints import column_names, refuse_unknown_options
from .routes import Route, Routes, UnknownRoutes
from .table_options import TABLE_OPTIONS, parse_destination

ROUTE_OPTIONS = ("route", "tables", "unknownRoutes")
"""The names as users write them."""

_OF_AN_ENTRY = {name.lower(): name for name in ("table", *TABLE_OPTIONS, "columns")}
# What an entry with a mode of its own does not take from the options beside route, because it has no meaning there.
_ONLY_BY_KEY = frozenset({"keys", "orderby", "onlynewer", "tombstonedays", "onconflict", "updatecolumns", "keepwhere"})
_ONLY_APPLY = frozenset({"deletewhen", "changefeed", "deletes"})
_NOT_INHERITED = {
    "append": _ONLY_BY_KEY | _ONLY_APPLY,
    "complete": _ONLY_BY_KEY | _ONLY_APPLY,
    "upsert": _ONLY_APPLY,
    "apply": frozenset({"onconflict"}),
}
_EXAMPLE = '{"orders": {"table": "sales.orders", "mode": "upsert", "keys": ["id"]}}'


def parse_where(given: Mapping[str, str], mode: str) -> Destination | Routes:
    """
    Where rows go, from options whose names are in lower case: into one table, or with ``route`` into several.

    :raises ConfigurationError: if an option is bad, missing or in conflict with another.
    """
    if not given.get("route"):
        _refuse_without_route({name: given.get(name.lower()) for name in ROUTE_OPTIONS[1:]})
        return parse_destination(given, mode)
    _refuse_beside_route(given.get("table"), start_over=given.get("startover", "off").strip().lower() != "off")
    defaults = {name: given[name] for name in (option.lower() for option in TABLE_OPTIONS) if name in given}
    found = _routes(
        given["route"], _parsed(given.get("tables", "")), given.get("unknownroutes"), {**defaults, "mode": mode}
    )
    # Spark's output mode is one for the whole stream, and decides which rows come.
    for route in found:
        if (route.destination.mode == "complete") != (mode == "complete"):
            raise bad_option(
                "CLASHING_OPTIONS",
                f"mode={route.destination.mode} was given for {route.value!r} in tables, but Spark's output mode is "
                f"{'complete' if mode == 'complete' else 'append'}.",
                "mode=complete goes with .outputMode('complete'), and then for all tables.",
            )
    return found


def where_to(
    table: str,
    route: str | None,
    tables: Mapping[str, Mapping[str, Any]] | None,
    unknown_routes: str | None,
    mode: str,
    keys: Sequence[str],
    order_by: str | None,
    *,
    start_over: bool = False,
    **how: Unpack[TableOptions],
) -> Destination | Routes:
    """
    The same, from keyword arguments of Python.

    :raises ConfigurationError: if an argument is bad, missing or in conflict with another.
    """
    if not route:
        _refuse_without_route({"tables": tables, "unknown_routes": unknown_routes})
        return destination(table, mode, column_names("keys", keys), order_by, **how)
    _refuse_beside_route(table, start_over=start_over)
    given = {"mode": mode, "keys": keys, "order_by": order_by, **how}
    return _routes(route, tables, unknown_routes, _plain("the arguments beside route", given))


def _refuse_without_route(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{name} has no effect without route.",
                "Set route to the column whose value chooses the table, or leave it out and set table.",
            )


def _refuse_beside_route(table: str | None, *, start_over: bool) -> None:
    if table:
        raise bad_option(
            "CLASHING_OPTIONS",
            f"table={table} and route are both set, but with route the value chooses among tables.",
            "Leave one of the two out.",
        )
    if start_over:
        raise bad_option(
            "CLASHING_OPTIONS",
            "startOver replaces the rows of one table, and with route there are several.",
            "Leave it out. To load all of them again, empty them yourself and run `pgonce forget`, or fill other "
            "tables.",
        )


def _parsed(text: str) -> Mapping[str, Any]:
    """The JSON object; a name that comes twice in it is refused, because one of the two would be lost."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise _bad(f"tables has {twice!r} twice.", "Name each once.")
        return found

    try:
        found = json.loads(text or "{}", object_pairs_hook=object_of)
    except ValueError as error:
        raise _bad(f"tables is not JSON: {error}.", f"Write it as a JSON object: {_EXAMPLE}") from None
    if not isinstance(found, dict):
        raise _bad("tables is not a JSON object.", f"Write it as {_EXAMPLE}")
    return found


def _routes(
    column: str,
    tables: Mapping[str, Mapping[str, Any]] | None,
    unknown: str | None,
    defaults: Mapping[str, Any],
) -> Routes:
    refuse_unstorable(route=column)
    if not isinstance(tables, Mapping) or not tables:
        raise _bad(f"route={column} is set, but tables lists no table.", f"Set it to {_EXAMPLE}")
    each = tuple(_route(value, entry, defaults) for value, entry in tables.items())
    _refuse_doubled(each)
    _refuse_unlike_feeds(each)
    probe = {name: value for name, value in defaults.items() if name in ("deadletters", "maxdeadletters")}
    letters = parse_destination({**probe, "table": "rows"}, "append").dead_letters
    said = next(
        (word for word in get_args(UnknownRoutes) if word.lower() == (unknown or "refuse").strip().lower()), None
    )
    if said is None:
        allowed = ", ".join(get_args(UnknownRoutes))
        raise bad_option("BAD_OPTION", f"unknownRoutes={unknown!r} is not allowed.", f"Use one of {allowed}.")
    if said == "deadLetters" and letters is None:
        raise bad_option(
            "CLASHING_OPTIONS",
            "unknownRoutes=deadLetters is set, but deadLetters is not: nothing says where the rows go.",
            "Set deadLetters to true, or to a table.",
        )
    found = Routes(column, each, cast("UnknownRoutes", said), letters)
    # What chooses the table, or says of other tables' rows that they delete, is written only where a table has it.
    aside = frozenset({column, *found.delete_columns})
    return replace(found, each=tuple(replace(r, destination=replace(r.destination, aside=aside)) for r in each))


def _route(value: object, entry: object, defaults: Mapping[str, Any]) -> Route:
    if not isinstance(value, str):
        raise _bad(f"tables has {value!r}, which is not a text.", "Write the values of the route column as texts.")
    refuse_unstorable(tables=value)
    if not isinstance(entry, Mapping):
        raise _bad(f"What tables says of {value!r} is not an object.", f"Write it as in {_EXAMPLE}")
    given = _plain(f"{value!r} in tables", entry)
    refuse_unknown_options(given, _OF_AN_ENTRY)
    mode = str(given.get("mode", defaults["mode"])).strip().lower()
    passed_over = _NOT_INHERITED.get(mode, frozenset()) if mode != defaults["mode"] else frozenset()
    inherited = {name: of for name, of in defaults.items() if name not in passed_over}
    columns = column_names("columns", given.pop("columns", ()))
    try:
        where = parse_destination({**inherited, "table": value, **given}, mode)
    except ConfigurationError as error:
        raise error.beginning(f"For {value!r} in tables") from None
    return Route(value, where, columns)


def _plain(whose: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options by their names in lower case, with texts as values; what is not given is left out."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        plain = str(name).replace("_", "").lower()
        if isinstance(value, bool):
            found[plain] = str(value).lower()
        elif isinstance(value, (str, int)):
            found[plain] = str(value)
        elif isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            if plain not in ("keys", "updatecolumns", "columns"):
                raise _bad(f"{name} of {whose} is a list.", "Give one value.")
            found[plain] = tuple(value)
        else:
            raise _bad(f"{name} of {whose} is {value!r}.", "Give a text, a number, true or false, or a list of texts.")
    return found


def _refuse_doubled(each: Sequence[Route]) -> None:
    by_table: dict[str, str] = {}
    for route in each:
        other = by_table.setdefault(route.destination.table, route.value)
        if other != route.value:
            raise twice(route.destination.table, other, route.value)


def _refuse_unlike_feeds(each: Sequence[Route]) -> None:
    found = {(r.destination.changes and r.destination.changes.feed, r.destination.order_by) for r in each}
    feeds = {feed for feed, _ in found}
    if feeds == {None}:
        return
    if len(feeds) > 1:
        raise bad_option(
            "CLASHING_OPTIONS",
            "changeFeed is set for some tables, but the frame is one: it is a change feed for all of them or for none.",
            "Set mode=apply and changeFeed beside route, and no other mode, feed or deleteWhen in tables.",
        )
    if len(found) > 1:
        raise bad_option(
            "CLASHING_OPTIONS",
            "orderBy differs between tables, but with changeFeed it is taken out of the rows once, for all of them.",
            "Set orderBy beside route, and not in tables.",
        )


def twice(table: str, one: str, other: str) -> ConfigurationError:
    """The error for two routes into one table."""
    return _bad(
        f"{one!r} and {other!r} in tables both go into {table}, and nothing says whose rows come first.",
        "Give both values the same name in Spark, before the rows are written.",
    )


def _bad(what: str, remedy: str) -> ConfigurationError:
    return bad_option("BAD_ROUTES", what, remedy)
