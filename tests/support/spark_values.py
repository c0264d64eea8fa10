"""
Values that a Spark column can have: a strategy for each type, and how Postgres should show the values.

Runs in: pytest. Invariant: every value of a case can be encoded, those at the edges of its type often among them.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as t

FIRST_DAY, LAST_DAY = -2_440_588, 2_145_042_905
FIRST_MICROSECOND = FIRST_DAY * 86_400_000_000
DAY = 86_400_000_000
INT64 = (-(2**63), 2**63 - 1)
# Before what Debezium sends for infinity.
LAST_MICROSECOND = 9_223_372_036_825_199_999


def bits(code: str) -> Callable[[Any], Any]:
    """Tell floats apart by their bits, so that -0.0 is not 0.0; one NaN is like another."""
    return lambda value: "NaN" if math.isnan(value) else struct.pack(code, value)


def exactly(value: Decimal) -> Any:
    """Tell decimals apart by digits and scale too; zero has no sign in numeric."""
    return value.as_tuple() if value else value.as_tuple()[1:]


@dataclass(frozen=True)
class Case:
    """A type, its values as Python or as Arrow's integers, and how to read them back from column ``c``."""

    data_type: t.DataType
    values: st.SearchStrategy[Any]
    arrow_type: pa.DataType
    # What stores the values where Python has no such dates: integers, whose bits the Arrow type then shares.
    storage: pa.DataType | None = None
    reading: str = "{}"
    same: Callable[[Any], Any] = lambda value: value

    def array(self, values: list[Any]) -> pa.Array:
        """Return the values as Spark would send them."""
        stored = pa.array(values, self.storage or self.arrow_type)
        return stored.cast(self.arrow_type) if self.storage else stored

    def lists(self, values: list[list[Any] | None]) -> pa.Array:
        """Return lists of values as Spark would send them."""
        stored = pa.array(values, pa.list_(self.storage or self.arrow_type))
        return stored.cast(pa.list_(self.arrow_type)) if self.storage else stored


def integers(bits_wide: int) -> st.SearchStrategy[int]:
    """Return all integers of a width, the edges often."""
    low, high = -(2 ** (bits_wide - 1)), 2 ** (bits_wide - 1) - 1
    return st.sampled_from([low, high, 0, -1]) | st.integers(low, high)


def within(low: int, high: int) -> st.SearchStrategy[int]:
    """Return integers of a range, the edges often."""
    return st.sampled_from([low, high]) | st.integers(low, high)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Return all decimals of a type, those of all digits often."""
    return within(-(10**precision) + 1, 10**precision - 1).map(lambda digits: scaled(digits, scale))


def scaled(digits: int, scale: int) -> Decimal:
    """Return an integer of digits with the point put in; Decimal's own arithmetic would round at 28."""
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))


# NUL apart, which no text in Postgres holds, and lone surrogates, which no UTF-8 has.
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20) | st.sampled_from(
    ["", " ", "\\N", '"\\', "\u2028", "\U0001f600", "\x7f", "NULL", "é" * 300]
)
MICROSECONDS = "(extract(epoch FROM {}) * 1000000)::bigint"
DURATION = "(extract(epoch FROM {}) * 1000000)::numeric"
DAYS = "{} - date '1970-01-01'"
CASES = {
    "boolean": Case(t.BooleanType(), st.booleans(), pa.bool_()),
    "byte": Case(t.ByteType(), integers(8), pa.int8()),
    "short": Case(t.ShortType(), integers(16), pa.int16()),
    "int": Case(t.IntegerType(), integers(32), pa.int32()),
    "long": Case(t.LongType(), integers(64), pa.int64()),
    "float": Case(t.FloatType(), st.floats(width=32), pa.float32(), same=bits("f")),
    "double": Case(t.DoubleType(), st.floats(), pa.float64(), same=bits("d")),
    **{
        f"decimal({p},{s})": Case(t.DecimalType(p, s), decimals(p, s), pa.decimal128(p, s), same=exactly)
        for p, s in [(1, 0), (10, 2), (18, 18), (38, 0), (38, 18), (38, 38)]
    },
    "string": Case(t.StringType(), TEXTS, pa.string()),
    "collated": Case(t.StringType("UTF8_LCASE"), TEXTS, pa.large_string()),
    "varchar": Case(t.VarcharType(300), TEXTS, pa.string_view()),
    "char": Case(t.CharType(300), TEXTS.map(lambda text: text.ljust(300)), pa.string()),
    "binary": Case(t.BinaryType(), st.binary(max_size=30), pa.binary()),
    "large binary": Case(t.BinaryType(), st.binary(max_size=30), pa.large_binary()),
    "binary view": Case(t.BinaryType(), st.binary(max_size=30), pa.binary_view()),
    "date": Case(t.DateType(), within(FIRST_DAY, LAST_DAY), pa.date32(), pa.int32(), DAYS),
    "timestamp": Case(
        t.TimestampType(),
        within(FIRST_MICROSECOND, LAST_MICROSECOND),
        pa.timestamp("us", "America/New_York"),
        pa.int64(),
        MICROSECONDS,
    ),
    "timestamp_ntz": Case(
        t.TimestampNTZType(), within(FIRST_MICROSECOND, LAST_MICROSECOND), pa.timestamp("us"), pa.int64(), MICROSECONDS
    ),
    "interval": Case(t.DayTimeIntervalType(), within(*INT64), pa.duration("us"), pa.int64(), DURATION),
    "time": Case(
        t.TimeType(6),
        within(0, DAY - 1).map(lambda us: us * 1000),
        pa.time64("ns"),
        pa.int64(),
        "(extract(epoch FROM {}) * 1000000000)::bigint",
    ),
}
# What a list of these reads back as; Postgres pads no char in an array, for arrays of char are of text.
LISTED = {name: case for name, case in CASES.items() if name != "char"}


