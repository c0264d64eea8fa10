"""
Decide whether a Spark column may go into a column of the table, for each of Postgres's types.

Pure; runs on the driver. Invariant: that of :mod:`pgonce.sink.writing.fitting.fit`. Composite types and the types of
extensions (pgvector, hstore, PostGIS) are looked at before those that come with Postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from psycopg import sql
from pyspark.sql import types as t

from ...encoding.encoded_types import EncodedColumn
from .composite_fit import fit_composite
from .fit import Attribute, Fit, Fitting, UserType, fit, refused, rounds_its_text

_NUMBERS = frozenset({"int2[]", "int4[]", "int8[]", "numeric[]"})
_TEXTS = (t.StringType, t.CharType, t.VarcharType)


def fit_extension(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting | None:
    """Like :func:`~pgonce.sink.writing.fitting.fit.fit`; None if that decides: nothing special is known of the type."""
    if user_type.is_of("vector", "vector", "halfvec", "sparsevec"):
        return _vector(encoded, full_type, user_type)
    if user_type.is_of("hstore", "hstore") and encoded.postgres_type == "jsonb":
        return _hstore(encoded, full_type, user_type)
    if user_type.is_of("postgis", "geometry") and encoded.postgres_type in ("bytea", "text"):
        # With the modifier, because the cast raises where the assignment does, and takes the column's SRID where there
        # is none: without it, two keys would differ that the table calls equal.
        return Fitting(Fit.CAST, full_type)
    if user_type.is_of("postgis", "geography") and encoded.postgres_type in ("bytea", "text"):
        return _geography(full_type, user_type)
    return None


def _vector(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting | None:
    source = encoded.postgres_type
    if user_type.name == "vector" and source == "float4[]":
        return Fitting(Fit.CAST, user_type.identifier)
    if source == "float8[]" and user_type.name == "vector":
        why = "a vector keeps floats, and would round most doubles: cast to array<float> in Spark"
    elif source in _NUMBERS and user_type.name == "vector":
        why = "a vector keeps floats: cast to array<float> in Spark"
    elif source in ("float4[]", "float8[]") and user_type.name == "halfvec":
        why = (
            "a halfvec keeps 11 bits of a number and would round: alter the column to vector, or leave the rounding to "
            "Postgres and write the text form, concat('[', array_join(cast(c AS array<string>), ','), ']')"
        )
    elif source == "text":
        return None
    else:
        why = f"no conversion keeps every value: cast in Spark to string, in the text form of {user_type.name}"
    return refused(encoded, full_type, why)


def _hstore(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting:
    found = encoded.data_type
    if isinstance(found, t.StructType):
        why = "an hstore holds texts by key: make a map<string,string> of it in Spark, or alter the column to jsonb"
        return refused(encoded, full_type, why)
    if not isinstance(found, t.MapType):
        return refused(encoded, full_type, "an hstore holds texts by key: alter the column to jsonb")
    if not (isinstance(found.keyType, _TEXTS) and isinstance(found.valueType, _TEXTS)):
        why = "an hstore holds texts only: cast to map<string,string> in Spark, or alter the column to jsonb"
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
    # PostGIS moves what is not a longitude and a latitude onto the globe, with no more than a notice: (200, 95) becomes
    # (-160, 85). There is no function that only raises an error, so a text that is not a boolean does.
    make = sql.SQL(
        "CASE WHEN {wkb}({value}::{geometry}::{geography}) OPERATOR(pg_catalog.<>) {wkb}({value}::{geometry}) THEN "
        "CASE WHEN pg_catalog.concat({message}, pg_catalog.left({value}::pg_catalog.text, 0))::pg_catalog.bool "
        "THEN NULL::{geography} END ELSE {value}::{geometry}::{geography}::{full_type} END"
    )
    names = {name: sql.SQL(user_type.beside(name)) for name in ("geometry", "geography")}
    names |= {"full_type": sql.SQL(full_type), "wkb": sql.SQL(user_type.beside("st_asbinary"))}
    message = sql.Literal("a longitude beyond 180 or a latitude beyond 90")
    return Fitting(Fit.CAST, expression=lambda value: make.format(value=value, message=message, **names))


class Target(Protocol):
    """A column of a table, or an attribute of a composite type: its types as the catalogue has them."""

    @property
    def base_type(self) -> str:
        """Without a modifier; a domain's base type."""

    @property
    def full_type(self) -> str:
        """With its modifier."""

    @property
    def user_type(self) -> UserType | None:
        """What is known about a type that did not come with Postgres."""


def fit_column(encoded: EncodedColumn, target: Target) -> Fitting:
    """Say whether an encoded column may be copied straight into the target, needs a cast, or is refused."""
    found = target.user_type
    if found is None:
        return fit(encoded, target.base_type, target.full_type)
    kind = (found.element or found).kind
    if kind == "c" and encoded.postgres_type != "text":
        return fit_composite(encoded, target.full_type, found, fit_column)
    for part in _parts(found):
        if kind == "c" and rounds_its_text(part.base_type, part.full_type):
            why = f"Postgres would round or cut the text of {part.name} ({part.full_type}): make a struct in Spark"
            return refused(encoded, target.full_type, why)
    # An explicit cast to an array of domains would cut texts.
    takes_texts = found.element is not None and kind not in "cd"
    return fit_extension(encoded, target.full_type, found) or fit(
        encoded, target.base_type, target.full_type, takes_texts=takes_texts
    )


def _parts(found: UserType) -> Iterator[Attribute]:
    """The attributes of a composite type, and of those within it."""
    for attribute in found.attributes:
        yield attribute
        if (inner := attribute.user_type) is not None:
            yield from _parts(inner.element or inner)
