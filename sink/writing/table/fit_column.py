"""
Decide whether a Spark column may go into a column of the table, for each of Postgres's types.

Pure; runs on the driver. Invariant: that of :mod:`pgonce.sink.writing.table.fit`, which decides about plain values and
arrays of them. What Spark nests goes into json, jsonb and texts as JSON, of which Postgres makes arrays of several
dimensions. Composite types are refused: an explicit cast of a ROW would cut its texts, and its text form is rounded.
"""

from __future__ import annotations

from dataclasses import replace

from psycopg import sql
from pyspark.sql import types as t

from ...encoding.encoded_types import TEXTS, EncodedColumn, VariantType, encoded_column
from .catalogue import TargetColumn
from .fit import BY_SQL, Fit, Fitting, UserType, fit, refused, unless


def fit_column(encoded: EncodedColumn, target: TargetColumn) -> Fitting:
    """Say whether an encoded column may be copied straight into the target, needs a cast, or is refused."""
    found = target.user_type
    kind = (found.element or found).kind if found else ""
    if kind == "c":
        return refused(encoded, target.full_type, f"pgonce fills no composite type: {BY_SQL}, or alter it to jsonb")
    if found and (special := _fit_extension(encoded, target.full_type, found)):
        return special
    if target.base_type in _AS_JSON and (encoded.postgres_type == "jsonb" or encoded.postgres_type.endswith("[]")):
        return _fit_json(encoded, target)
    # An explicit cast to an array of domains would cut texts.
    if found and found.element and kind != "d" and encoded.postgres_type == "text[]":
        return Fitting(Fit.CAST, target.base_type)
    return _fit_dimensions(encoded, target) or fit(encoded, target.base_type, target.full_type)


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


def _fit_json(encoded: EncodedColumn, target: TargetColumn) -> Fitting:
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


def _fit_dimensions(encoded: EncodedColumn, target: TargetColumn) -> Fitting | None:
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
