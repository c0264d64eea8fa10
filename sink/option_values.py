"""
What does an option's value say: one of several words, yes or no, a number, a database?

Pure: runs wherever options are parsed. Invariant: the options are given by their names in lower case, as Spark hands
them over; an error has the name as users write it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.postgres.connect import parse_url
from pgonce.offsets_store.postgres.passwords.postgres_url import PostgresUrl

_Default = TypeVar("_Default")


def choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    """
    One of the ``allowed`` words, in lower case.

    :raises ConfigurationError: for any other, with the word that is nearest to it.
    """
    value = given.get(name.lower(), default).strip().lower()
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise bad_option("BAD_OPTION", f"{name}={value!r} is not allowed.", f"{hint}Use one of {', '.join(allowed)}.")
    return value


def flag(given: Mapping[str, str], name: str) -> bool:
    """
    Whether the option is true; false if it is not given.

    :raises ConfigurationError: if it is neither true nor false.
    """
    return choice(given, name, ("true", "false"), "false") == "true"


def postgres_url(given: Mapping[str, str]) -> PostgresUrl:
    """
    Which database is meant, and where the password for it comes from.

    :raises ConfigurationError: if there are two passwords, or the source of one cannot be read.
    """
    return PostgresUrl(given.get("url", ""), given.get("passwordfrom"), given.get("passwordcommand"))


def executor_url(given: Mapping[str, str]) -> str | None:
    """
    The option executorUrl, with the source of its password; None if tasks reach Postgres as the driver does.

    :raises ConfigurationError: if libpq cannot read it, or if there are two passwords.
    """
    url = given.get("executorurl")
    if url is None:
        return None
    parse_url(url)
    return PostgresUrl(url, given.get("passwordfrom"), given.get("passwordcommand"))


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
