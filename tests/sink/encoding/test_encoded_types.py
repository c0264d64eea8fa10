"""
Which Postgres type holds a Spark type, and which types are refused: no Spark session, no Postgres.

Covers: sink.errors.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from support.spark_types import TYPES
from support.typed_rows import struct_of

from pgonce.sink.encoding.encoded_types import MOST_NESTED, EncodedColumn, encoded_columns, type_as_json, type_from_json
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
        with pytest.raises(TypeMappingError, match=r"\[TYPE_UNSUPPORTED\]") as caught:
            encoded(whole)
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


@given(TYPES)
def test_every_type_that_can_be_encoded_is_read_back(data_type):
    """Also when the ledger has kept it as JSON."""
    assert type_from_json(json.loads(json.dumps(type_as_json(data_type)))) == data_type


def test_metadata_and_collations_are_left_out():
    """They are Spark's alone, and metadata is free text."""
    fields = [t.StructField("a", t.StringType("UTF8_LCASE"), metadata={"any": "thing"})]
    assert type_from_json(type_as_json(t.StructType(fields))) == t.StructType([t.StructField("a", t.StringType())])


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


def of_user(proof: Path) -> dict[str, Any]:
    """A user-defined type, whose class Spark's own reader imports, and unpickles if that fails."""
    pickled = base64.b64encode(pickle.dumps(Evil(proof))).decode()
    return {"type": "udt", "class": None, "pyClass": "this.No", "sqlType": "string", "serializedClass": pickled}


def struct(of: Any) -> dict[str, Any]:
    """A struct with one field of this type."""
    return {"type": "struct", "fields": [{"name": "a", "type": of, "nullable": True}]}


@pytest.mark.parametrize(
    "around",
    [
        lambda udt: udt,
        lambda udt: {"type": "array", "elementType": udt, "containsNull": True},
        lambda udt: {"type": "map", "keyType": udt, "valueType": "string", "valueContainsNull": True},
        lambda udt: {"type": "map", "keyType": "string", "valueType": udt, "valueContainsNull": True},
        struct,
        lambda udt: struct({"type": "array", "elementType": struct(udt), "containsNull": False}),
    ],
    ids=["itself", "array", "key", "value", "struct", "deep"],
)
def test_a_user_defined_type_is_refused_wherever_it_stands(around, tmp_path):
    """No module of its choice is imported, and nothing is unpickled."""
    proof = tmp_path / "made"
    with pytest.raises(ValueError, match="not a type that can be written"):
        type_from_json(around(of_user(proof)))
    assert not proof.exists()
    assert "this" not in sys.modules


def deep(levels: int) -> Any:
    """An array in an array in an array."""
    value: Any = "long"
    for _ in range(levels):
        value = {"type": "array", "elementType": value, "containsNull": True}
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        [],
        {},
        ["string"],
        "",
        "udt",
        "string collate evil",
        "string\n",
        "decimal",
        "decimal(10)",
        "decimal(0,0)",
        "decimal(39,2)",
        "decimal(\u0661,2)",
        "varchar(3,1)",
        "varchar(99999999999)",
        "interval year",
        "calendar_interval",
        {"type": ["struct"], "fields": []},
        {"type": "struct"},
        {"type": "struct", "fields": {}},
        {"type": "struct", "fields": ["string"]},
        {"type": "struct", "fields": [{"name": 1, "type": "string", "nullable": True}]},
        {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": "yes"}]},
        {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": True, "metadata": {}}]},
        {"type": "array", "elementType": "string", "containsNull": 1},
        {"type": "array", "elementType": "string", "containsNull": True, "class": "os.system"},
        deep(MOST_NESTED + 1),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_anything_else_is_refused(value):
    """With a reason, and before anything is made of it."""
    with pytest.raises(ValueError, match="type"):
        type_from_json(value)


def test_the_deepest_type_that_is_read():
    """Deeper ones could exhaust Python's stack."""
    assert type_as_json(type_from_json(deep(MOST_NESTED))) == deep(MOST_NESTED)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "fields", "name", "nullable", "elementType", "containsNull"]), inner
            )
        ),
    )
)
def test_no_json_is_taken_for_more_than_it_says(value):
    """What is read is written down as the same again."""
    try:
        found = type_from_json(value)
    except ValueError:
        return
    assert type_as_json(found) == value
