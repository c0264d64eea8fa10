"""
JSON texts of Spark's values: for jsonb columns, and for rows that are put aside as JSON.

Runs in tasks and in the driver. Pure. Invariant: the text is JSON that jsonb takes, with every number exact:
decimals and longs as JSON numbers, NaN and infinities as strings (JSON has none), instants in UTC with their
offset.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Context, Decimal, localcontext
from itertools import pairwise
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from .encoded_types import TEXTS, TimeType, VariantType

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats every 400 years, so any date can be moved into the years that Python has.
_CALENDAR_YEARS, _CALENDAR_DAYS = 400, 146_097
_LAST_YEAR_OF_FOUR_DIGITS = 9999

_NO_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


class NulInJsonError(ValueError):
    """A text has a NUL character, which jsonb cannot hold."""


def quoted(text: str) -> str:
    """Return a text as a JSON string, if it has no NUL."""
    if "\0" in text:
        raise NulInJsonError
    return encode_basestring(text)


def _base64(value: bytes) -> str:
    return f'"{b64encode(value).decode()}"'


def _iso_date(days: int, rest: str) -> str:
    year, day = _year_and_day(days)
    # ISO 8601: years outside four digits carry a sign, and the year before 1 is 0.
    shown = f"{year:04d}" if 0 <= year <= _LAST_YEAR_OF_FOUR_DIGITS else f"{year:+05d}"
    return f'"{shown}-{day}{rest}"'


def _postgres_date(days: int, rest: str) -> str:
    """Postgres takes no sign in a date, and its years before Christ begin at 1."""
    year, day = _year_and_day(days)
    return f'"{year:04d}-{day}{rest}"' if year > 0 else f'"{1 - year:04d}-{day}{rest} BC"'


def _year_and_day(days: int) -> tuple[int, str]:
    """Return a date's year (the one before year 1 is 0), and its month and day as ``MM-DD``."""
    cycles, rest = divmod(days, _CALENDAR_DAYS)
    near = date.fromordinal(_EPOCH_ORDINAL + rest)
    return near.year + _CALENDAR_YEARS * cycles, f"{near:%m-%d}"


@dataclass(frozen=True)
class Forms:
    """
    The JSON strings of values that JSON has no form for.

    ``date`` is given the days since 1970, and what follows the date; ``no_numbers`` are floats by their texts.
    """

    text: Callable[[str], str] = quoted
    binary: Callable[[bytes], str] = _base64
    date: Callable[[int, str], str] = _iso_date
    no_numbers: Mapping[str, str] = field(default_factory=_NO_NUMBERS.copy)


FORMS = Forms()
READ_BY_POSTGRES = Forms(
    binary=lambda value: f'"\\\\x{value.hex()}"',
    date=_postgres_date,
    # A number in jsonb is a numeric, which has no negative zero.
    no_numbers={**_NO_NUMBERS, "-0": '"-0"', "-0.0": '"-0"'},
)
"""The strings that Postgres casts to a column's type, where they are not those of :data:`FORMS`."""


def json_texts(array: pa.Array, data_type: t.DataType, forms: Forms = FORMS) -> list[str | None]:
    """
    Return one JSON text for each row, None if the value is null (a null inside a value reads ``null``).

    :raises NulInJsonError: for a NUL in a text or in a map's key.
    :raises ValueError: for text that is not UTF-8, or a variant that Python cannot read.
    """
    if isinstance(data_type, t.StructType):
        texts = _struct_texts(array, data_type, forms)
    elif isinstance(data_type, t.MapType):
        keys = map(_key, _inner(_within(array, array.keys), data_type.keyType, forms))
        values = _inner(_within(array, array.items), data_type.valueType, forms)
        texts = _grouped(array, "{", [f"{k}:{v}" for k, v in zip(keys, values, strict=True)], "}")
    elif isinstance(data_type, t.ArrayType):
        texts = _grouped(array, "[", _inner(_within(array, array.values), data_type.elementType, forms), "]")
    else:
        return _scalar_texts(array, data_type, forms)
    return [text if valid else None for text, valid in zip(texts, array.is_valid().to_pylist(), strict=True)]


def _inner(array: pa.Array, data_type: t.DataType, forms: Forms) -> list[str]:
    return ["null" if text is None else text for text in json_texts(array, data_type, forms)]


def _struct_texts(array: pa.StructArray, struct_type: t.StructType, forms: Forms) -> list[str]:
    # flatten() gives a null struct null fields, even if values are stored under it.
    names = [quoted(field.name) + ":" for field in struct_type]
    fields = zip(array.flatten(), struct_type, strict=True)
    columns = [_inner(child, field.dataType, forms) for child, field in fields]
    if not columns:
        return ["{}"] * len(array)
    rows = zip(*columns, strict=True)
    return ["{" + ",".join(map("".join, zip(names, row, strict=True))) + "}" for row in rows]


