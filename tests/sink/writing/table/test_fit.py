"""Which target columns take the encoded form of a Spark type: no Spark session, no Postgres."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from pgonce.sink.encoding.encoded_types import EncodedColumn, encoded_columns
from pgonce.sink.writing.by_key.statements import (
    value_of,
)
from pgonce.sink.writing.checked_table import ColumnPlan
from pgonce.sink.writing.table.fit import (
    Fit,
    fit,
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
        (LONG, "integer", "integer", '"c"'),
        (LONG, "smallint", "smallint", '"c"'),
        (SHORT, "bigint", "bigint", '"c"'),
        (INT, "numeric", "numeric(12,2)", '"c"'),
        (LONG, "numeric", "numeric", '"c"'),
        (SHORT, "real", "real", '"c"'),
        (INT, "double precision", "double precision", '"c"'),
        (FLOAT, "double precision", "double precision", '"c"'),
        (WHOLE, "bigint", "bigint", '"c"'),
        (DATE, "timestamp without time zone", "timestamp(0) without time zone", '"c"'),
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
        (array(LONG), "integer[]", "integer[]", '"c"'),
        (array(TEXT), "character varying[]", "character varying(3)[]", '"c"::pg_catalog.varchar[]'),
        (array(TEXT), "uuid[]", "uuid[]", '"c"::pg_catalog.uuid[]'),
    ],
)
def test_a_lossless_conversion_is_cast_without_a_modifier(
    data_type: t.DataType, type_name: str, typmod_type: str, expression: str
) -> None:
    """The cast names no length or precision: assignment to the column then raises where a cast would cut."""
    fitting = fit(encoded(data_type), type_name, typmod_type)
    selected = value_of(ColumnPlan("c", "c", fitting, typmod_type)).as_string(None)
    assert (fitting.fit, selected) == (Fit.CAST, expression)


@pytest.mark.parametrize(
    ("data_type", "type_name", "typmod_type", "why"),
    [
        (MONEY, "numeric", "numeric(10,1)", "would round"),
        (MONEY, "numeric", "numeric(10,0)", "would round"),
        (MONEY, "bigint", "bigint", "would round"),
        (array(MONEY), "numeric[]", "numeric(10,1)[]", "would round"),
        (LONG, "numeric", "numeric(10,-2)", "would round"),
        (MONEY, "double precision", "double precision", "does not hold every decimal"),
        (LONG, "double precision", "double precision", "53 bits"),
        (INT, "real", "real", "24 bits"),
        (DOUBLE, "real", "real", "24 bits"),
        (DOUBLE, "numeric", "numeric", "cast to decimal"),
        (INSTANT, "timestamp without time zone", "timestamp without time zone", "timestamp_ntz"),
        (CLOCK, "timestamp with time zone", "timestamp with time zone", "without a zone"),
        (INSTANT, "timestamp with time zone", "timestamp(3) with time zone", "would round"),
        (CLOCK, "timestamp without time zone", "timestamp(0) without time zone", "would round"),
        (INTERVAL, "interval", "interval(0)", "would round"),
        (INTERVAL, "interval", "interval day to second", "would round"),
        (INTERVAL, "interval", "interval day to second(3)", "would round"),
        (TEXT, "interval", "interval(0)", "would round"),
        (TIME6, "time without time zone", "time(3) without time zone", "would round"),
        (DATE, "timestamp with time zone", "timestamp with time zone", "in different zones"),
        (INSTANT, "date", "date", "time of day"),
        (TEXT, "integer", "integer", "cast in Spark"),
        (TEXT, "date", "date", "cast in Spark"),
        (TEXT, "bytea", "bytea", "cast in Spark"),
        (TEXT, "name", "name", "cast in Spark"),
        (TEXT, '"char"', '"char"', "cast in Spark"),
        (INT, "text", "text", "cast in Spark"),
        (INT, "public.positive", "public.positive", "cast in Spark"),
        (BINARY, "uuid", "uuid", "cast in Spark"),
        (JSON, "character", "character(9)", "cast in Spark"),
        (TEXT, "text[]", "text[]", "array"),
        (array(TEXT), "text", "text", "array"),
        (array(TEXT), "public.short_text[]", "public.short_text[]", "cast in Spark"),
        (array(LONG), "jsonb", "jsonb", "array"),
    ],
)
def test_what_postgres_would_change_in_silence_is_refused(
    data_type: t.DataType, type_name: str, typmod_type: str, why: str
) -> None:
    """Rounding, cutting and shifting by a zone are refused in a sentence that names column and types."""
    fitting = fit(encoded(data_type), type_name, typmod_type)
    assert fitting.fit is Fit.REFUSED
    assert fitting.reason.startswith(
        f"Column 'c' is {data_type.simpleString()} in Spark and {typmod_type} in Postgres: "
    )
    assert why in fitting.reason
