"""
May the encoded form of a Spark column go into a given Postgres column, and how?

Pure; runs in the driver. Invariant: whatever is accepted here arrives in Postgres as the value that Spark
held, or Postgres raises. If Postgres would round, cut or shift a value silently, the column is refused.
(Spaces past the end of a varchar(n) are the one exception: the SQL standard says that they are cut.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from psycopg import sql

from ...encoding.encoded_types import MICROSECONDS, EncodedColumn

# The catalogue's own names for types that `format_type` spells out for people.
_ALIASES = {
    "bigint": "int8",
    "integer": "int4",
    "smallint": "int2",
    "real": "float4",
    "double precision": "float8",
    "boolean": "bool",
    "character varying": "varchar",
    "character": "bpchar",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "bit varying": "varbit",
}

_NUMBERS = frozenset({"int2", "int4", "int8", "numeric"})
_TIMES = frozenset({"time", "timestamp", "timestamptz", "interval"})

# Assignments that keep every value, or that Postgres itself checks (22003, numeric out of range).
_ASSIGNABLE = {
    "int2": {"int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int2", "int8", "numeric", "float8"},
    "int8": {"int2", "int4", "numeric"},
    "float4": {"float8"},
    "date": {"timestamp"},
}

# Types that may not be read from text: numbers and times (the frame should hold them as such), types that cut
# silently ("char", name), and bytea, whose text form is an escape syntax.
_NOT_FROM_TEXT = {
    *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "money", "bytea", '"char"', "name"),
    *("date", "time", "timetz", "timestamp", "timestamptz", "oid", "xid", "xid8", "cid", "tid"),
}
# Without what the caller says of them, arrays of a user's type are refused: they might be of a domain, which an
# explicit cast would cut.
_ARRAYS_FROM_TEXT = {
    *("varchar", "bpchar", "uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8", "xml", "interval"),
    *("bit", "varbit", "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
}

# Why Postgres would change values silently, and what to do.
_LOSSY = {
    ("int4", "float4"): "a real has 24 bits for an int of 32: use double precision, or cast in Spark",
    ("int8", "float4"): "a real has 24 bits for a long of 64: use bigint or numeric, or cast in Spark",
    ("int8", "float8"): "a double has 53 bits for a long of 64: use bigint or numeric, or cast in Spark",
    ("float8", "float4"): "a real has 24 bits for a double's 53: use double precision, or cast to float in Spark",
    ("float4", "numeric"): "Postgres would round a binary float to 6 digits: cast to decimal in Spark",
    ("float8", "numeric"): "Postgres would round a binary float to 15 digits: cast to decimal in Spark",
    ("numeric", "float4"): "a real does not hold every decimal: cast to float in Spark",
    ("numeric", "float8"): "a double does not hold every decimal: cast to double in Spark",
    ("timestamptz", "timestamp"): (
        "an instant has a date and a time of day only in some time zone: alter the column to timestamptz, or cast to "
        "timestamp_ntz in Spark (in the session's zone)"
    ),
    ("timestamp", "timestamptz"): (
        "a date and a time of day without a zone are not an instant: alter the column to timestamp, or cast to "
        "timestamp in Spark (in the session's zone)"
    ),
    ("date", "timestamptz"): "when a day begins differs by zone: cast to timestamp in Spark (in the session's zone)",
    ("timestamptz", "date"): "the time of day would be lost: cast to date in Spark",
    ("timestamp", "date"): "the time of day would be lost: cast to date in Spark",
}


Expression = Callable[[sql.Composable], sql.Composable]


_NO_CONVERSION = (
    "no conversion keeps every value: cast in Spark, to string where Postgres shall read the type's text form"
)


class Fit(Enum):
    """How an encoded column may go into a target column."""

    EXACT = auto()
    CAST = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class Fitting:
    """
    The answer of :func:`fit`: for CAST, the type to cast the copied value to; for REFUSED, the reason as a sentence.

    ``cast_type`` is empty if assignment alone converts. It never has a type modifier: ``x::varchar(3)`` would
    cut silently, while assigning to a varchar(3) column raises 22001. ``expression`` makes a value of the target's type
    where a cast does not: it takes the copied value, and all names in it are qualified.
    """

    fit: Fit
    cast_type: str = ""
    reason: str = ""
    expression: Expression | None = None


def fit(
    encoded: EncodedColumn, target_type_name: str, target_typmod_type: str, *, takes_texts: bool = False
) -> Fitting:
    """
    Say whether an encoded column may be copied straight into a target column, needs a cast, or is refused.

    :param target_type_name: ``format_type(type, NULL)``: ``bigint``, ``character varying``, ``public.mood``.
        For a domain, its base type, however deep: they share a binary form, and COPY runs the domain's
        checks, while an explicit cast to a domain over varchar(n) would cut.
    :param target_typmod_type: ``format_type(type, typmod)`` of the same: ``character varying(10)``.
    :param takes_texts: whether the target is an array of a user's type that an array of texts may be cast to.
    """
    source, target = encoded.postgres_type, target_type_name
    is_array = source.endswith("[]")
    if is_array != target.endswith("[]"):
        return refused(encoded, target_typmod_type, "one is an array and the other is not: convert in Spark")
    source = source.removesuffix("[]")
    target = target.removesuffix("[]")
    target = _ALIASES.get(target, target)
    rounding = _rounded(encoded, source, target, _modifiers(target_typmod_type))
    if rounding:
        return refused(encoded, target_typmod_type, rounding)
    if source == target or (source == "text" and target in {"varchar", "bpchar"} and not is_array):
        return Fitting(Fit.EXACT)
    if target in _ASSIGNABLE.get(source, ()) or (source == "numeric" and target in {"int2", "int4", "int8"}):
        return Fitting(Fit.CAST)
    if source == "jsonb" and target in {"json", "text", "varchar"}:
        return Fitting(Fit.CAST, "json" if target == "json" else "text")
    if source == "text" and (takes_texts or target in _ARRAYS_FROM_TEXT if is_array else target not in _NOT_FROM_TEXT):
        # Without a modifier "bit" means bit(1) and would cut; bit varying holds any length, and assignment checks it.
        return Fitting(Fit.CAST, ("varbit" if target == "bit" else target) + ("[]" if is_array else ""))
    lossy = _LOSSY.get((source, target), _NO_CONVERSION)
    return refused(encoded, target_typmod_type, lossy)


def refused(encoded: EncodedColumn, target: str, why: str) -> Fitting:
    """The refusal of a column for a target, with the reason, which ends with what to do."""
    sentence = f"Column {encoded.name!r} is {encoded.spark_type} in Spark and {target} in Postgres: {why}."
    return Fitting(Fit.REFUSED, reason=sentence)


def _rounded(encoded: EncodedColumn, source: str, target: str, modifiers: tuple[int, ...]) -> str:
    """Return why the target's precision would change values silently, or an empty text."""
    if source in _NUMBERS and target in _NUMBERS and (target != "numeric" or modifiers):
        scale = _modifiers(encoded.ddl_type)[1] if source == "numeric" else 0
        kept = modifiers[1] if target == "numeric" else 0
        if kept < scale:
            return f"the target keeps {kept} digits after the decimal point, and would round: cast in Spark"
    if target in _TIMES and modifiers:
        held = {"time": _modifiers(encoded.ddl_type)[:1], "date": (0,)}.get(source, (MICROSECONDS,))
        if modifiers < held:
            return "the target keeps fewer digits of a second or fewer fields, and would round: widen the column"
    return ""


def rounds_its_text(type_name: str, typmod_type: str) -> bool:
    """Whether the type reads a text that says more than it holds, and rounds or cuts it; as part of a composite."""
    target = type_name.removesuffix("[]")
    target = _ALIASES.get(target, target)
    is_rounding = target in _TIMES or target in ("numeric", "timetz")
    return target in ("name", '"char"') or (is_rounding and bool(_modifiers(typmod_type)))


def _modifiers(type_text: str) -> tuple[int, ...]:
    """Return the numbers in parentheses; (-1,) for an interval that keeps only some fields; () for none."""
    if re.match(r"interval [a-z]", type_text):
        return (-1,)
    found = re.search(r"\(([-\d, ]+)\)", type_text)
    return tuple(int(part) for part in found[1].split(",")) if found else ()
