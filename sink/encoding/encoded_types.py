"""
Which Postgres type holds a Spark column?

Pure; runs in the driver and in tasks. Invariant: a type that is accepted holds every value that Spark can
send, or the encoder raises for the value; a type that cannot is refused by name before any row moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import types as t

from pgonce.offsets_store.postgres.storable import is_storable

from ..errors import TypeMappingError
from .newer_types import CalendarIntervalType, TimeType, VariantType

_SCALARS: dict[type[t.DataType], tuple[str, str]] = {
    t.BooleanType: ("bool", "boolean"),
    # Postgres has no integer of one byte.
    t.ByteType: ("int2", "smallint"),
    t.ShortType: ("int2", "smallint"),
    t.IntegerType: ("int4", "integer"),
    t.LongType: ("int8", "bigint"),
    t.FloatType: ("float4", "real"),
    t.DoubleType: ("float8", "double precision"),
    t.StringType: ("text", "text"),
    t.BinaryType: ("bytea", "bytea"),
    t.DateType: ("date", "date"),
    t.TimestampType: ("timestamptz", "timestamptz"),
    t.TimestampNTZType: ("timestamp", "timestamp"),
    t.DayTimeIntervalType: ("interval", "interval"),
}

MICROSECONDS = 6
"""The digits of a second that Postgres keeps."""
_LONGEST_VARCHAR = 10_485_760
_LONGEST_NAME = 63
_MOST_COLUMNS = 1600
STAGED_COLUMNS = _MOST_COLUMNS - 1
"""A staging table has one column of its own."""

_REFUSED_SPARK_TYPES: dict[type[t.DataType], str] = {
    t.NullType: "A column that is always null has no type: cast it to the type of the table's column, for example "
    "cast(null AS int).",
    CalendarIntervalType: "Spark does not send calendar intervals to Python: cast the column to string, which an "
    "interval column of Postgres takes.",
    t.YearMonthIntervalType: "Spark does not send year-month intervals to Python: write concat(cast(cast("
    "the column AS INTERVAL MONTH) AS INT), ' months'), which an interval column of Postgres takes.",
}


@dataclass(frozen=True)
class EncodedColumn:
    """
    One Spark column as it is encoded for Postgres.

    :param name: Spark's name.
    :param spark_type: Spark's ``simpleString``, for messages.
    :param postgres_type: the type whose binary form the encoder writes (``int8``, ``jsonb``, ``int8[]``).
    :param ddl_type: what ``createTable`` writes (``bigint``, ``numeric(10,2)``).
    :param data_type: Spark's type; where it is encoded as JSON, the table's type decides what becomes of its parts.
    """

    name: str
    spark_type: str
    postgres_type: str
    ddl_type: str
    data_type: t.DataType | None = None


def encoded_columns(struct_type: t.StructType) -> tuple[EncodedColumn, ...]:
    """
    Say how each column of a frame is encoded.

    :raises TypeMappingError: naming the column whose type Postgres cannot hold, or names that appear twice.
    """
    if not struct_type.fields:
        raise TypeMappingError("NO_COLUMNS", "The frame has no columns.", "Nothing was written.", "Select some.")
    refuse_more_columns_than(struct_type, _MOST_COLUMNS, "a table in Postgres has at most that many")
    _refuse_doubled(struct_type, "")
    _refuse_names_that_no_column_has(struct_type.names)
    return tuple(encoded_column(field.name, field.dataType) for field in struct_type)


def encoded_column(name: str, data_type: t.DataType) -> EncodedColumn:
    """
    Say how one column is encoded, or how a part of a struct would be if it were a column.

    :raises TypeMappingError: TYPE_UNSUPPORTED, FIELD_TWICE.
    """
    postgres_type, ddl_type = _encoded_as(data_type, name)
    return EncodedColumn(name, data_type.simpleString(), postgres_type, ddl_type, data_type)


def refuse_more_columns_than(struct_type: t.StructType, most: int, why: str) -> None:
    """:raises TypeMappingError: TOO_MANY_COLUMNS."""
    if len(struct_type) > most:
        raise TypeMappingError(
            "TOO_MANY_COLUMNS",
            f"The frame has {len(struct_type)} columns, but can have at most {most} here: {why}.",
            "Nothing was written.",
            "Put some of them together in Spark, for example in a struct, which becomes jsonb.",
        )


def _refuse_names_that_no_column_has(names: Iterable[str]) -> None:
    # Postgres cuts longer names silently, and two names may be the same once cut.
    for name in names:
        if not 0 < len(name.encode(errors="replace")) <= _LONGEST_NAME or not is_storable(name):
            raise TypeMappingError(
                "COLUMN_UNKNOWN",
                f"No table in Postgres can have a column {name!r}: names have 1 to {_LONGEST_NAME} bytes, and no NUL.",
                "Nothing was written.",
                "Rename it in Spark.",
            )


def _encoded_as(data_type: t.DataType, path: str) -> tuple[str, str]:
    """Return (postgres_type, ddl_type)."""
    if isinstance(data_type, t.ArrayType) and not isinstance(data_type.elementType, t.ArrayType):
        postgres_type, ddl_type = _encoded_as(data_type.elementType, f"{path}.element")
        if postgres_type == "jsonb":
            return "jsonb", "jsonb"
        # Unlike one varchar, an array of varchar cannot be copied from an array of text (42804).
        return f"{postgres_type}[]", "text[]" if postgres_type == "text" else f"{ddl_type}[]"
    if isinstance(data_type, (t.ArrayType, t.MapType, t.StructType, VariantType)):
        _require_json(data_type, path)
        return "jsonb", "jsonb"
    if isinstance(data_type, t.DecimalType):
        precision, scale = data_type.precision, data_type.scale
        return "numeric", f"numeric({precision},{scale})" if scale >= 0 else f"numeric({precision - scale},0)"
    if isinstance(data_type, (t.CharType, t.VarcharType)):
        length, name = data_type.length, "char" if isinstance(data_type, t.CharType) else "varchar"
        return "text", f"{name}({length})" if length <= _LONGEST_VARCHAR else "text"
    if isinstance(data_type, TimeType) and data_type.precision <= MICROSECONDS:
        return "time", f"time({data_type.precision})"
    # By exact class: a type that a later Spark derives from one of these must be looked at before it is
    # trusted.
    if type(data_type) in _SCALARS:
        return _SCALARS[type(data_type)]
    raise _unsupported(data_type, path)


def _unsupported(data_type: t.DataType, path: str) -> TypeMappingError:
    if isinstance(data_type, TimeType):
        remedy = "Postgres keeps microseconds: cast to time(6) in Spark."
    else:
        otherwise = "Cast it in Spark to a type that `pgonce explain types` lists, or leave the column out."
        remedy = _REFUSED_SPARK_TYPES.get(type(data_type), otherwise)
    what = f"Column {path!r} has Spark's type {data_type.simpleString()}, which cannot be written to Postgres."
    return TypeMappingError("TYPE_UNSUPPORTED", what, "Nothing was written.", remedy)


def _require_json(data_type: t.DataType, path: str) -> None:
    if isinstance(data_type, t.StructType):
        _refuse_doubled(data_type, path)
        for field in data_type:
            _require_json(field.dataType, f"{path}.{field.name}")
    elif isinstance(data_type, t.ArrayType):
        _require_json(data_type.elementType, f"{path}.element")
    elif isinstance(data_type, t.MapType):
        _require_json(data_type.keyType, f"{path}.key")
        _require_json(data_type.valueType, f"{path}.value")
    elif not isinstance(data_type, (t.NullType, VariantType)):
        _encoded_as(data_type, path)


def _refuse_doubled(struct_type: t.StructType, path: str) -> None:
    doubled = [name for name, count in Counter(struct_type.names).items() if count > 1]
    if doubled:
        where = f"Column {path!r}" if path else "The frame"
        # In jsonb the later field would silently replace the earlier one.
        what = f"{where} has more than one field called {', '.join(map(repr, doubled))}."
        raise TypeMappingError("FIELD_TWICE", what, "Nothing was written.", "Rename one of them in Spark.")
