"""
Decide whether the encoded form of a Spark column may go into a given Postgres column, and how.

Pure; runs on the driver. Invariant: every value of a column that is accepted here arrives in Postgres as Spark held it,
or Postgres raises an error about its row. The rule, for a column as for the elements of an array:

- The type is the same: the values are copied. Another type holds every value of Spark's, or refuses it: Postgres casts.
- The type may have fewer digits (exact numbers, and times and intervals of the same type): the value decides. It is
  cast, and what is cast back must equal what came.
- Spark has no such type: its text form is read, unless what it means depends on a setting, or Postgres would cut it.
- All others are refused by column.

(Spaces past the end of a varchar(n) are the one exception: the SQL standard says that they are cut.) A type of an
extension or of the user is known by its place in the catalogue, never by its name alone, because any user may call a
type ``vector``.
"""

from __future__ import annotations

import math
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

_WHOLE = frozenset({"int2", "int4", "int8"})
_NUMBERS = _WHOLE | {"numeric"}
_FLOATS = frozenset({"float4", "float8"})
_DATES = frozenset({"date", "timestamp", "timestamptz"})
# Of these, every value of the first is one of the second.
_WIDER = frozenset({
    ("int2", "float4"), ("int2", "float8"), ("int4", "float8"), ("float4", "float8"), ("date", "timestamp"),
})  # fmt: skip
# Postgres reads texts of a money and of a time without its zone by a setting, cuts a name, and takes -1 for an oid.
_NOT_FROM_TEXT = frozenset({
    *("bool", "int2", "int4", "int8", "float4", "float8", "bytea", "date", "timestamp", "timestamptz"),
    *("money", "name", '"char"', "oid", "xid", "xid8", "cid", "tid"),
})  # fmt: skip
# Postgres reads more than these, and leaves out a date, a zone, or what the text has beyond microseconds. (A question
# mark is a parameter of JDBC.)
_CLOCK = "[0-9]{2}:[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6}){0,1}){0,1}"
_TEXT_FORMS = {"time": f"^{_CLOCK}$", "timetz": f"^{_CLOCK}(Z|[+-][0-9]{{2}}(:[0-5][0-9]){{0,2}})$"}

BY_SQL = "in a transactional function, convert it in SQL from a temporary table (page `types` of the documentation)"

Expression = Callable[[sql.Composable], sql.Composable]


class Fit(Enum):
    """How an encoded column may go into a target column."""

    EXACT = auto()
    CAST = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class Fitting:
    """
    The answer of :func:`fit`: for CAST, the type to cast the copied value to; for REFUSED, the reason as a sentence.

    ``cast_type`` never has a modifier that would cut: assigning to a varchar(3) column raises 22001, where
    ``x::varchar(3)`` cuts. So a key that the target cannot hold is refused in a delete too, and is remembered in one
    form for all types of a frame. ``expression`` makes a value of the target's type where a cast does not: it takes the
    copied value, and all names in it are qualified. ``is_json`` says that the value is the JSON of what Spark nests.
    """

    fit: Fit
    cast_type: str = ""
    reason: str = ""
    expression: Expression | None = None
    is_json: bool = False

    def made_of(self, value: sql.Composable) -> sql.Composable:
        """A copied value, as the target's type takes it."""
        if self.expression is not None:
            return self.expression(value)
        # Postgres was asked for the type's name under our search_path: one without a schema is pg_catalog's.
        schema = sql.SQL("" if not self.cast_type or "." in self.cast_type else "pg_catalog.")
        return sql.SQL("{}::{}{}" if self.cast_type else "{}").format(value, schema, sql.SQL(self.cast_type))


