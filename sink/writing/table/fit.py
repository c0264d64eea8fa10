"""
Decide whether the encoded form of a Spark column may go into a given Postgres column, and how.

Pure; runs on the driver. Invariant: every value of a column that is accepted here arrives in Postgres as Spark held it,
or Postgres raises. If Postgres would round, cut or shift a value silently, the column is refused. (Spaces past the end
of a varchar(n) are the one exception: the SQL standard says that they are cut.) A type of an extension or of the user
is known by its place in the catalogue, never by its name alone, because any user may call a type ``vector``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from pgonce.offsets_store.postgres import search_path

if TYPE_CHECKING:
    from ...encoding.encoded_types import EncodedColumn

_MICROSECONDS = 6

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
    ("date", "timestamptz"): "a day begins at different times in different zones: cast to timestamp in Spark (in "
    "the session's zone)",
    ("timestamptz", "date"): "the time of day would be lost: cast to date in Spark",
    ("timestamp", "date"): "the time of day would be lost: cast to date in Spark",
}


Expression = Callable[[sql.Composable], sql.Composable]


_FROM_TEXT = "Postgres may read a text otherwise than Spark does: cast in Spark to the type that the column has"
_NO_CONVERSION = "no conversion keeps every value: cast in Spark, to string if Postgres is to read the type's text form"


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
    where a cast does not: it takes the copied value, and all names in it are qualified. If it makes a string, give
    ``cast_type`` too: keys without one are compared as the column's type without its length, which cuts a char(n).
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
        as_json = "its values would be JSON in Postgres: use a jsonb column, or convert in Spark"
        other = "one is an array and the other is not: convert in Spark"
        return refused(encoded, target_typmod_type, as_json if source == "jsonb" else other)
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
    lossy = _LOSSY.get((source, target), _FROM_TEXT if source == "text" else _NO_CONVERSION)
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
        held = {"time": _modifiers(encoded.ddl_type)[:1], "date": (0,)}.get(source, (_MICROSECONDS,))
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


FIRST_OF_USERS = 16_384
"""Postgres's FirstNormalObjectId: what came with it has smaller numbers."""

# From the given types to the elements of arrays, to what domains are made of, and to the attributes of composites.
_DESCRIBE = """
WITH RECURSIVE reached AS (
    SELECT oid FROM unnest(ARRAY[{oids}]::oid[]) AS given (oid)
    UNION
    SELECT part.oid FROM reached AS r JOIN pg_type AS y ON y.oid = r.oid CROSS JOIN LATERAL (
        SELECT y.typelem WHERE y.typcategory = 'A'
        UNION ALL SELECT y.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_attribute AS a
            WHERE a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS part (oid)
    WHERE part.oid >= {first}
)
SELECT y.oid::bigint, y.typtype::text AS kind, n.nspname::text AS schema, y.typname::text AS name,
    (SELECT e.extname::text FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
     WHERE d.classid = 'pg_type'::regclass AND d.objid = y.oid AND d.refclassid = 'pg_extension'::regclass
     AND d.deptype = 'e') AS extension,
    CASE WHEN y.typcategory = 'A' THEN y.typelem ELSE 0 END::bigint AS element,
    y.typbasetype::bigint AS base, format_type(y.typbasetype, NULL) AS base_type,
    format_type(y.typbasetype, y.typtypmod) AS full_type,
    (SELECT jsonb_agg(jsonb_build_object('name', a.attname::text, 'oid', a.atttypid::bigint, 'base_type',
         format_type(a.atttypid, NULL), 'full_type', format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
     FROM pg_attribute AS a WHERE a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS attributes
FROM pg_type AS y JOIN pg_namespace AS n ON n.oid = y.typnamespace
WHERE y.oid IN (SELECT r.oid FROM reached AS r)
"""


@dataclass(frozen=True)
class Attribute:
    """An attribute of a composite type; if its type is a domain, these are those of its base type."""

    name: str
    base_type: str
    full_type: str
    user_type: UserType | None


@dataclass(frozen=True)
class UserType:
    """
    A type that did not come with Postgres.

    :param kind: ``pg_type.typtype``: ``b`` base, ``c`` composite, ``d`` domain, ``e`` enum, ``r`` range,
        ``m`` multirange. A domain is met only as the element of an array.
    :param extension: the extension that it belongs to.
    :param element: for an array of such a type, that type.
    :param attributes: for a composite type.
    """

    kind: str
    schema: str
    name: str
    extension: str | None = None
    element: UserType | None = None
    attributes: tuple[Attribute, ...] = ()

    def beside(self, name: str) -> str:
        """The qualified name of something in the type's schema: an extension keeps its objects together."""
        return sql.Identifier(self.schema, name).as_string(None)

    @property
    def identifier(self) -> str:
        """Its qualified name."""
        return self.beside(self.name)

    def is_of(self, extension: str, *names: str) -> bool:
        """Whether the extension brings it along under one of these names."""
        return self.extension == extension and self.name in names


def read_user_types(connection: psycopg.Connection, oids: Sequence[int]) -> dict[int, UserType]:
    """The types of these numbers; those that came with Postgres are left out."""
    describe = sql.SQL(_DESCRIBE).format(oids=sql.SQL(", ").join(map(sql.Literal, oids)), first=FIRST_OF_USERS)
    cursor = search_path.execute_in_tx(connection, describe)
    by_oid = {row["oid"]: row for row in map(dict_row(cursor), cursor.fetchall())}
    return {oid: _described(oid, by_oid) for oid in oids if oid in by_oid}


def _described(oid: int, by_oid: Mapping[int, Mapping[str, Any]]) -> UserType:
    row = by_oid[oid]
    attributes = tuple(_attribute(given, by_oid) for given in row["attributes"] or ())
    # Not what a domain is made of: a cast to an array of domains would cut, where one to an array of texts does not.
    element = _described(row["element"], by_oid) if row["element"] in by_oid else None
    return UserType(row["kind"], row["schema"], row["name"], row["extension"], element, attributes)


def _attribute(given: Mapping[str, Any], by_oid: Mapping[int, Mapping[str, Any]]) -> Attribute:
    base_type, full_type, oid = given["base_type"], given["full_type"], given["oid"]
    while oid in by_oid and by_oid[oid]["kind"] == "d":
        base_type, full_type, oid = (by_oid[oid][fact] for fact in ("base_type", "full_type", "base"))
    return Attribute(given["name"], base_type, full_type, _described(oid, by_oid) if oid in by_oid else None)
