"""
What did the user mean by an unknown option, or by a value in another form?

Pure: runs in the planner's worker and on the driver. Invariant: a hint names only what exists and says where it
belongs; it never repeats a value, which may be a password.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar, get_args, get_type_hints

from pgonce.offsets_store.errors import bad_option

_P = ParamSpec("_P")
_T = TypeVar("_T")

_IN_URL = "It is a part of url (postgresql://user@host:5432/database); libpq's PG* variables can say it, too."
_LOGIN = (
    "Write the password in ~/.pgpass, a service file or PGPASSWORD, or in url "
    "(postgresql://user:password@host/database); or let passwordFrom name a function that gives it."
)
_TABLE = "Set table, for example to sales.orders."
_NOT_NEEDED = "Leave it out: it is an option of Spark's jdbc writer, and pgonce does without it."

# Names that Spark's jdbc writer and other sinks use, in lower case.
_OF_OTHER_WRITERS = {
    "dbtable": _TABLE,
    "tablename": _TABLE,
    "schema": _TABLE,
    "dbschema": _TABLE,
    "user": _IN_URL,
    "username": _IN_URL,
    "host": _IN_URL,
    "port": _IN_URL,
    "dbname": _IN_URL,
    "database": _IN_URL,
    "sslmode": _IN_URL,
    "password": _LOGIN,
    "driver": _NOT_NEEDED,
    "batchsize": _NOT_NEEDED,
    "isolationlevel": _NOT_NEEDED,
    "numpartitions": _NOT_NEEDED,
    "stringtype": _NOT_NEEDED,
    "savemode": "Set mode to append, upsert or complete.",
    "primarykey": "Set keys.",
    "trigger": "A trigger is not an option: call .trigger(...) on the writer.",
    "processingtime": "A trigger is not an option: call .trigger(processingTime=...) on the writer.",
    "availablenow": "A trigger is not an option: call .trigger(availableNow=True) on the writer.",
    "checkpoint": "Set checkpointLocation.",
    "batchkey": "It is for batch jobs (df.write): a stream's batches are told apart by its checkpoint.",
    "batchhash": "It is for batch jobs (df.write): a stream's batches are told apart by its checkpoint.",
}
_OF_SOURCES = frozenset({
    "subscribe", "subscribepattern", "assign", "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
    "endingoffsets", "maxoffsetspertrigger", "minoffsetspertrigger", "failondataloss", "includeheaders",
    "groupidprefix", "minpartitions", "maxfilespertrigger", "maxbytespertrigger", "maxfileage", "latestfirst",
    "cleansource", "sourcearchivedir", "filenameonly", "pathglobfilter", "recursivefilelookup", "multiline", "header",
    "inferschema", "sep", "delimiter", "encoding", "timestampformat", "dateformat", "rowspersecond", "rowsperbatch",
    "ignorechanges", "ignoredeletes", "startingversion", "withwatermark",
})  # fmt: skip
_OF_THE_SINK_ALONE = frozenset({"executorurl", "inlinebytes", "receiver", "offsetsfrom"})


def refuse_unknown_options(given: Iterable[str], known: Mapping[str, str]) -> None:
    """
    Refuse the first name that is not an option.

    :param given: names in lower case.
    :param known: the options, by their names in lower case.
    :raises ConfigurationError: UNKNOWN_OPTION, with what was probably meant, or else with all options.
    """
    for name in given:
        if name not in known:
            all_of_them = f"The options are {', '.join(known.values())}."
            remedy = _or_all(_hint(name, known), all_of_them)
            raise bad_option("UNKNOWN_OPTION", f"There is no option {name!r}.", remedy)


def only_known_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Refuse arguments that ``function`` does not have and say, as for options, what was probably meant."""
    names = argument_names(function)
    known = {name.replace("_", ""): name for name in names if name != "self"}

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name in kwargs:
            if name not in names:
                plain = name.lower().replace("_", "")
                hint = 'It is an option of format("pgonce") alone. ' if plain in _OF_THE_SINK_ALONE else ""
                all_of_them = f"The arguments are {', '.join(known.values())}."
                remedy = _or_all(hint or _hint(plain, known), all_of_them)
                raise bad_option("UNKNOWN_OPTION", f"There is no argument {name!r}.", remedy)
        return function(*args, **kwargs)

    return checked


def _or_all(hint: str, all_of_them: str) -> str:
    # A hint that stands before forty names is not read.
    return f"{hint}(`pgonce explain options` has all of them.)" if hint else all_of_them


def argument_names(function: Callable[..., object]) -> list[str]:
    """The names of a function's arguments; ``**how: Unpack[Options]`` stands for those of ``Options``."""
    hints = get_type_hints(function)
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            names += [of for options in get_args(hints.get(name)) for of in get_type_hints(options)]
        else:
            names.append(name)
    return names


def _hint(name: str, known: Mapping[str, str]) -> str:
    """What was probably meant by ``name``, as a sentence with a space after it; empty if no option comes close."""
    plain = name.replace("_", "")
    if plain in _OF_OTHER_WRITERS:
        return f"{_OF_OTHER_WRITERS[plain]} "
    if name.startswith("kafka."):
        return (
            "It is an option of the source: set it on spark.readStream, before load(). Here it says how to log in to "
            "bootstrapServers, which is not set. "
        )
    if plain in _OF_SOURCES:
        return "It is an option of the source: set it on spark.readStream, before load(). "
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    return f"Did you mean {known[near[0]]}? " if near else ""


def column_names(option: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """
    Column names as the user gave them: a list, or a text with commas between them.

    :raises ConfigurationError: BAD_OPTION, if a Python list was turned into text on its way into an option.
    """
    if not isinstance(names, str):
        return tuple(names)
    meant = _written_list(names.strip())
    if meant is not None:
        raise bad_option(
            "BAD_OPTION",
            f"{option}={names!r} is a Python list that was turned into text.",
            f'Write the names with commas between them: "{",".join(meant)}".',
        )
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _written_list(text: str) -> list[str] | None:
    """The names in ``"['id', 'day']"``; None for a text that is not a list."""
    try:
        value = ast.literal_eval(text) if text.startswith(("[", "(")) else None
    except (ValueError, SyntaxError):
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return list(value)
    return None
