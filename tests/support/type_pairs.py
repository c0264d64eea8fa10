"""
Every kind of Spark column with every kind of Postgres column: which pairs are taken, and how.

Runs in: pytest. The list in ``accepted_pairs.txt`` has all pairs that are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
from pyspark.sql import types as t

from pgonce.sink.encoding.encoded_types import EncodedColumn, encoded_column
from pgonce.sink.writing.table.catalogue import TargetColumn, look_up_table
from pgonce.sink.writing.table.fit import Fit, Fitting
from pgonce.sink.writing.table.fit_column import fit_column

ACCEPTED = Path(__file__).with_name("accepted_pairs.txt")
_SCALARS = [
    *(t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType()),
    *(t.DecimalType(5, 0), t.DecimalType(10, 2), t.DecimalType(38, 18), t.DecimalType(3, -2)),
    *(t.StringType(), t.VarcharType(9), t.BinaryType(), t.DateType(), t.TimestampType(), t.TimestampNTZType()),
    *(t.TimeType(0), t.TimeType(3), t.TimeType(6), t.DayTimeIntervalType(0, 3)),
]
_STRUCT = t.StructType([t.StructField("n", t.IntegerType()), t.StructField("s", t.StringType())])
_NESTED = [t.MapType(t.StringType(), t.StringType()), t.MapType(t.StringType(), t.LongType()), _STRUCT, t.VariantType()]
SOURCES = [
    *_SCALARS,
    *_NESTED,
    *(t.ArrayType(inner) for inner in (*_SCALARS, *_NESTED)),
    *(t.ArrayType(t.ArrayType(inner)) for inner in (*_SCALARS, _STRUCT, t.NullType())),
]
_OWN = """
CREATE TYPE mood AS ENUM ('bad', 'ok'); CREATE TYPE pair AS (n int, s varchar(2));
CREATE TYPE rounded AS (n numeric(5,1), s text); CREATE TYPE floats AS RANGE (subtype = float8);
CREATE DOMAIN positive AS integer CHECK (value > 0); CREATE DOMAIN short AS varchar(2);
CREATE DOMAIN whole AS numeric(8,0);
"""
_COLUMNS = [
    *("boolean", "smallint", "integer", "bigint", "real", "double precision"),
    *("numeric", "numeric(5,0)", "numeric(10,2)", "numeric(5,5)", "numeric(78,0)", "numeric(38,18)"),
    *("text", "varchar", "varchar(3)", "char(3)", "bpchar", "name", '"char"', "bytea", "uuid", "xml", "json", "jsonb"),
    *("date", "time", "time(0)", "time(3)", "timetz", "timetz(3)"),
    *("timestamp", "timestamp(0)", "timestamp(3)", "timestamptz", "timestamptz(0)", "timestamptz(3)"),
    *("interval", "interval(0)", "interval(3)", "interval day to second", "interval year to month"),
    *("money", "oid", "xid", "xid8", "inet", "cidr", "macaddr", "macaddr8", "bit(3)", "varbit", "varbit(3)"),
    *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange", "int4multirange"),
    *("point", "box", "tsvector", "pg_lsn", "regclass", "jsonpath"),
    *("mood", "pair", "rounded", "floats", "positive", "short", "whole", "information_schema.sql_identifier"),
]
TARGETS = [*_COLUMNS, *(f"{column}[]" for column in _COLUMNS)]


def pairs(connection: psycopg.Connection) -> Iterator[tuple[str, EncodedColumn, TargetColumn, Fitting]]:
    """Each declared column with each column of Spark, and how that goes into it."""
    connection.execute(_OWN)
    columns = ", ".join(f"c{number} {target}" for number, target in enumerate(TARGETS))
    connection.execute(f"CREATE TABLE every_type ({columns})".encode())
    _, table = look_up_table(connection, "every_type")
    assert table is not None
    encoded = [encoded_column("c", source) for source in SOURCES]
    for target, column in zip(TARGETS, table.columns, strict=True):
        for source in encoded:
            yield target, source, column, fit_column(source, column)


def accepted(connection: psycopg.Connection) -> dict[str, dict[str, str]]:
    """For each declared column, what it takes of Spark's types, and whether as it is (``EXACT``) or ``CAST``."""
    found: dict[str, dict[str, str]] = {target: {} for target in TARGETS}
    for target, source, _, fitting in pairs(connection):
        if fitting.fit is not Fit.REFUSED:
            found[target][source.spark_type] = fitting.fit.name
    return found


def listed() -> dict[str, dict[str, str]]:
    """What the list says: a line for each declared column, with ``=`` before what is copied as it is."""
    found = {}
    for line in ACCEPTED.read_text(encoding="utf-8").splitlines():
        target, _, sources = line.partition(":")
        found[target] = {
            name.lstrip("="): "EXACT" if name[:1] == "=" else "CAST" for name in sources.strip().split("; ") if name
        }
    return found
