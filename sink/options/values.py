"""
What does an option's value say: one of several words, yes or no, a number, a database?

Runs wherever options are parsed. Invariant: the options are given by their names in lower case, as Spark hands them
over; an error has the name as users write it. Only an error about startOver asks Postgres something: who feeds the
table.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.postgres.connect import parse_url
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.offsets_store.status.read_stored import who_feeds

_Default = TypeVar("_Default")

# Words that Spark, other writers and SQL have for the modes.
_MEANT = {"update": "upsert", "merge": "upsert", "insert": "append", "overwrite": "complete", "truncate": "complete"}


def choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    """
    One of the ``allowed`` words, in lower case.

    :raises ConfigurationError: for any other, with the word that is nearest to it.
    """
    value = given.get(name.lower(), default).strip().lower()
    if value not in allowed:
        raise bad_option("BAD_OPTION", f"{name}={value!r} is not allowed.", one_of(value, allowed))
    return value


def one_of(value: str, allowed: tuple[str, ...]) -> str:
    """What to write in place of a value that is not allowed: the word that was probably meant, and all of them."""
    meant = _MEANT.get(value)
    near = [meant] if meant in allowed else difflib.get_close_matches(value, allowed, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"{hint}Use one of {', '.join(allowed)}."


def flag(given: Mapping[str, str], name: str) -> bool:
    """
    Whether the option is true; false if it is not given.

    :raises ConfigurationError: if it is neither true nor false.
    """
    return choice(given, name, ("true", "false"), "false") == "true"


def postgres_url(given: Mapping[str, str]) -> PostgresUrl:
    """
    Which database is meant, and where the password for it comes from.

    :raises ConfigurationError: if there are two passwords, or if passwordFrom cannot be read.
    """
    return PostgresUrl(given.get("url", ""), given.get("passwordfrom"))


def executor_url(given: Mapping[str, str]) -> str | None:
    """
    The option executorUrl, with the source of its password; None if tasks reach Postgres as the driver does.

    :raises ConfigurationError: if libpq cannot read it, or if there are two passwords.
    """
    url = given.get("executorurl")
    if url is None:
        return None
    parse_url(url)
    return PostgresUrl(url, given.get("passwordfrom"))


def number(given: Mapping[str, str], name: str, default: _Default, *, least: int) -> int | _Default:
    """
    A whole number of at least ``least``.

    :raises ConfigurationError: if it is anything else.
    """
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise bad_option("BAD_OPTION", f"{name}={text!r} is not a whole number of at least {least}.", "Set one.")
    return value


AS_OPTIONS = '.option("startOver", "truncate").option("replaces", "{}")'
AS_ARGUMENTS = 'start_over="truncate", replaces="{}"'


def starts_over(
    value: object, replaces: str | None, url: str, *, table: str, sink_name: str | None, spelled: str
) -> bool:
    """
    Whether the rows of the query that is replaced are to be deleted.

    :param value: of startOver, as the user gave it; None if it was not given.
    :param spelled: how the two options are written where they were given, with a place for the query's id.
    :raises ConfigurationError: BAD_OPTION, or NO_REPLACES; both say what to write, and which queries can be meant.
    """
    word = "off" if value is None else str(value).strip().lower()
    if word == "off" or (word == "truncate" and replaces):
        return word == "truncate"
    feeders = {} if replaces else {writer.query_id: writer for writer in who_feeds(url, table, sink_name)}
    named = replaces or (next(iter(feeders)) if len(feeders) == 1 else "<the name or id of the old query>")
    known = "; ".join(
        f"{query_id} ({writer.query_name or 'no name'}, sink {writer.sink_name}, last batch {writer.batch_id} at "
        f"{writer.updated_at:%Y-%m-%d %H:%M})"
        for query_id, writer in feeders.items()
    )
    whose = f"This table is fed by {known}." if known else "`pgonce status` shows the queries, and what they feed."
    remedy = f"To let batch 0 replace all rows of the table, write {spelled.format(named)}."
    if word != "truncate":
        remedy = f"{remedy} {'' if replaces else f'{whose} '}To keep the rows, leave it out."
        name = "startOver" if spelled is AS_OPTIONS else "start_over"
        raise bad_option("BAD_OPTION", f"{name}={value!r} is not allowed.", remedy)
    raise bad_option(
        "NO_REPLACES",
        "startOver=truncate is given without replaces: nothing says whose rows are to be deleted, so a setting that "
        "was left in place would empty the table whenever a checkpoint is lost.",
        f"{remedy} {whose}",
    )
