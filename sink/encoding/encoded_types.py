"""
The Postgres type that holds a Spark column, and Spark's types as JSON and back.

Pure; runs in the driver and in tasks. Invariant: a type that is accepted holds every value that Spark can
send, or the encoder raises for the value; a type that cannot is refused by name before any row moves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import types as t

from pgonce.offsets_store.postgres.text import LONGEST_NAME, is_storable

from ..errors import TypeMappingError


class _LaterType(t.DataType):
    """Stands for a type that this PySpark does not have, so that no column is of it."""


VariantType: Any = getattr(t, "VariantType", type("VariantType", (_LaterType,), {}))
CalendarIntervalType: Any = getattr(t, "CalendarIntervalType", type("CalendarIntervalType", (_LaterType,), {}))
TimeType: Any = getattr(t, "TimeType", type("TimeType", (_LaterType,), {}))

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

IN_SPARK = {
    **{postgres: kind().simpleString() for kind, (postgres, _) in _SCALARS.items() if postgres != "interval"},
    "numeric": "decimal",
    "varchar": "string",
    "bpchar": "string",
}
"""The type of Spark that goes as it is into a column of Postgres's type."""

MICROSECONDS = 6
"""The digits of a second that Postgres keeps."""
_LONGEST_VARCHAR = 10_485_760
_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_MOST_COLUMNS = 1600
ATTEMPT_COLUMN = "pgonce_task_attempt"
"""
The column that a staging table has of its own. It marks the rows of one COPY of one task attempt: a speculative loser,
an attempt that died, or a COPY whose answer was lost may have left rows too.
"""
STAGED_COLUMNS = _MOST_COLUMNS - 1

_REFUSED_SPARK_TYPES: dict[type[t.DataType], str] = {
    t.NullType: "A column that is always null has no type: cast it to the type of the table's column, for example "
    "cast(null AS int).",
    CalendarIntervalType: "Spark does not send calendar intervals to Python: cast the column to string, which an "
    "interval column of Postgres takes.",
    t.YearMonthIntervalType: "Spark does not send year-month intervals to Python: write concat(cast(cast("
    "the column AS INTERVAL MONTH) AS INT), ' months'), which an interval column of Postgres takes.",
}

MOST_NESTED = 100
"""How deep a type in JSON may be nested; real rows are not as deep, and Python's stack is deeper."""
_PLAIN_TYPES: Final[dict[str, t.DataType]] = {
    **{kind.typeName(): kind() for kind in (*_SCALARS, t.NullType, VariantType) if kind is not t.DayTimeIntervalType},
    **{
        interval.simpleString(): interval
        for start in range(4)
        for end in range(start, 4)
        for interval in (t.DayTimeIntervalType(start, end),)
    },
}
_NUMBERED = re.compile(r"(decimal|char|varchar|time)\((\d{1,10})(?:,(-?\d{1,2}))?\)", re.ASCII)
_MOST_DIGITS = 38
_KEYS: Final[dict[object, frozenset[str]]] = {
    "array": frozenset({"type", "elementType", "containsNull"}),
    "map": frozenset({"type", "keyType", "valueType", "valueContainsNull"}),
    "struct": frozenset({"type", "fields"}),
}
_OF_A_FIELD = frozenset({"name", "type", "nullable"})


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

    :raises TypeMappingError: TYPE_UNSUPPORTED, COLUMN_TWICE.
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
            "Combine some of them in Spark, for example in a struct, which becomes jsonb.",
        )


