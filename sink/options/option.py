"""
One option: who takes it, which values it accepts, and what goes with it.

Pure: runs where settings are made. Invariant: a value means the same as a string of Spark, as an argument of Python
and in the JSON of ``tables``; an error names the option as Spark's users write it, and never shows a secret.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Flag, auto
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from typing_extensions import Required, get_type_hints

from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.postgres.text import refuse_unstorable

Mode = Literal["append", "upsert", "apply", "complete"]

# Words that Spark, other writers and SQL have for the modes.
_MEANT = {"update": "upsert", "merge": "upsert", "insert": "append", "overwrite": "complete", "truncate": "complete"}


class Way(Flag):
    """The ways in; an option belongs to some of them."""

    STREAM = auto()
    JOB = auto()
    WRITER = auto()
    FUNCTION = auto()
    REAL_TIME = auto()
    TABLE = auto()
    ENTRY = auto()

    def __str__(self) -> str:
        return " and ".join(words for way, words in _WAYS.items() if way in self)


_WAYS = {
    Way.STREAM: 'streams (format("pgonce"))',
    Way.JOB: "batch jobs (df.write)",
    Way.WRITER: "PostgresBatchWriter",
    Way.FUNCTION: "transactional_batch",
    Way.REAL_TIME: "start_real_time",
    Way.TABLE: "BatchTransaction",
    Way.ENTRY: "the entries of tables",
}


@dataclass(frozen=True)
class Option:
    """
    An option: who takes it, and what it means, in Markdown; the first sentence stands in docstrings too.

    :param default: the value of one that is not given; ``shown`` is what the page says of it instead.
    :param modes: the write modes in which it has an effect, if not in all; with ``creates``, it also has one where the
        table is created.
    :param needs: arguments without which it has no effect; ``value:name`` is one that only this value of it needs.
    :param clashes: arguments that contradict it, as ``name`` or ``name=value``.
    :param alike: the argument with which all entries of ``tables`` must have the same value of it.
    :param least: the least number, or names of a list; 0 if it is not given. ``most`` is the greatest number, or the
        most names, or bytes of a text.
    :param empty: whether an empty string is a value; otherwise it is as if the option were not given.
    :param secret: whether a value may hold a password.
    :param not_in_jobs: what to do in a batch job, which has no such option.
    """

    ways: Way
    meaning: str
    default: Any = None
    shown: str = ""
    modes: tuple[Mode, ...] = ()
    creates: bool = False
    needs: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()
    alike: str = ""
    least: float | None = None
    most: float | None = None
    empty: bool = False
    secret: bool = False
    not_in_jobs: str = ""
    # These are taken from the field of the table that the option annotates.
    argument: str = ""
    kinds: frozenset[type] = frozenset()
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The option as Spark's users write it: ``keepWhere``."""
        first, *rest = self.argument.split("_")
        return first + "".join(map(str.capitalize, rest))

    @property
    def bounds(self) -> str:
        """Its bounds, as in "1 to 5", "at most 63 bytes" or "exactly 3 names"; empty if it has none."""
        if self.least is None and self.most is None:
            return ""
        of_what = " names" if Sequence in self.kinds else " bytes" if str in self.kinds else ""
        words = f"at least {self.least}" if self.most is None else f"at most {self.most}"
        if self.least is not None and self.most is not None:
            words = f"exactly {self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return words + of_what

    @property
    def summary(self) -> str:
        """The first sentence of what it means, without links."""
        without_links = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", self.meaning)
        return re.split(r"(?<=\.) (?=[A-Z`(])", without_links)[0].replace("`", "``")

    def read(self, value: object) -> Any:
        """The value, checked and as Python has it; None if it is as if the option were not given."""
        said = value.strip().lower() if isinstance(value, str) else value
        for word in self.words:
            if said == word.lower():
                return word
        if bool in self.kinds and (isinstance(value, bool) or said in ("true", "false")):
            chosen = value is True or said == "true"
            return None if chosen is bool(self.default) else chosen
        if self.kinds & {int, float}:
            return self._number(value)
        if Mapping in self.kinds and str not in self.kinds and not self.secret:
            is_object = isinstance(value, str) and (value.lstrip().startswith("{") or Sequence not in self.kinds)
            if is_object or isinstance(value, Mapping):
                return self._texts(json_object(self.name, value) if isinstance(value, str) else value)
        if Sequence in self.kinds and isinstance(value, (str, Sequence)):
            return self._names(value)
        if isinstance(value, str) and str in self.kinds:
            if not self.secret:
                refuse_unstorable(**{self.name: value})
                self._refuse_length(len(value.encode()))
            return value if value or self.empty else None
        if Mapping in self.kinds and isinstance(value, Mapping):
            return value or None
        if value == "" and self.default is None and not self.empty:
            return None
        raise self._refused(value)

    def _number(self, value: object) -> float:
        kind = int if int in self.kinds else float
        found: float = math.nan
        if isinstance(value, (str, kind, int)) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                found = kind(value)
        number = "a whole number" if kind is int else "a number"
        self._refuse_size(found, f"{self.name}={value!r} is not {number} ({self.bounds}).")
        return found

    def _refuse_size(self, size: float, what: str) -> None:
        # What is not a number is neither less nor greater than any, and so it is not within bounds.
        if not (self.least or 0) <= size <= (self.most or math.inf):
            raise bad_option("BAD_OPTION", what, f"Set another. It means: {self.summary}")

    def _refuse_length(self, length: int) -> None:
        self._refuse_size(length, f"{self.name} must have {self.bounds}, and has {length}.")

    def _names(self, value: str | Sequence[object]) -> tuple[str, ...] | None:
        if isinstance(value, str):
            names = tuple(name.strip() for name in value.split(",") if name.strip())
            # Spark makes Python's text of a list.
            if value.strip().startswith(("['", "('")):
                what = f"{self.name}={value!r} is a Python list that was turned into a string."
                raise bad_option("BAD_OPTION", what, 'Write the names with commas between them, as in "id,day".')
        else:
            names = tuple(name for name in value if isinstance(name, str) and name)
            if len(names) < len(value):
                what = f"{self.name}={value!r} has an entry that is not a name."
                raise bad_option("BAD_OPTION", what, "Give a list of strings.")
        refuse_unstorable(**{self.name: "".join(names)})
        if len(set(names)) != len(names):
            raise bad_option("BAD_OPTION", f"{self.name}={','.join(names)} names a column twice.", "Name each once.")
        if names:
            self._refuse_length(len(names))
        return names or None

    def _texts(self, value: object) -> dict[str, str] | None:
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for pair in value.items() for one in pair):
            raise bad_option("BAD_OPTION", f"{self.name} must map names to strings.", f"It means: {self.summary}")
        refuse_unstorable(**{self.name: "".join(one for pair in value.items() for one in pair)})
        return dict(value) or None

    def _refused(self, value: object) -> ConfigurationError:
        allowed = (*self.words, *(("true", "false") if bool in self.kinds else ()))
        if isinstance(value, (str, int, float)) and allowed:
            return bad_option("BAD_OPTION", f"{self.name}={value!r} is not allowed.", one_of(str(value), allowed))
        form = "a mapping" if Mapping in self.kinds else "a list of names" if Sequence in self.kinds else "a string"
        what = f"{self.name} must be {form}, not {type(value).__name__}."
        return bad_option("BAD_OPTION", what, f"Write one of {', '.join(allowed)}." if allowed else "Write it as one.")