def fit(encoded: EncodedColumn, base_type: str, full_type: str) -> Fitting:
    """
    Say whether an encoded column may be copied straight into a target column, needs a cast, or is refused.

    :param base_type: ``format_type(type, NULL)``: ``bigint``, ``character varying``, ``public.mood``.
        For a domain, its base type, however deep: they share a binary form, and COPY runs the domain's
        checks, while an explicit cast to a domain over varchar(n) would cut.
    :param full_type: ``format_type(type, typmod)`` of the same: ``character varying(10)``.
    """
    source, target = element_of(encoded.postgres_type), element_of(base_type)
    array = "[]" if base_type.endswith("[]") else ""
    if encoded.postgres_type.endswith("[]") is not bool(array):
        why = "it is JSON in Postgres" if source == "jsonb" else "one is an array and the other is not"
        return _refused(encoded, target, full_type, why)
    if source == "text" and target in ("varchar", "bpchar") and not array:
        return Fitting(Fit.EXACT)
    if source == target or {source, target} <= _NUMBERS:
        if _digits_of(encoded, source) > _digits_kept(target, full_type):
            return _by_value(source + array, full_type)
        return Fitting(Fit.EXACT) if source == target else Fitting(Fit.CAST, target + array)
    if (source, target) in _WIDER:
        return Fitting(Fit.CAST, target + array)
    if source == "text":
        return _fit_text(encoded, target, full_type, array)
    return _refused(encoded, target, full_type, _why_not(source, target))


def _fit_text(encoded: EncodedColumn, target: str, full_type: str, array: str) -> Fitting:
    form = _TEXT_FORMS.get(target)
    # An array of a type with a schema might be of a domain, which an explicit cast would cut.
    if target in _NOT_FROM_TEXT or (array and (form or "." in target)):
        return _refused(encoded, target, full_type, "Postgres might read a text otherwise than Spark does, or cut it")
    if form or (target in ("numeric", "interval") and _modifiers(full_type)):
        return _by_value(target + array, full_type, form)
    # Without a modifier "bit" means bit(1) and would cut; bit varying holds any length, and assignment checks it.
    return Fitting(Fit.CAST, ("varbit" if target == "bit" else target) + array)


def _by_value(came_as: str, full_type: str, form: str | None = None) -> Fitting:
    """Cast to the full type, and refuse a value that does not become itself when it is cast back."""

    def make(value: sql.Composable) -> sql.Composable:
        came = sql.SQL("{}::pg_catalog.{}").format(value, sql.SQL(came_as))
        # Types with such a modifier are numbers and times, which SQL itself names.
        made = sql.SQL("{}::{}").format(came, sql.SQL(full_type))
        is_other = sql.SQL("{}::pg_catalog.{} OPERATOR(pg_catalog.<>) {}").format(made, sql.SQL(came_as), came)
        if form:
            is_other = sql.SQL("{} OPERATOR(pg_catalog.!~) {} OR {}").format(value, sql.Literal(form), is_other)
        return unless(is_other, value, made, f"{full_type} does not hold this value", came_as)

    return Fitting(Fit.CAST, expression=make)


_UNLESS = sql.SQL(
    "CASE WHEN CASE WHEN {bad} THEN pg_catalog.concat({why}, pg_catalog.left({value}::pg_catalog.text, 0))"
    "::pg_catalog.{read_as} IS NULL END THEN NULL ELSE {made} END"
)


def unless(
    bad: sql.Composable, value: sql.Composable, made: sql.Composable, why: str, read_as: str = "bool"
) -> sql.Composable:
    """What is ``made`` of a value, or an error of SQLSTATE class 22 which says ``why`` not, if the value is ``bad``."""
    # No function of Postgres only raises an error, so a type reads a text that is not one of its own. It has to depend
    # on the value, or Postgres might read it when it plans the statement.
    return _UNLESS.format(bad=bad, why=sql.Literal(why), value=value, read_as=sql.SQL(read_as), made=made)


def refused(encoded: EncodedColumn, target: str, why: str) -> Fitting:
    """The refusal of a column for a target, with the reason, which ends with what to do."""
    sentence = f"Column {encoded.name!r} is {encoded.spark_type} in Spark and {target} in Postgres: {why}."
    return Fitting(Fit.REFUSED, reason=sentence)


