"""
Decide whether a Spark column may go into a column of the table, for each of Postgres's types.

Pure; runs on the driver. Invariant: that of :mod:`pgonce.sink.writing.table.fit`, which decides about plain values and
arrays of them. What Spark nests goes into json, jsonb and texts as JSON. Postgres makes arrays of several dimensions
and composite values of JSON, with the input functions, lengths and precisions of their parts: a text that is too long
raises, while an explicit cast of a ROW cuts it. Every field of a struct goes into an attribute that takes it as a
column would, or the struct is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from psycopg import sql
from pyspark.sql import types as t

from pgonce.offsets_store.postgres.text import LONGEST_NAME

from ...encoding.encoded_types import TEXTS, EncodedColumn, VariantType, encoded_column
from .catalogue import TargetColumn
from .fit import Attribute, Fit, Fitting, UserType, fit, qualified, refused, rounds_its_text, unless


def fit_column(encoded: EncodedColumn, target: TargetColumn | Attribute) -> Fitting:
    """Say whether an encoded column may be copied straight into the target, needs a cast, or is refused."""
    found = target.user_type
    kind = (found.element or found).kind if found else ""
    if found and kind == "c" and encoded.postgres_type != "text":
        return _fit_composite(encoded, target.full_type, found)
    for part in _parts(found) if found and kind == "c" else ():
        if rounds_its_text(part.base_type, part.full_type):
            why = f"Postgres would round or cut the text of {part.name} ({part.full_type}): make a struct in Spark"
            return refused(encoded, target.full_type, why)
    if found and (special := _fit_extension(encoded, target.full_type, found)):
        return special
    if target.base_type in _AS_JSON and (encoded.postgres_type == "jsonb" or encoded.postgres_type.endswith("[]")):
        return _fit_json(encoded, target)
    # An explicit cast to an array of domains would cut texts.
    if found and found.element and kind != "d" and encoded.postgres_type == "text[]":
        return Fitting(Fit.CAST, target.base_type)
    return _fit_dimensions(encoded, target) or fit(encoded, target.base_type, target.full_type)


def _parts(found: UserType) -> Iterator[Attribute]:
    """The attributes of a composite type, and of those within it."""
    for attribute in found.attributes:
        yield attribute
        if (inner := attribute.user_type) is not None:
            yield from _parts(inner.element or inner)


def _fit_extension(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting | None:
    """Like :func:`~pgonce.sink.writing.table.fit.fit`; None if that decides: nothing special is known of the type."""
    if user_type.is_of("vector", "vector", "halfvec") and encoded.postgres_type != "text":
        return _vector(encoded, full_type, user_type)
    if user_type.is_of("hstore", "hstore") and encoded.postgres_type == "jsonb":
        return _hstore(encoded, full_type, user_type)
    if encoded.postgres_type not in ("bytea", "text"):
        return None
    if user_type.is_of("postgis", "geometry"):
        # With the modifier, because the cast raises where the assignment does, and takes the column's SRID where there
        # is none: without it, two keys would differ that the table calls equal.
        return Fitting(Fit.CAST, full_type)
    if user_type.is_of("postgis", "geography"):
        return _geography(full_type, user_type)
    return None


def _vector(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting:
    if user_type.name == "vector":
        if encoded.postgres_type == "float4[]":
            return Fitting(Fit.CAST, user_type.identifier)
        return refused(encoded, full_type, "a vector keeps floats: cast to array<float> in Spark")
    why = (
        "a halfvec keeps 11 bits of a number and would round: alter the column to vector, or leave the rounding to "
        "Postgres and write the text form, concat('[', array_join(cast(c AS array<string>), ','), ']')"
    )
    return refused(encoded, full_type, why)


def _hstore(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting:
    found = encoded.data_type
    if not (isinstance(found, t.MapType) and isinstance(found.keyType, TEXTS) and isinstance(found.valueType, TEXTS)):
        why = "an hstore holds texts by key: make a map<string,string> of it in Spark, or alter the column to jsonb"
        return refused(encoded, full_type, why)
    # Without entries, array_agg is null, and so would be the hstore.
    make = sql.SQL(
        "CASE WHEN pg_catalog.jsonb_typeof({value}) OPERATOR(pg_catalog.=) 'object' THEN (SELECT {hstore}("
        "coalesce(pg_catalog.array_agg(entry.key), ARRAY[]::pg_catalog.text[]), "
        "coalesce(pg_catalog.array_agg(entry.value), ARRAY[]::pg_catalog.text[])) "
        "FROM pg_catalog.jsonb_each_text({value}) AS entry (key, value)) END"
    )
    hstore = sql.SQL(user_type.identifier)
    return Fitting(Fit.CAST, expression=lambda value: make.format(value=value, hstore=hstore))


def _geography(full_type: str, user_type: UserType) -> Fitting:
    names = {name: sql.SQL(user_type.beside(name)) for name in ("geometry", "geography")}
    names |= {"full_type": sql.SQL(full_type), "wkb": sql.SQL(user_type.beside("st_asbinary"))}
    # PostGIS moves what is not a longitude and a latitude onto the globe, with no more than a notice: (200, 95) becomes
    # (-160, 85).
    moved = sql.SQL("{wkb}({value}::{geometry}::{geography}) OPERATOR(pg_catalog.<>) {wkb}({value}::{geometry})")
    made = sql.SQL("{value}::{geometry}::{geography}::{full_type}")

    def make(value: sql.Composable) -> sql.Composable:
        why = "a longitude beyond 180 or a latitude beyond 90"
        return unless(moved.format(value=value, **names), value, made.format(value=value, **names), why)

    return Fitting(Fit.CAST, expression=make)


# What JSON is cast to: assigning jsonb to the others is an error.
_AS_JSON = {"jsonb": "jsonb", "json": "json", "text": "text", "character varying": "text"}


def _fit_json(encoded: EncodedColumn, target: TargetColumn | Attribute) -> Fitting:
    source, cast_type = encoded.postgres_type, _AS_JSON[target.base_type]
    if source == "jsonb":
        return Fitting(Fit.EXACT, is_json=True) if cast_type == source else Fitting(Fit.CAST, cast_type, is_json=True)
    if source in ("bytea[]", "interval[]"):
        return refused(encoded, target.full_type, "how it is written is a setting: cast to array<string> in Spark")

    def make(value: sql.Composable) -> sql.Composable:
        made = sql.SQL("pg_catalog.to_jsonb({})").format(value)
        # A setting, extra_float_digits, may leave out digits.
        is_other = sql.SQL("{} OPERATOR(pg_catalog.<>) {}").format(_read_array(made, source), value)
        return sql.SQL("({})::pg_catalog.{}").format(
            unless(is_other, value, made, "JSON would not hold this value", source), sql.SQL(cast_type)
        )

    return Fitting(Fit.CAST, cast_type, expression=make, is_json=True)


_NO_ELEMENTS = (t.StructType, t.MapType, VariantType, t.NullType, t.BinaryType)
_MOST_DIMENSIONS = 6
# Postgres refuses what is ragged. But it has no dimensions for arrays that are all empty, and one for nulls.
_OTHER_SHAPE = sql.SQL(
    "{array} IS NOT NULL AND coalesce(pg_catalog.array_ndims({array}), 0) OPERATOR(pg_catalog.<>) {depth} "
    "AND {value} OPERATOR(pg_catalog.<>) '[]'::pg_catalog.jsonb"
)


def _fit_dimensions(encoded: EncodedColumn, target: TargetColumn | Attribute) -> Fitting | None:
    """How arrays of arrays become one array of several dimensions; None if they do not."""
    flat, depth = _flat(encoded)
    if not 1 < depth <= _MOST_DIMENSIONS or not target.base_type.endswith("[]"):
        return None
    fitting = fit_column(flat, target)

    def make(value: sql.Composable) -> sql.Composable:
        array = _read_array(value, flat.postgres_type)
        other = _OTHER_SHAPE.format(array=array, depth=depth, value=value)
        return fitting.made_of(unless(other, value, array, f"no array of {depth} dimensions", flat.postgres_type))

    return fitting if fitting.fit is Fit.REFUSED else replace(fitting, fit=Fit.CAST, expression=make)


def _flat(encoded: EncodedColumn) -> tuple[EncodedColumn, int]:
    """Of arrays of arrays of plain values, the column of arrays that have all these values, and how deep they are."""
    leaf, depth = encoded.data_type, 0
    while isinstance(leaf, t.ArrayType):
        leaf, depth = leaf.elementType, depth + 1
    if depth == 0 or isinstance(leaf, _NO_ELEMENTS):
        return encoded, 0
    flat = encoded_column(encoded.name, t.ArrayType(leaf))
    return replace(flat, spark_type=encoded.spark_type), depth


_READ = sql.SQL(
    "(SELECT made.value FROM pg_catalog.jsonb_to_record(pg_catalog.jsonb_build_object('value', {json})) "
    "AS made (value pg_catalog.{kind}))"
)


def _read_array(json: sql.Composable, postgres_type: str) -> sql.Composable:
    return _READ.format(json=json, kind=sql.SQL(postgres_type))


def _fit_composite(encoded: EncodedColumn, full_type: str, target: UserType) -> Fitting:
    """Say whether an encoded column can become a value of a composite type, or of an array of one."""
    data_type = encoded.data_type
    if not _is_composite(data_type, target):
        names = ", ".join(attribute.name for attribute in (target.element or target).attributes)
        what = "an array of structs" if target.element else "a struct"
        return refused(encoded, full_type, f"make {what} with the fields {names} in Spark")
    try:
        _made_of_json(encoded.name, data_type, target, sql.NULL)
    except _UnfitPartError as unfit:
        return unfit.fitting
    return Fitting(Fit.CAST, expression=lambda value: _made_of_json(encoded.name, data_type, target, value))


def _is_composite(data_type: Any, target: UserType) -> bool:
    """Whether a column of structs, or of arrays of them, may become what is a composite type, or an array of one."""
    if target.element is not None:
        return isinstance(data_type, t.ArrayType) and _is_composite(data_type.elementType, target.element)
    return isinstance(data_type, t.StructType) and target.kind == "c"


class _UnfitPartError(Exception):
    """A part of a struct does not fit."""

    def __init__(self, fitting: Fitting) -> None:
        super().__init__(fitting.reason)
        self.fitting = fitting


_ARRAY = sql.SQL(
    "CASE WHEN pg_catalog.jsonb_typeof({value}) OPERATOR(pg_catalog.=) 'array' THEN ARRAY(SELECT {made} FROM "
    "pg_catalog.jsonb_array_elements({value}) WITH ORDINALITY AS {alias} (value, n) ORDER BY {alias}.n) END"
)
# The fields are read as the types of their attributes, with their lengths: what a ROW is cast to would cut them. And
# attributes are named, so that one which was renamed since the catalogue was read is an error. A struct may be empty.
_ROW = sql.SQL(
    "CASE WHEN pg_catalog.jsonb_typeof({value}) OPERATOR(pg_catalog.=) 'object' THEN (SELECT ROW({made})::{kind} "
    'FROM pg_catalog.jsonb_to_record({value}) AS {alias} ({fields}"pgonce: none" pg_catalog.text) WHERE {named}) END'
)
_NAMED = sql.SQL("(NULL::{}).{} IS NULL")
_BYTES = sql.SQL("pg_catalog.decode({}, 'base64')")


def _made_of_json(path: str, data_type: Any, target: UserType, value: sql.Composable, depth: int = 0) -> sql.Composable:
    """The composite value, or array, that Postgres makes of the JSON ``value``."""
    alias = f"of {depth}"
    if target.element is not None:
        element = sql.Identifier(alias, "value")
        made = _made_of_json(f"{path}.element", data_type.elementType, target.element, element, depth + 1)
        return _ARRAY.format(value=value, made=made, alias=sql.Identifier(alias))
    fields, parts = [], {}
    for field, attribute in _paired(path, data_type, target):
        name = f"{path}.{field.name}"
        kind, part = _part(name, field.dataType, attribute, sql.Identifier(alias, field.name), depth + 1)
        fields.append(sql.SQL("{} {}, ").format(sql.Identifier(field.name), sql.SQL(kind)))
        parts[attribute.name] = part
    identifier = sql.SQL(target.identifier)
    named = [_NAMED.format(identifier, sql.Identifier(name)) for name in parts]
    return _ROW.format(
        value=value,
        made=sql.SQL(", ").join(parts.get(attribute.name, sql.NULL) for attribute in target.attributes),
        kind=identifier,
        alias=sql.Identifier(alias),
        fields=sql.Composed(fields),
        named=sql.SQL(" AND ").join([*named, sql.SQL("true")]),
    )


def _part(
    path: str, data_type: t.DataType, attribute: Attribute, value: sql.Composable, depth: int
) -> tuple[str, sql.Composable]:
    """The type as which Postgres reads a field, and what is made of it for the attribute, as for a column."""
    if attribute.user_type is not None and _is_composite(data_type, attribute.user_type):
        return "pg_catalog.jsonb", _made_of_json(path, data_type, attribute.user_type, value, depth)
    # A field that is always null has no type to fit.
    if isinstance(data_type, t.NullType):
        return "pg_catalog.text", sql.NULL
    encoded = encoded_column(path, data_type)
    fitting = fit_column(encoded, attribute)
    if fitting.fit is Fit.REFUSED:
        raise _UnfitPartError(fitting)
    if why := _not_from_json(encoded, attribute, fitting):
        raise _UnfitPartError(refused(encoded, attribute.full_type, why))
    if encoded.postgres_type == "bytea":
        return "pg_catalog.text", fitting.made_of(_BYTES.format(value))
    if fitting.expression is not None and not fitting.is_json:
        return f"pg_catalog.{encoded.postgres_type}", fitting.made_of(value)
    return qualified(attribute.base_type, attribute.full_type), value


def _not_from_json(encoded: EncodedColumn, attribute: Attribute, fitting: Fitting) -> str:
    """Why a value that fits as a column cannot be read from JSON, or an empty text."""
    source, target = _flat(encoded)[0].postgres_type.removesuffix("[]"), attribute.base_type.removesuffix("[]")
    if isinstance(encoded.data_type, VariantType):
        return "a variant's null could not be told from a missing one: make it a column of its own"
    if source == "text" and target in ("json", "jsonb") and not fitting.is_json:
        return "within a struct, a text would become a JSON string: make it a struct or a map"
    if source == "float4" and target == "double precision":
        return "within a struct, a float has fewer digits than the double: cast to double in Spark"
    # A ROW of texts in arrays of arrays would be cut.
    is_cut = source == "text" and encoded.postgres_type == "jsonb" and "(" in attribute.full_type
    if is_cut or encoded.postgres_type == "bytea[]":
        return "such an array cannot be part of a composite type: make it a column of its own"
    return ""


def _paired(path: str, struct: t.StructType, composite: UserType) -> list[tuple[t.StructField, Attribute]]:
    """Each field with its attribute; as with columns, names match exactly, or else without regard to case."""
    pairs: list[tuple[t.StructField, Attribute]] = []
    for field in struct:
        found = [a for a in composite.attributes if a.name == field.name]
        found = found or [a for a in composite.attributes if a.name.lower() == field.name.lower()]
        is_long = len(field.name.encode()) > LONGEST_NAME
        if len(found) != 1 or is_long or found[0] in (attribute for _, attribute in pairs):
            names = (attribute.name for attribute in composite.attributes)
            encoded = EncodedColumn(path, struct.simpleString(), "jsonb", "jsonb", struct)
            why = f"field {field.name!r} has no attribute of its own among {', '.join(names)}: rename or drop it"
            raise _UnfitPartError(refused(encoded, f"{composite.schema}.{composite.name}", why))
        pairs.append((field, found[0]))
    return pairs