@dataclass(frozen=True)
class JsonCase:
    """A type inside JSON: its values, what Arrow holds them as, and what jsonb should say."""

    data_type: t.DataType
    values: st.SearchStrategy[Any]
    arrow_type: pa.DataType
    shown: Callable[[Any], Any]


def number(value: float, text: str) -> Any:
    """Return a float as JSON says it: exactly the digits of its shortest text, or a word."""
    if math.isnan(value):
        return "NaN"
    return Decimal(text) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def shortest32(value: float) -> str:
    """Return the fewest digits that make the same 32-bit float."""
    return next(
        text for n in range(1, 10) if struct.pack("f", float(text := f"{value:.{n}g}")) == struct.pack("f", value)
    )


def iso(value: time | datetime) -> str:
    """Return the ISO 8601 text, with a fraction only where there is one."""
    return value.isoformat()


def of_int(value: int) -> Decimal:
    """Return what a parser that keeps all digits makes of an integer."""
    return Decimal(value)


datetimes = st.datetimes()
ATOMS = [
    JsonCase(t.BooleanType(), st.booleans(), pa.bool_(), bool),
    JsonCase(t.ByteType(), integers(8), pa.int8(), of_int),
    JsonCase(t.LongType(), integers(64), pa.int64(), of_int),
    JsonCase(
        t.FloatType(),
        st.floats(width=32),
        pa.float32(),
        lambda v: number(v, shortest32(v)) if math.isfinite(v) else number(v, ""),
    ),
    JsonCase(t.DoubleType(), st.floats(), pa.float64(), lambda v: number(v, repr(v))),
    JsonCase(t.DecimalType(38, 18), decimals(38, 18), pa.decimal128(38, 18), lambda v: v),
    JsonCase(t.DecimalType(38, 38), decimals(38, 38), pa.decimal128(38, 38), lambda v: v),
    JsonCase(t.StringType(), TEXTS, pa.string(), str),
    JsonCase(t.VarcharType(9), TEXTS, pa.large_string(), str),
    JsonCase(t.BinaryType(), st.binary(max_size=9), pa.binary(), lambda v: b64encode(v).decode()),
    JsonCase(t.DateType(), st.dates(), pa.date32(), date.isoformat),
    JsonCase(
        t.TimestampType(),
        datetimes.map(lambda v: v.replace(tzinfo=timezone.utc)),
        pa.timestamp("us", "America/New_York"),
        iso,
    ),
    JsonCase(t.TimestampNTZType(), datetimes, pa.timestamp("us"), iso),
    JsonCase(t.TimeType(6), st.times(), pa.time64("ns"), iso),
]


def listed(inner: JsonCase) -> JsonCase:
    """Return lists of it."""
    return JsonCase(
        t.ArrayType(inner.data_type),
        st.lists(st.none() | inner.values, max_size=3),
        pa.list_(inner.arrow_type),
        lambda values: [None if v is None else inner.shown(v) for v in values],
    )


def mapped(key: JsonCase, inner: JsonCase) -> JsonCase:
    """Return maps from a type to a type, whose keys are no longer alike as JSON than they were."""
    return JsonCase(
        t.MapType(key.data_type, inner.data_type),
        st.lists(st.tuples(key.values, st.none() | inner.values), max_size=3, unique_by=lambda kv: named(key, kv[0])),
        pa.map_(key.arrow_type, inner.arrow_type),
        lambda pairs: {named(key, k): None if v is None else inner.shown(v) for k, v in pairs},
    )


def named(key: JsonCase, value: Any) -> str:
    """Return a map's key as JSON names it."""
    shown = key.shown(value)
    return shown if isinstance(shown, str) else json.dumps(shown) if isinstance(shown, bool) else str(shown)


def structured(inner: list[JsonCase]) -> JsonCase:
    """Return structs with one field of each, whose names need quoting."""
    names = [f'f "{i}\\é' for i in range(len(inner))]
    return JsonCase(
        t.StructType([t.StructField(n, case.data_type) for n, case in zip(names, inner, strict=True)]),
        st.fixed_dictionaries({n: st.none() | case.values for n, case in zip(names, inner, strict=True)}),
        pa.struct([pa.field(n, case.arrow_type) for n, case in zip(names, inner, strict=True)]),
        lambda row: {n: None if row[n] is None else case.shown(row[n]) for n, case in zip(names, inner, strict=True)},
    )


KEYS = [
    case
    for case in ATOMS
    if isinstance(case.data_type, (t.StringType, t.LongType, t.BooleanType, t.DateType, t.TimestampType))
]
NESTED = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        inner.map(listed)
        | st.tuples(st.sampled_from(KEYS), inner).map(lambda pair: mapped(*pair))
        | st.lists(inner, min_size=0, max_size=3).map(structured)
    ),
    max_leaves=4,
)