def _refused(encoded: EncodedColumn, target: str, full_type: str, why: str) -> Fitting:
    """The refusal with the way out, which works for each type of Postgres."""
    from ...encoding.encoded_types import IN_SPARK

    is_array, way_out = full_type.endswith("[]"), f"make a string of it in Spark, in the text form of {full_type}"
    if target in IN_SPARK:
        way_out = f"cast to {f'array<{IN_SPARK[target]}>' if is_array else IN_SPARK[target]} in Spark"
        if encoded.postgres_type == "text" and target in _DATES:
            way_out += f"; or, to keep texts such as infinity, of which Spark makes null, {BY_SQL}"
    elif target in _NOT_FROM_TEXT or is_array:
        way_out = BY_SQL
    return refused(encoded, full_type, f"{why}: {way_out}")


def _why_not(source: str, target: str) -> str:
    if _FLOATS & {source, target}:
        return "a binary float has other digits, and Postgres would round"
    if "timestamptz" in (source, target) and {source, target} <= _DATES:
        return "which instant it is depends on a session's time zone"
    return "no conversion keeps every value"


def _digits_of(encoded: EncodedColumn, source: str) -> float:
    """How many digits after the point a value of this type may have."""
    if source in ("numeric", "time"):
        return _modifiers(encoded.ddl_type)[-1]
    return 0 if source in _WHOLE else _MICROSECONDS


def _digits_kept(target: str, full_type: str) -> float:
    """How many of them the target keeps; a type without a modifier keeps all."""
    return 0 if target in _WHOLE else min(_modifiers(full_type)[-1:], default=math.inf)


def qualified(base_type: str, full_type: str) -> str:
    """A type as any search_path finds it, where ``format_type`` was asked for it under ours."""
    # What has a schema is found, and so is what SQL has a grammar for: several words, or a length.
    if set(full_type) & set(". ("):
        return full_type
    return f"pg_catalog.{element_of(base_type)}{'[]' if full_type.endswith('[]') else ''}"


def element_of(type_name: str) -> str:
    """The catalogue's name of a type, or of an array's elements."""
    name = type_name.removesuffix("[]")
    return _ALIASES.get(name, name)


def _modifiers(type_text: str) -> tuple[int, ...]:
    """Return the numbers in parentheses; (-1,) for an interval that keeps only some fields; () for none."""
    if re.match(r"interval [a-z]", type_text):
        return (-1,)
    found = re.search(r"\(([-\d, ]+)\)", type_text)
    return tuple(int(part) for part in found[1].split(",")) if found else ()


FIRST_OF_USERS = 16_384
"""Postgres's FirstNormalObjectId: what came with it has smaller numbers."""

# The given types, and the elements of those that are arrays.
_DESCRIBE = """
SELECT y.oid::bigint, y.typtype::text AS kind, n.nspname::text AS schema, y.typname::text AS name,
    (SELECT e.extname::text FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
     WHERE d.classid = 'pg_type'::regclass AND d.objid = y.oid AND d.refclassid = 'pg_extension'::regclass
     AND d.deptype = 'e') AS extension,
    CASE WHEN y.typcategory = 'A' THEN y.typelem ELSE 0 END::bigint AS element
FROM pg_type AS y JOIN pg_namespace AS n ON n.oid = y.typnamespace
WHERE y.oid = ANY (ARRAY[{oids}]::oid[]) OR y.oid IN (
    SELECT a.typelem FROM pg_type AS a
    WHERE a.oid = ANY (ARRAY[{oids}]::oid[]) AND a.typcategory = 'A' AND a.typelem >= {first})
"""


@dataclass(frozen=True)
class UserType:
    """
    A type that did not come with Postgres.

    :param kind: ``pg_type.typtype``: ``b`` base, ``c`` composite, ``d`` domain, ``e`` enum, ``r`` range,
        ``m`` multirange. A domain is met only as the element of an array.
    :param extension: the extension that it belongs to.
    :param element: for an array of such a type, that type.
    """

    kind: str
    schema: str
    name: str
    extension: str | None = None
    element: UserType | None = None

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
    # Not what a domain is made of: a cast to an array of domains would cut, where one to an array of texts does not.
    element = _described(row["element"], by_oid) if row["element"] in by_oid else None
    return UserType(row["kind"], row["schema"], row["name"], row["extension"], element)
