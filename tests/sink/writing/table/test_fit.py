"""Which target columns take the encoded form of a Spark type, and what is said of the others."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import types as t
from support import type_pairs

from pgonce.sink.encoding.encoded_types import encoded_column
from pgonce.sink.writing.checked_table import ColumnPlan
from pgonce.sink.writing.table.catalogue import TargetColumn
from pgonce.sink.writing.table.fit import Fit, Fitting
from pgonce.sink.writing.table.fit_column import fit_column

SHORT, INT, LONG, FLOAT, TEXT = t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.StringType()
INSTANT, DATE, INTERVAL = t.TimestampType(), t.DateType(), t.DayTimeIntervalType()
MONEY, WHOLE, JSON = t.DecimalType(10, 2), t.DecimalType(20, 0), t.MapType(TEXT, LONG)


def fit(data_type: t.DataType, base_type: str, full_type: str) -> Fitting:
    """Say how a column ``c`` of Spark's type goes into one of this type, of which nothing else is known."""
    return fit_column(encoded_column("c", data_type), TargetColumn("c", base_type, full_type))


@pytest.mark.parametrize(
    ("data_type", "type_name", "typmod_type", "expression"),
    [
        (LONG, "int8", "int8", '"c"'),
        # The precision is Postgres's to check: it raises 22003.
        (MONEY, "numeric", "numeric(5,2)", '"c"'),
        (INSTANT, "timestamp with time zone", "timestamp(6) with time zone", '"c"'),
        (INTERVAL, "interval", "interval(6)", '"c"'),
        (LONG, "integer", "integer", '"c"::pg_catalog.int4'),
        (SHORT, "bigint", "bigint", '"c"::pg_catalog.int8'),
        (LONG, "numeric", "numeric", '"c"::pg_catalog.numeric'),
        (SHORT, "real", "real", '"c"::pg_catalog.float4'),
        (FLOAT, "double precision", "double precision", '"c"::pg_catalog.float8'),
        (WHOLE, "bigint", "bigint", '"c"::pg_catalog.int8'),
        (DATE, "timestamp without time zone", "timestamp(0) without time zone", '"c"::pg_catalog.timestamp'),
        (JSON, "json", "json", '"c"::pg_catalog.json'),
        (JSON, "text", "text", '"c"::pg_catalog.text'),
        (JSON, "character varying", "character varying(9)", '"c"::pg_catalog.text'),
        (TEXT, "uuid", "uuid", '"c"::pg_catalog.uuid'),
        (TEXT, "interval", "interval", '"c"::pg_catalog.interval'),
        (TEXT, "bit", "bit(3)", '"c"::pg_catalog.varbit'),
        (TEXT, "public.hstore", "public.hstore", '"c"::public.hstore'),
        (TEXT, 'public."My Mood"', 'public."My Mood"', '"c"::public."My Mood"'),
        (TEXT, "public.geometry", "public.geometry(Point,4326)", '"c"::public.geometry'),
        (t.ArrayType(LONG), "integer[]", "integer[]", '"c"::pg_catalog.int4[]'),
        (t.ArrayType(TEXT), "character varying[]", "character varying(3)[]", '"c"::pg_catalog.varchar[]'),
        (t.ArrayType(TEXT), "uuid[]", "uuid[]", '"c"::pg_catalog.uuid[]'),
    ],
)
def test_a_lossless_conversion_is_cast_without_a_modifier(
    data_type: t.DataType, type_name: str, typmod_type: str, expression: str
) -> None:
    """The cast names no length or precision: assignment to the column then raises where a cast would cut."""
    fitting = fit(data_type, type_name, typmod_type)
    selected = ColumnPlan("c", "c", fitting, typmod_type).value.as_string(None)
    assert (fitting.fit, selected) == (Fit.CAST if "::" in expression else Fit.EXACT, expression)


def test_a_way_out_of_each_refusal_works(admin) -> None:
    """The type that it says to cast to is taken, and so is a string where it says to make one; else SQL makes it."""
    found = []
    for target, source, column, fitting in type_pairs.pairs(admin):
        found.append((target, source.spark_type, fitting))
        if fitting.fit is Fit.REFUSED:
            begin = f"Column 'c' is {source.spark_type} in Spark and {column.full_type} in Postgres: "
            assert fitting.reason.startswith(begin)
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
            assert ": in a transactional function" in fitting.reason
            ways.add("function")
    assert ways == {"cast", "string", "function"}


def test_the_pairs_that_are_taken_are_those_of_the_list(admin) -> None:
    """No other pair is: Postgres would cut it, shift it by a zone, or round what is not exact."""
    assert type_pairs.accepted(admin) == type_pairs.listed()