def json_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object that is given for this option; a name that it has twice is refused: one of both would be lost."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise bad_option("BAD_OPTION", f"{name} has {twice!r} twice.", "Name each once.")
        return found

    try:
        found = json.loads(text, object_pairs_hook=object_of)
    except ValueError as error:
        raise bad_option("BAD_OPTION", f"{name} is not JSON: {error}.", "Write it as a JSON object.") from None
    if not isinstance(found, dict):
        raise bad_option("BAD_OPTION", f"{name} is not a JSON object.", "Write it as one.")
    return found


def one_of(value: str, allowed: Sequence[str]) -> str:
    """What to write in place of a value that is not allowed: the word that was probably meant, and all of them."""
    value = value.strip().lower()
    meant = _MEANT.get(value)
    near = [meant] if meant in allowed else difflib.get_close_matches(value, allowed, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"{hint}Use one of {', '.join(allowed)}."


def collected(*tables: type) -> dict[str, Option]:
    """The options that annotate the fields of ``tables``, by their arguments."""
    found: dict[str, Option] = {}
    for argument, hint in (pair for table in tables for pair in get_type_hints(table, include_extras=True).items()):
        form: Any = get_origin(hint)
        accepted, option = get_args(get_args(hint)[0] if form is Required else hint)
        parts = get_args(accepted) if get_origin(accepted) in (Union, UnionType) else (accepted,)
        words = tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))
        kinds = frozenset(get_origin(part) or part for part in parts) - {Literal, type(None)}
        found[argument] = replace(option, argument=argument, kinds=kinds, words=words)
    return found
