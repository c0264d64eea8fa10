"""
Make columns of Arrow of the values that were read for a column, and find those that do not fit.

Runs where records are decoded. Invariant: a value becomes what the column's type in Postgres makes of it, or it
does not fit: none is rounded, cut, or read in another zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from ..encoding import compute as pc
from .fields import DecodedColumn, Form, arrow_type


@dataclass(frozen=True)
class Refusal:
    """Why a record is refused: the column that it is about, if it is about one, and a sentence."""

    column: str
    message: str


def made(column: DecodedColumn, values: list[Any]) -> tuple[pa.Array, dict[int, Refusal]]:
    """The array of values that were read for a column, and which of them do not fit: these are null in it."""
    make, unfit = _made_as(column), dict[int, Refusal]()
    try:
        return make(values), unfit
    except _UNFIT:
        values = list(values)
    for row, value in enumerate(values):
        try:
            make([value])
        except _UNFIT:
            values[row] = None
            unfit[row] = Refusal(column.name, f"Field {'.'.join(column.path)!r} is {_needed(column)}")
    return make(values), unfit


_UNFIT = (pa.ArrowException, ValueError, OverflowError)


def _made_as(column: DecodedColumn) -> Callable[[list[Any]], pa.Array]:
    """What makes an array of the values that were read for this column."""
    to, read = arrow_type(column.data_type), column.form
    leaf = to.value_type if pa.types.is_list(to) else to
    if read is Form.JSON:
        check = _as_jsonb if column.decoded_for == "jsonb" else list
        return lambda values: pa.array([_raw(value) for value in check(values)], to)
    if read is Form.DIGITS:
        return lambda values: pa.array([_digits(value) for value in values], to)
    if pa.types.is_decimal(leaf):
        return lambda values: pa.array(list(map(_bounded, values)), to)
    if pa.types.is_temporal(leaf):
        texts = pa.list_(pa.string()) if leaf is not to else pa.string()
        return lambda values: pa.array(values, texts).cast(to)
    if pa.types.is_float32(leaf) or pa.types.is_string(leaf) or pa.types.is_map(leaf):
        return lambda values: _checked(pa.array(values, to))
    return lambda values: pa.array(values, to)


# jsonb takes no NUL, and no number with more digits than a numeric has. The first of these finds them quickly, and also
# texts that only look so; the second tells them apart.
_ODD = re.compile(rb"\\u0000|[eE][+-]?\d{5}|\d{6000}")
_NO_JSONB = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000|(?:^|[\[:,\s])-?(?:\d[\d.]*[eE][+-]?\d{5}|[\d.]*\d{6000})")


def _as_jsonb(values: list[Any]) -> list[Any]:
    """:raises ValueError: for what the COPY of all rows would end at."""
    if _ODD.search(b",".join(raw for raw in values if raw)) and any(raw and _NO_JSONB.search(raw) for raw in values):
        raise ValueError
    return values


def _raw(value: Any) -> str | None:
    # SQL has a null of its own.
    return None if value is None or (text := bytes(value)) == b"null" else text.decode()


def _digits(value: Any) -> Any:
    if isinstance(value, list):
        return [_digits(one) for one in value]
    return None if value is None else str(value)


# With an exponent of some millions, Arrow crashes; no decimal of its own has a greater one than this.
_MOST_EXPONENT = 76


def _bounded(value: Any) -> Any:
    """:raises ValueError: for a number that no decimal of Arrow can be near to."""
    if isinstance(value, list):
        return list(map(_bounded, value))
    if value is not None and abs(value.adjusted()) > _MOST_EXPONENT:
        raise ValueError
    return value


def _checked(array: pa.Array) -> pa.Array:
    """:raises ValueError: for what Arrow takes, and Postgres does not: a NUL in a text, a real that is too large."""
    for leaf in _leaves(array):
        is_bad = pc.match_substring(leaf, "\0") if pa.types.is_string(leaf.type) else pc.is_inf(leaf)
        if pc.any(is_bad, min_count=0).as_py():
            raise ValueError
    return array


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_map(array.type):
        yield from (array.keys, array.items)
    else:
        yield array.flatten() if pa.types.is_list(array.type) else array


_NEEDED: dict[type[t.DataType], str] = {
    t.TimestampType: "a time with its offset, as in 2026-01-31T12:00:00.123456Z",
    t.TimestampNTZType: "a time without an offset, as in 2026-01-31T12:00:00.123456",
    t.DateType: "a date, as in 2026-01-31",
    t.FloatType: "a number that a real can hold",
    t.StringType: "a text in UTF-8 without NUL",
}


def _needed(column: DecodedColumn) -> str:
    leaf = getattr(column.data_type, "elementType", column.data_type)
    if column.form is Form.JSON:
        return "not JSON that jsonb can hold: it has a NUL, or a number with too many digits."
    if isinstance(leaf, t.DecimalType):
        return f"not a number of {column.decoded_for}."
    return f"not {_NEEDED.get(type(leaf), f'a value of {column.decoded_for}')}."
