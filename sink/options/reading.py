"""
Read what a user has given for any way in: names in either spelling, values as strings or as Python has them.

Pure: runs where settings are made. Invariant: a name that the way in does not have is refused with what was
probably meant, and so is an option that would have no effect. A hint never repeats a value, which may be a password.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.kafka.settings import PREFIX

from .definitions import OPTIONS
from .option import Option, Way

_T = TypeVar("_T")

_IN_URL = "It is a part of url (postgresql://user@host:5432/database); libpq's PG* variables can also set it."
_LOGIN = (
    "Write the password in ~/.pgpass, a service file or PGPASSWORD, or in url "
    "(postgresql://user:password@host/database); or let passwordFrom name a function that gives it."
)
_TABLE = "Set table, for example to sales.orders."
_NOT_NEEDED = "Leave it out: it is an option of Spark's jdbc writer, which pgonce does not need."
_OF_THE_SOURCE = "It is an option of the source: set it on spark.readStream, before load()."

# Names that Spark's jdbc writer and other sinks use, in lower case.
_OF_OTHER_WRITERS = {
    **dict.fromkeys(("dbtable", "tablename", "schema", "dbschema"), _TABLE),
    **dict.fromkeys(("user", "username", "host", "port", "dbname", "database", "sslmode"), _IN_URL),
    **dict.fromkeys(("driver", "batchsize", "isolationlevel", "numpartitions", "stringtype"), _NOT_NEEDED),
    "password": _LOGIN,
    "savemode": "Set mode to one of " + ", ".join(OPTIONS["mode"].words) + ".",
    "primarykey": "Set keys.",
    "trigger": "A trigger is not an option: call .trigger(...) on the writer.",
    "processingtime": "A trigger is not an option: call .trigger(processingTime=...) on the writer.",
    "availablenow": "A trigger is not an option: call .trigger(availableNow=True) on the writer.",
    "checkpoint": "Set checkpointLocation.",
}
_OF_SOURCES = frozenset({
    "subscribe", "subscribepattern", "assign", "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
    "endingoffsets", "maxoffsetspertrigger", "minoffsetspertrigger", "failondataloss", "includeheaders",
    "groupidprefix", "minpartitions", "maxfilespertrigger", "maxbytespertrigger", "maxfileage", "latestfirst",
    "cleansource", "sourcearchivedir", "filenameonly", "pathglobfilter", "recursivefilelookup", "multiline", "header",
    "inferschema", "sep", "delimiter", "encoding", "timestampformat", "dateformat", "rowspersecond", "rowsperbatch",
    "ignorechanges", "ignoredeletes", "startingversion", "withwatermark",
})  # fmt: skip

# Spark's own options, which reach every sink; ``save(path)`` hands over a path.
_SPARKS = {
    Way.STREAM: re.compile(r"spark\..*|_.*|asyncprogresstracking.*|path|outputmode|truncate|numrows"),
    Way.JOB: re.compile(r"spark\..*|_.*|path"),
}
_BY_PLAIN_NAME = {argument.replace("_", ""): option for argument, option in OPTIONS.items()}


class Given(dict[str, Any]):
    """
    Checked options by their arguments.

    ``given["keep_where"]`` is the default of an option that is not given, and ``given.get("keep_where")`` is None.
    """

    def __missing__(self, argument: str) -> Any:
        return OPTIONS[argument].default


def read(raw: Mapping[str, Any], way: Way) -> Given:
    """
    The options that ``way`` takes out of what a user gave for it; what is None counts as not given.

    :raises ConfigurationError: UNKNOWN_OPTION, with what was probably meant, or else with all options; BAD_OPTION;
        CLASHING_OPTIONS for an option in both spellings.
    """
    given = Given()
    kafka: dict[str, str] = {}
    has_brokers = any(_plain(name) == "bootstrapservers" for name in raw)
    for name, value in raw.items():
        lower = str(name).lower()
        if value is None or (way in _SPARKS and _SPARKS[way].fullmatch(lower)):
            continue
        if way is Way.STREAM and lower.startswith(PREFIX) and has_brokers:
            kafka[lower] = value
            continue
        option = _BY_PLAIN_NAME.get(_plain(name))
        if option is None or way not in option.ways:
            raise _unknown(str(name), way)
        # Spark sends options in no order, so it would be random which of the two counts.
        if option.argument in given:
            raise bad_option("CLASHING_OPTIONS", f"{name} is set twice, in two spellings.", "Keep one of them.")
        found = option.read(value)
        if found is not None:
            given[option.argument] = found
    if kafka:
        given["kafka_options"] = kafka
    return given


def named_in(raw: Mapping[str, Any]) -> set[str]:
    """The arguments of the options that a user gave, those that are set to their defaults included."""
    named = {_plain(name) for name, value in raw.items() if value is not None}
    return {option.argument for plain, option in _BY_PLAIN_NAME.items() if plain in named}


OF_THE_QUERY = [argument for argument, option in OPTIONS.items() if Way.ENTRY not in option.ways or argument == "table"]
"""Those that the query as a whole has: an entry of ``tables`` has its own table, or has none of them."""


def refuse_clashes(given: Given, arguments: Iterable[str] = OPTIONS) -> None:
    """
    Refuse options that have no effect with the others, or contradict them.

    :param arguments: those that are looked at; the others count where these need them.
    :raises ConfigurationError: CLASHING_OPTIONS.
    """
    mode = given["mode"]
    for option in (OPTIONS[argument] for argument in arguments if argument in given):
        if option.modes and mode not in option.modes and not (option.creates and given["create_table"]):
            uses = " or ".join(f"mode={word}" for word in option.modes)
            also = ", or with createTable" if option.creates else ""
            remedy = f"Use it with {uses}{also}, or leave it out."
            raise bad_option("CLASHING_OPTIONS", f"{option.name} has no effect with mode={mode}.", remedy)
        own = given[option.argument]
        for need in option.needs:
            value, _, argument = need.rpartition(":")
            if argument not in given and value in ("", own):
                what, needed = f"{option.name}={value}" if value else option.name, OPTIONS[argument].name
                remedy = f"Set {needed}, or leave {what} out."
                raise bad_option("CLASHING_OPTIONS", f"{what} has no effect without {needed}.", remedy)
        # A default that is written out contradicts nothing.
        for clash in () if own == option.default else option.clashes:
            argument, _, value = clash.partition("=")
            if given[argument] == value if value else argument in given:
                other = OPTIONS[argument].name + (f"={value}" if value else "")
                what = f"{option.name} cannot be used with {other}."
                raise bad_option("CLASHING_OPTIONS", what, "Leave one of the two out.")


def _unknown(name: str, way: Way) -> ConfigurationError:
    plain = _plain(name)
    option = _BY_PLAIN_NAME.get(plain)
    if option is not None:
        remedy = (way is Way.JOB and option.not_in_jobs) or "Leave it out."
        return bad_option("UNKNOWN_OPTION", f"{name} is an option of {option.ways}, not of {way}.", remedy)
    known = {_plain(other.argument): _spelled(other, way) for other in options_of(way)}
    hint = _hint(name.lower(), plain, known)
    # A hint that stands before forty names is not read.
    all_of_them = "(Page `options` of the documentation has all of them.)"
    remedy = f"{hint} {all_of_them}" if hint else f"There are {', '.join(known.values())}."
    return bad_option("UNKNOWN_OPTION", f"There is no option {name!r}.", remedy)


def _hint(lower: str, plain: str, known: Mapping[str, str]) -> str:
    """What was probably meant, as a sentence; empty if no option comes close."""
    if plain in _OF_OTHER_WRITERS:
        return _OF_OTHER_WRITERS[plain]
    if lower.startswith(PREFIX):
        return f"{_OF_THE_SOURCE} Here it says how to log in to bootstrapServers, which is not set."
    if plain in _OF_SOURCES:
        return _OF_THE_SOURCE
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    return f"Did you mean {known[near[0]]}?" if near else ""


def options_of(way: Way) -> list[Option]:
    """The options that ``way`` takes."""
    return [option for option in OPTIONS.values() if way in option.ways]


def takes_options(way: Way) -> Callable[[_T], _T]:
    """Add the options of ``way`` to the docstring and the signature of the class or function that takes them."""

    def described(taker: _T) -> _T:
        lines = [f":param {option.argument}: {option.summary}" for option in options_of(way)]
        taker.__doc__ = "\n".join([inspect.cleandoc(taker.__doc__ or ""), *lines])
        # What mypy reads in ``Unpack`` is ``**options`` for help() and for editors that import.
        written = inspect.signature(taker)  # type: ignore[arg-type]
        own = [one for one in written.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [_parameter(option) for option in options_of(way) if option.argument not in written.parameters]
        more.sort(key=lambda one: one.name != "table")
        taker.__signature__ = written.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return taker

    return described


def _parameter(option: Option) -> inspect.Parameter:
    default = inspect.Parameter.empty if option.shown == "required" else option.default
    return inspect.Parameter(option.argument, inspect.Parameter.KEYWORD_ONLY, default=default)


def _spelled(option: Option, way: Way) -> str:
    return option.name if way in Way.STREAM | Way.JOB | Way.ENTRY else option.argument


def _plain(name: object) -> str:
    return str(name).replace("_", "").lower()
