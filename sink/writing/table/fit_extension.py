"""
Decide whether a Spark column may go into a column whose type is one of pgvector, hstore or PostGIS.

Pure; runs on the driver. Invariant: that of :mod:`pgonce.sink.writing.table.fit`.
"""

from __future__ import annotations

from psycopg import sql
from pyspark.sql import types as t

from ...encoding.encoded_types import EncodedColumn
from .fit import Fit, Fitting, UserType, refused, unless

_TEXTS = (t.StringType, t.CharType, t.VarcharType)


def fit_extension(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting | None:
    """Like :func:`~pgonce.sink.writing.table.fit.fit`; None if that decides: nothing special is known of the type."""
    if user_type.is_of("vector", "vector", "halfvec", "sparsevec") and encoded.postgres_type != "text":
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
    if user_type.name == "vector" and encoded.postgres_type == "float4[]":
        return Fitting(Fit.CAST, user_type.identifier)
    if user_type.name == "vector" and encoded.postgres_type.endswith("[]"):
        return refused(encoded, full_type, "a vector keeps floats: cast to array<float> in Spark")
    if user_type.name == "halfvec" and encoded.postgres_type.endswith("[]"):
        why = (
            "a halfvec keeps 11 bits of a number and would round: alter the column to vector, or leave the rounding to "
            "Postgres and write the text form, concat('[', array_join(cast(c AS array<string>), ','), ']')"
        )
        return refused(encoded, full_type, why)
    why = f"no conversion keeps every value: cast in Spark to string, in the text form of {user_type.name}"
    return refused(encoded, full_type, why)


def _hstore(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting:
    found = encoded.data_type
    is_map = isinstance(found, t.MapType)
    if not (is_map and isinstance(found.keyType, _TEXTS) and isinstance(found.valueType, _TEXTS)):
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
    moved = sql.SQL(
        "{wkb}({value}::{geometry}::{geography}) OPERATOR(pg_catalog.<>) {wkb}({value}::{geometry})"
    )
    made = sql.SQL("{value}::{geometry}::{geography}::{full_type}")

    def make(value: sql.Composable) -> sql.Composable:
        why = "a longitude beyond 180 or a latitude beyond 90"
        return unless(moved.format(value=value, **names), value, made.format(value=value, **names), why)

    return Fitting(Fit.CAST, expression=make)
