"""
What does an option's value say: one of several words, yes or no, a number?

Pure: runs wherever options are parsed. Invariant: the options are given by their names in lower case, as Spark hands
them over; an error has the name as users write it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from pgonce.offsets_store.errors import bad_option

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