def _refuse_names_that_no_column_has(names: Iterable[str]) -> None:
    # Postgres cuts longer names silently, and two names may be the same once cut.
    for name in names:
        if name in _SYSTEM_COLUMNS:
            why = "every table has a system column of this name"
        elif name == ATTEMPT_COLUMN:
            why = "rows that are staged have a column of this name"
        elif not 0 < len(name.encode(errors="replace")) <= LONGEST_NAME or not is_storable(name):
            why = f"names have 1 to {LONGEST_NAME} bytes, and no NUL"
        else:
            continue
        raise TypeMappingError(
            "COLUMN_UNKNOWN",
            f"No table in Postgres can have a column {name!r}: {why}.",
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
        otherwise = "Cast it in Spark to a type that page `types` of the documentation lists, or leave the column out."
        remedy = _REFUSED_SPARK_TYPES.get(type(data_type), otherwise)
    what = f"Column {path!r} has Spark's type {data_type.simpleString()}, which cannot be written to Postgres."
    return TypeMappingError("TYPE_UNSUPPORTED", what, "Nothing was written.", remedy)


def _require_json(data_type: t.DataType, path: str) -> None:
    if isinstance(data_type, t.StructType):
        _refuse_doubled(data_type, path)
        for field in data_type:
            if not is_storable(field.name):
                raise TypeMappingError(
                    "TYPE_UNSUPPORTED",
                    f"Column {path!r} has a field {field.name!r}, and jsonb cannot hold this name.",
                    "Nothing was written.",
                    "Rename it in Spark.",
                )
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
        raise TypeMappingError("COLUMN_TWICE", what, "Nothing was written.", "Rename one of them in Spark.")


def type_as_json(data_type: t.DataType) -> Any:
    """
    Return what :func:`type_from_json` reads, in the form that Spark uses, but without metadata and collations.

    :raises ValueError: for a type that cannot be encoded.
    """
    if isinstance(data_type, t.ArrayType):
        element = type_as_json(data_type.elementType)
        return {"type": "array", "elementType": element, "containsNull": data_type.containsNull}
    if isinstance(data_type, t.MapType):
        key, of_value = type_as_json(data_type.keyType), type_as_json(data_type.valueType)
        return {"type": "map", "keyType": key, "valueType": of_value, "valueContainsNull": data_type.valueContainsNull}
    if isinstance(data_type, t.StructType):
        fields = [{"name": f.name, "type": type_as_json(f.dataType), "nullable": f.nullable} for f in data_type]
        return {"type": "struct", "fields": fields}
    if type(data_type) is t.StringType:
        # Postgres compares texts by its own collations, so Spark's has no meaning there.
        return "string"
    if isinstance(data_type, VariantType):
        return "variant"
    is_interval = isinstance(data_type, t.DayTimeIntervalType)
    name = data_type.simpleString() if is_interval else str(data_type.jsonValue())
    _plain_type(name)
    return name


def type_from_json(value: Any, nested: int = 0) -> t.DataType:
    """
    Return the type that :func:`type_as_json` has written down, for what a dead letter records about its row.

    Every type is made here, from a fixed list of those that can be encoded. Nothing in the JSON is imported, evaluated
    or handed to Spark's own reader of types, which imports the class of a user-defined type by its name, and unpickles
    it.

    :raises ValueError: for anything else.
    """
    if nested > MOST_NESTED:
        raise ValueError(f"a type is nested more than {MOST_NESTED} levels deep")
    if isinstance(value, str):
        return _plain_type(value)
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or _KEYS.get(kind) != frozenset(value):
        raise _unknown(value if kind is None else kind)
    nested += 1
    if kind == "array":
        return t.ArrayType(type_from_json(value["elementType"], nested), _boolean(value["containsNull"]))
    if kind == "map":
        key, of_value = type_from_json(value["keyType"], nested), type_from_json(value["valueType"], nested)
        return t.MapType(key, of_value, _boolean(value["valueContainsNull"]))
    if not isinstance(value["fields"], list):
        raise _unknown(value["fields"])
    return t.StructType([_field(field, nested) for field in value["fields"]])


def _field(value: Any, nested: int) -> t.StructField:
    if not isinstance(value, Mapping) or frozenset(value) != _OF_A_FIELD or not isinstance(value["name"], str):
        raise _unknown(value)
    return t.StructField(value["name"], type_from_json(value["type"], nested), _boolean(value["nullable"]))


def _plain_type(name: str) -> t.DataType:
    if name in _PLAIN_TYPES:
        return _PLAIN_TYPES[name]
    found = _NUMBERED.fullmatch(name)
    if found is None or (found[3] is None) is (found[1] == "decimal"):
        raise _unknown(name)
    number = int(found[2])
    if found[1] == "decimal":
        scale = int(found[3])
        if not 1 <= number <= _MOST_DIGITS or abs(scale) > _MOST_DIGITS:
            raise _unknown(name)
        return t.DecimalType(number, scale)
    if found[1] == "time":
        try:
            time: t.DataType = TimeType(number)
        except TypeError:
            raise ValueError("this PySpark does not have the type time") from None
        return time
    return t.CharType(number) if found[1] == "char" else t.VarcharType(number)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unknown(value)
    return value


def _unknown(value: Any) -> ValueError:
    return ValueError(f"{ascii(value)[:80]} is not a type that can be written to Postgres")
