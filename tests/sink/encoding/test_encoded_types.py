"""
Which Postgres type holds a Spark type, and which types are refused: no Spark session, no Postgres.

Covers: sink.errors.
"""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types as t
from support.typed_rows import struct_of

from pgonce.sink.encoding.encoded_types import EncodedColumn, encoded_columns
from pgonce.sink.errors import TypeMappingError


def encoded(data_type: t.DataType) -> EncodedColumn:
    """Return how a column ``c`` of this type is encoded."""
    (column,) = encoded_columns(struct_of({"c": data_type}))
    return column


@pytest.mark.parametrize(
    ("data_type", "postgres_type", "ddl_type"),
    [
        (t.BooleanType(), "bool", "boolean"),
        (t.ByteType(), "int2", "smallint"),
        (t.ShortType(), "int2", "smallint"),
        (t.IntegerType(), "int4", "integer"),
        (t.LongType(), "int8", "bigint"),
        (t.FloatType(), "float4", "real"),
        (t.DoubleType(), "float8", "double precision"),
        (t.DecimalType(10, 2), "numeric", "numeric(10,2)"),
        (t.DecimalType(38, 38), "numeric", "numeric(38,38)"),
        (t.DecimalType(5, -2), "numeric", "numeric(7,0)"),
        (t.StringType(), "text", "text"),
        (t.StringType("UTF8_LCASE"), "text", "text"),
        (t.CharType(3), "text", "char(3)"),
        (t.VarcharType(3), "text", "varchar(3)"),
        (t.VarcharType(20_000_000), "text", "text"),
        (t.BinaryType(), "bytea", "bytea"),
        (t.DateType(), "date", "date"),
        (t.TimestampType(), "timestamptz", "timestamptz"),
        (t.TimestampNTZType(), "timestamp", "timestamp"),
        (t.TimeType(6), "time", "time(6)"),
        (t.TimeType(0), "time", "time(0)"),
        (t.DayTimeIntervalType(), "interval", "interval"),
        (t.DayTimeIntervalType(0, 0), "interval", "interval"),
        (t.ArrayType(t.LongType()), "int8[]", "bigint[]"),
        (t.ArrayType(t.DecimalType(10, 2)), "numeric[]", "numeric(10,2)[]"),
        (t.ArrayType(t.VarcharType(3)), "text[]", "text[]"),
        (t.ArrayType(t.TimestampType()), "timestamptz[]", "timestamptz[]"),
        (t.ArrayType(t.ArrayType(t.LongType())), "jsonb", "jsonb"),
        (t.ArrayType(t.StructType([t.StructField("a", t.LongType())])), "jsonb", "jsonb"),
        (t.ArrayType(t.VariantType()), "jsonb", "jsonb"),
        (t.MapType(t.StringType(), t.NullType()), "jsonb", "jsonb"),
        (t.StructType([]), "jsonb", "jsonb"),
        (struct_of({"n": t.NullType()}), "jsonb", "jsonb"),
        (t.VariantType(), "jsonb", "jsonb"),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else "",
)
def test_every_type_that_can_be_held_has_one_postgres_type(
    data_type: t.DataType, postgres_type: str, ddl_type: str
) -> None:
    """A Spark type is encoded as one Postgres type, and createTable writes a column that holds it."""
    assert encoded(data_type) == EncodedColumn("c", data_type.simpleString(), postgres_type, ddl_type, data_type)


class Point(t.UserDefinedType):
    """A user's type, which Spark sends as the array below it."""

    @classmethod
    def sqlType(cls) -> t.DataType:
        """Say what the type is made of."""
        return t.ArrayType(t.DoubleType())


def nested(data_type: t.DataType) -> list[tuple[str, t.DataType]]:
    """Return the ways to hide a type in another, with the path that a message should name."""
    return [
        ("c", data_type),
        ("c.element", t.ArrayType(data_type)),
        ("c.element.element", t.ArrayType(t.ArrayType(data_type))),
        ("c.key", t.MapType(data_type, t.LongType())),
        ("c.value", t.MapType(t.LongType(), data_type)),
        ("c.f.element", t.StructType([t.StructField("f", t.ArrayType(data_type))])),
    ]


@pytest.mark.parametrize(
    ("data_type", "remedy"),
    [
        (t.CalendarIntervalType(), "cast the column to string"),
        (t.YearMonthIntervalType(), "INTERVAL MONTH"),
        (t.TimeType(9), "time(6)"),
        (Point(), "page `types`"),
        (t.GeometryType(4326), "page `types`"),
        (t.GeographyType(4326), "page `types`"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_type_that_cannot_be_held_is_refused_by_the_name_of_its_column(data_type: t.DataType, remedy: str) -> None:
    """However deep it lies, the error names the path and the type, and says what to do."""
    for path, whole in nested(data_type):
        with pytest.raises(TypeMappingError) as caught:
            encoded(whole)
        assert caught.value.code == "TYPE_UNSUPPORTED"
        assert f"{path!r} has Spark's type {data_type.simpleString()}," in caught.value.what
        assert remedy in caught.value.remedy


TWICE = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])


@pytest.mark.parametrize(
    ("struct", "says"),
    [
        # A void column has no type that Postgres could give it; inside a struct it reads null.
        (struct_of({"c": t.NullType()}), "TYPE_UNSUPPORTED"),
        (struct_of({"c": t.ArrayType(t.NullType())}), "TYPE_UNSUPPORTED"),
        # Where names were looked at with the rows, putting rows aside found no end.
        (struct_of({"c": struct_of({"a\0b": t.LongType()})}), "TYPE_UNSUPPORTED"),
        # In jsonb the later field would replace the earlier one.
        (TWICE, "COLUMN_TWICE"),
        (struct_of({"c": t.ArrayType(TWICE)}), r"COLUMN_TWICE.*'c\.element'"),
        (t.StructType([]), "NO_COLUMNS"),
    ],
)
def test_a_frame_that_no_table_can_hold_is_refused(struct: t.StructType, says: str) -> None:
    """Before any row moves."""
    with pytest.raises(TypeMappingError, match=says):
        encoded_columns(struct)


def test_the_error_unpickles_as_it_was() -> None:
    """Spark's workers pickle what they raise."""
    with pytest.raises(TypeMappingError) as caught:
        encoded(t.CalendarIntervalType())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
