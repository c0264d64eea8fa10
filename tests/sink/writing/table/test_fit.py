"""Which target columns take the encoded form of a Spark type: no Spark session, no Postgres."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import types as t
from support import type_pairs

from pgonce.sink.encoding.encoded_types import EncodedColumn, encoded_columns
from pgonce.sink.writing.checked_table import ColumnPlan
from pgonce.sink.writing.table.fit import (
    Attribute,
    Fit,
    Fitting,
)
from pgonce.sink.writing.table.fit_column import (
    fit_column,
)


def encoded(data_type: t.DataType) -> EncodedColumn:
    """Return how a column ``c`` of this type is encoded."""
    (column,) = encoded_columns(t.StructType([t.StructField("c", data_type)]))
    return column


SHORT, INT, LONG, FLOAT, DOUBLE = (
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
)
TEXT, INSTANT, CLOCK, DATE = t.StringType(), t.TimestampType(), t.TimestampNTZType(), t.DateType()
INTERVAL, TIME3, TIME6, BINARY = t.DayTimeIntervalType(), t.TimeType(3), t.TimeType(6), t.BinaryType()
MONEY, WHOLE = t.DecimalType(10, 2), t.DecimalType(20, 0)
JSON = t.MapType(TEXT, LONG)


def array(data_type: t.DataType) -> t.ArrayType:
    """Return the type of arrays of it."""
    return t.ArrayType(data_type)


def fit(column: EncodedColumn, base_type: str, full_type: str) -> Fitting:
    """Say how the column goes into one of this type, of which nothing else is known."""
    return fit_column(column, Attribute("c", base_type, full_type, None))


@pytest.mark.parametrize(
    ("data_type", "type_name", "typmod_type"),
    [
        (t.BooleanType(), "boolean", "boolean"),
        (t.ByteType(), "smallint", "smallint"),
        (INT, "integer", "integer"),
        (LONG, "bigint", "bigint"),
        (LONG, "int8", "int8"),
        (FLOAT, "real", "real"),
        (DOUBLE, "double precision", "double precision"),
        (MONEY, "numeric", "numeric"),
        (MONEY, "numeric", "numeric(10,2)"),
        # The precision is Postgres's to check: it raises 22003.
        (MONEY, "numeric", "numeric(5,2)"),
        (MONEY, "numeric", "numeric(38,10)"),
        (TEXT, "text", "text"),
        (TEXT, "character varying", "character varying"),
        (TEXT, "character varying", "character varying(3)"),
        (TEXT, "character", "character(3)"),
        (TEXT, "bpchar", "bpchar"),
        (BINARY, "bytea", "bytea"),
        (DATE, "date", "date"),
        (INSTANT, "timestamp with time zone", "timestamp with time zone"),
        (INSTANT, "timestamp with time zone", "timestamp(6) with time zone"),
        (CLOCK, "timestamp without time zone", "timestamp without time zone"),
        (TIME6, "time without time zone", "time without time zone"),
        (TIME3, "time without time zone", "time(3) without time zone"),
        (INTERVAL, "interval", "interval"),
        (INTERVAL, "interval", "interval(6)"),
        (JSON, "jsonb", "jsonb"),
        (array(LONG), "bigint[]", "bigint[]"),
        (array(MONEY), "numeric[]", "numeric(10,2)[]"),
        (array(INSTANT), "timestamp with time zone[]", "timestamp with time zone[]"),
        (array(TEXT), "text[]", "text[]"),
        (array(array(LONG)), "jsonb", "jsonb"),
    ],
)
def test_the_same_type_is_copied_as_it_is(data_type: t.DataType, type_name: str, typmod_type: str) -> None:
    """Where the binary form is that of the column, nothing stands between COPY and the table."""
    assert fit(encoded(data_type), type_name, typmod_type).fit is Fit.EXACT


@pytest.mark.parametrize(
    ("data_type", "type_name", "typmod_type", "expression"),
    [
        (LONG, "integer", "integer", '"c"::pg_catalog.int4'),
        (LONG, "smallint", "smallint", '"c"::pg_catalog.int2'),
        (SHORT, "bigint", "bigint", '"c"::pg_catalog.int8'),
        (INT, "numeric", "numeric(12,2)", '"c"::pg_catalog.numeric'),
        (LONG, "numeric", "numeric", '"c"::pg_catalog.numeric'),
        (SHORT, "real", "real", '"c"::pg_catalog.float4'),
        (INT, "double precision", "double precision", '"c"::pg_catalog.float8'),
        (FLOAT, "double precision", "double precision", '"c"::pg_catalog.float8'),
        (WHOLE, "bigint", "bigint", '"c"::pg_catalog.int8'),
        (DATE, "timestamp without time zone", "timestamp(0) without time zone", '"c"::pg_catalog.timestamp'),
        (JSON, "json", "json", '"c"::pg_catalog.json'),
        (JSON, "text", "text", '"c"::pg_catalog.text'),
        (JSON, "character varying", "character varying(9)", '"c"::pg_catalog.text'),
        (TEXT, "uuid", "uuid", '"c"::pg_catalog.uuid'),
        (TEXT, "jsonb", "jsonb", '"c"::pg_catalog.jsonb'),
        (TEXT, "inet", "inet", '"c"::pg_catalog.inet'),
        (TEXT, "interval", "interval", '"c"::pg_catalog.interval'),
        (TEXT, "bit", "bit(3)", '"c"::pg_catalog.varbit'),
        (TEXT, "bit varying", "bit varying(3)", '"c"::pg_catalog.varbit'),
        (TEXT, "xml", "xml", '"c"::pg_catalog.xml'),
        (TEXT, "public.hstore", "public.hstore", '"c"::public.hstore'),
        (TEXT, 'public."My Mood"', 'public."My Mood"', '"c"::public."My Mood"'),
        (TEXT, "public.geometry", "public.geometry(Point,4326)", '"c"::public.geometry'),
        (array(LONG), "integer[]", "integer[]", '"c"::pg_catalog.int4[]'),
        (array(TEXT), "character varying[]", "character varying(3)[]", '"c"::pg_catalog.varchar[]'),
        (array(TEXT), "uuid[]", "uuid[]", '"c"::pg_catalog.uuid[]'),
    ],
)
def test_a_lossless_conversion_is_cast_without_a_modifier(
    data_type: t.DataType, type_name: str, typmod_type: str, expression: str
) -> None:
    """The cast names no length or precision: assignment to the column then raises where a cast would cut."""
    fitting = fit(encoded(data_type), type_name, typmod_type)
    selected = ColumnPlan("c", "c", fitting, typmod_type).value.as_string(None)
    assert (fitting.fit, selected) == (Fit.CAST, expression)


@pytest.mark.parametrize(
    ("data_type", "type_name", "typmod_type"),
    [
        (MONEY, "double precision", "double precision"),
        (LONG, "double precision", "double precision"),
        (INT, "real", "real"),
        (DOUBLE, "real", "real"),
        (DOUBLE, "numeric", "numeric"),
        (DOUBLE, "integer", "integer"),
        (INSTANT, "timestamp without time zone", "timestamp without time zone"),
        (CLOCK, "timestamp with time zone", "timestamp with time zone"),
        (DATE, "timestamp with time zone", "timestamp with time zone"),
        (INSTANT, "date", "date"),
        (CLOCK, "time without time zone", "time without time zone"),
        (TEXT, "integer", "integer"),
        (TEXT, "date", "date"),
        (TEXT, "bytea", "bytea"),
        (TEXT, "money", "money"),
        (MONEY, "money", "money"),
        (TEXT, "name", "name"),
        (TEXT, '"char"', '"char"'),
        (TEXT, "oid", "oid"),
        (INT, "text", "text"),
        (INT, "jsonb", "jsonb"),
        (INT, "public.positive", "public.positive"),
        (BINARY, "uuid", "uuid"),
        (JSON, "character", "character(9)"),
        (JSON, "integer[]", "integer[]"),
        (TEXT, "text[]", "text[]"),
        (array(LONG), "bigint", "bigint"),
        (array(TEXT), "public.short_text[]", "public.short_text[]"),
        (array(TEXT), "information_schema.sql_identifier[]", "information_schema.sql_identifier[]"),
        (array(TEXT), "name[]", "name[]"),
        (array(TEXT), "time without time zone[]", "time without time zone[]"),
        (array(BINARY), "jsonb", "jsonb"),
        (array(INTERVAL), "jsonb", "jsonb"),
        (array(array(BINARY)), "bytea[]", "bytea[]"),
        (array(array(t.NullType())), "integer[]", "integer[]"),
    ],
)
def test_what_postgres_would_change_in_silence_is_refused(
    data_type: t.DataType, type_name: str, typmod_type: str
) -> None:
    """Cutting, shifting by a zone, and rounding of what is not exact: the sentence names column and types."""
    fitting = fit(encoded(data_type), type_name, typmod_type)
    assert fitting.fit is Fit.REFUSED
    assert fitting.reason.startswith(
        f"Column 'c' is {data_type.simpleString()} in Spark and {typmod_type} in Postgres: "
    )


def test_a_way_out_of_each_refusal_works(admin) -> None:
    """The type that it says to cast to is taken, and so is a string where it says to make one; else SQL makes it."""
    found = [(target, source.spark_type, fitting) for target, source, _, fitting in type_pairs.pairs(admin)]
    taken = {(target, source) for target, source, fitting in found if fitting.fit is not Fit.REFUSED}
    ways: set[str] = set()
    for target, source, fitting in found:
        if fitting.fit is not Fit.REFUSED:
            continue
        named = re.search(r"cast to (\S+) in Spark", fitting.reason)
        if named:
            ways.add("cast")
            assert (target, named[1].replace("decimal", "decimal(5,0)")) in taken, (target, source, fitting.reason)
        elif "make a string" in fitting.reason:
            ways.add("string")
            assert (target, "string") in taken, (target, source)
        else:
            way = re.search(r": (make a|in a transactional function)", fitting.reason)
            assert way, fitting.reason
            ways.add("function" if "function" in way[1] else "struct")
    assert ways == {"cast", "string", "function", "struct"}


def test_every_pair_that_was_taken_is_taken(admin) -> None:
    """What was copied as it is is so still; the list was made by the code before values decided."""
    now = type_pairs.accepted(admin)
    for target, sources in type_pairs.listed().items():
        assert {source: now[target].get(source) for source in sources} == sources, target