def _within(array: pa.Array, child: pa.Array) -> pa.Array:
    """Return the part of a list's or map's child array that this slice refers to."""
    start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return child.slice(start, end - start)


def _grouped(array: pa.Array, opening: str, parts: list[str], closing: str) -> list[str]:
    """Join the texts of a list's or map's children, row by row."""
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    return [opening + ",".join(parts[a - first : b - first]) + closing for a, b in pairwise(offsets)]


def _key(text: str) -> str:
    # A map's key that is not a string in JSON becomes its JSON text.
    return text if text.startswith('"') else encode_basestring(text)


def _scalar_texts(array: pa.Array, data_type: t.DataType, forms: Forms) -> list[str | None]:
    if isinstance(data_type, VariantType):
        return _each(lambda v: _variant(t.VariantVal(v["value"], v["metadata"]), forms), array.to_pylist())
    if isinstance(data_type, TEXTS):
        return _each(forms.text, array.to_pylist())
    if isinstance(data_type, t.BinaryType):
        return _each(forms.binary, array.to_pylist())
    if isinstance(data_type, t.DateType):
        return _each(lambda days: forms.date(days, ""), array.cast(pa.int32()).to_pylist())
    if isinstance(data_type, t.TimestampType):
        return _each(lambda us: _timestamp(us, "+00:00", forms), array.cast(pa.int64()).to_pylist())
    if isinstance(data_type, t.TimestampNTZType):
        return _each(lambda us: _timestamp(us, "", forms), array.cast(pa.int64()).to_pylist())
    if isinstance(data_type, TimeType):
        return _each(lambda us: f'"{_clock(us)}"', array.cast(pa.time64("us")).cast(pa.int64()).to_pylist())
    if isinstance(data_type, t.DayTimeIntervalType):
        return _each(lambda us: f'"{_duration(us)}"', array.cast(pa.int64()).to_pylist())
    # Booleans, integers and decimals read as JSON does; Arrow writes floats with the fewest digits that are
    # exact.
    texts = array.cast(pa.string()).to_pylist()
    if isinstance(data_type, (t.FloatType, t.DoubleType)):
        return [forms.no_numbers.get(text, text) for text in texts]
    return texts


def _each(convert: Callable[[Any], str], values: Iterable[Any]) -> list[str | None]:
    return [None if value is None else convert(value) for value in values]


def _clock(us: int) -> str:
    """Return the time of day, with a fraction only where there is one."""
    seconds, fraction = divmod(us, _SECOND)
    whole = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{whole}.{fraction:06d}" if fraction else whole


def _timestamp(us: int, zone: str, forms: Forms) -> str:
    days, rest = divmod(us, _DAY)
    return forms.date(days, f"T{_clock(rest)}{zone}")


def _duration(us: int) -> str:
    """Return an ISO 8601 duration, every part with the sign, as Postgres reads it too."""
    sign, (seconds, fraction) = "-" if us < 0 else "", divmod(abs(us), _SECOND)
    shown = f"{seconds % 60}.{fraction:06d}" if fraction else f"{seconds % 60}"
    return f"PT{sign}{seconds // 3600}H{sign}{seconds // 60 % 60}M{sign}{shown}S"


def _variant(variant: t.VariantVal, forms: Forms) -> str:
    # Not VariantVal.toJson: it writes a double without a JSON number as nan or inf, which is not JSON.
    try:
        with localcontext(_EXACT):
            return _python_text(variant.toPython(), forms)
    except (OverflowError, OSError) as error:
        raise ValueError("a variant has a time outside the years 1 to 9999, which Python cannot represent") from error
    except RecursionError as error:
        raise ValueError("a variant is nested more deeply than Python can read") from error


# PySpark multiplies to make a decimal of a variant, and Python rounds the product to 28 digits if nothing else is said.
# Spark's decimals have 38.
_EXACT = Context(prec=100)


def _python_text(value: Any, forms: Forms) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ",".join(f"{forms.text(k)}:{_python_text(v, forms)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_python_text(v, forms) for v in value) + "]"
    if isinstance(value, str):
        return forms.text(value)
    if isinstance(value, bytes):
        return forms.binary(value)
    if isinstance(value, datetime):
        return f'"{(value.astimezone(timezone.utc) if value.tzinfo else value).isoformat()}"'
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    if isinstance(value, (int, float, Decimal)):
        text = str(value)
        return _NO_NUMBERS.get(text, text)
    raise ValueError(f"a variant has a {type(value).__name__}, which has no form in JSON")
