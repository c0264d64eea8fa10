"""
The Postgres type that holds a Spark column, and Spark's types as JSON and back.

Pure; runs in the driver and in tasks. Invariant: a type that is accepted holds every value that Spark can
send, or the encoder raises for the value; a type that cannot is refused by name before any row moves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
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

PLAIN = {postgres: kind() for kind, (postgres, _) in _SCALARS.items() if postgres != "interval"}
"""By the name of Postgres's type, the type of Spark whose values it has."""
IN_SPARK = {postgres: of.simpleString() for postgres, of in PLAIN.items()}
IN_SPARK |= {"numeric": "decimal", "varchar": "string", "bpchar": "string"}
"""The type of Spark that goes as it is into a column of Postgres's type."""

TEXTS = (t.StringType, t.CharType, t.VarcharType)
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
MOST_DIGITS = 38


@dataclass(frozen=True)
class EncodedColumn:
    """
    One Spark column as it is encoded for Postgres.

    :param name: Spark's name.
    :param spark_type: Spark's ``simpleString``, for messages.
    :param postgres_type: the type whose binary form the encoder writes (``int8``, ``jsonb``, ``int8[]``).
    :param ddl_type: what ``createTable`` writes (``bigint``, ``numeric(10,2)``).
    :param data_type: Spark's type; where it is encoded as JSON, the table's type decides what becomes of its parts.
    :param decoded_for: the type of the table's column for which the values were decoded; None if a frame has them. What
        was decoded for ``jsonb`` is JSON already, in texts.
    """

    name: str
    spark_type: str
    postgres_type: str
    ddl_type: str
    data_type: t.DataType
    decoded_for: str | None = None


DECODED_FOR = "pgonce.decoded_for"
"""The name in a field's metadata of the type for which it was decoded."""


def encoded_columns(struct_type: t.StructType) -> tuple[EncodedColumn, ...]:
    """
    Say how each column of a frame is encoded.

    :raises TypeMappingError: naming the column whose type Postgres cannot hold, or names that appear twice.
    """
    if not struct_type.fields:
        raise _bad_frame("NO_COLUMNS", "The frame has no columns.", "Select some.")
    refuse_more_columns_than(struct_type, _MOST_COLUMNS, "a table in Postgres has at most that many")
    _refuse_doubled(struct_type, "")
    _refuse_names_that_no_column_has(struct_type.names)
    columns = (encoded_column(field.name, field.dataType) for field in struct_type)
    decoded_for = (field.metadata.get(DECODED_FOR) for field in struct_type)
    return tuple(_decoded(column, of) if of else column for column, of in zip(columns, decoded_for, strict=True))


def _decoded(column: EncodedColumn, decoded_for: str) -> EncodedColumn:
    # Texts may stand for what has no type in Spark.
    ddl_type = decoded_for if isinstance(column.data_type, t.StringType) else column.ddl_type
    postgres_type = "jsonb" if decoded_for == "jsonb" else column.postgres_type
    return replace(column, decoded_for=decoded_for, ddl_type=ddl_type, postgres_type=postgres_type)


def encoded_column(name: str, data_type: t.DataType) -> EncodedColumn:
    """Say how one column is encoded, or how a part of a struct would be if it were a column."""
    postgres_type, ddl_type = _encoded_as(data_type, name)
    return EncodedColumn(name, data_type.simpleString(), postgres_type, ddl_type, data_type)


def refuse_more_columns_than(struct_type: t.StructType, most: int, why: str) -> None:
    """:raises TypeMappingError: TOO_MANY_COLUMNS."""
    if len(struct_type) > most:
        raise _bad_frame(
            "TOO_MANY_COLUMNS",
            f"The frame has {len(struct_type)} columns, but can have at most {most} here: {why}.",
            "Combine some of them in Spark, for example in a struct, which becomes jsonb.",
        )


def _bad_frame(code: str, what: str, remedy: str) -> TypeMappingError:
    return TypeMappingError(code, what, "Nothing was written.", remedy)


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
        raise _bad_frame(
            "COLUMN_UNKNOWN",
            f"No table in Postgres can have a column {name!r}: {why}.",
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
    return _bad_frame("TYPE_UNSUPPORTED", what, remedy)


def _require_json(data_type: t.DataType, path: str) -> None:
    if isinstance(data_type, t.StructType):
        _refuse_doubled(data_type, path)
        for field in data_type:
            if not is_storable(field.name):
                raise _bad_frame(
                    "TYPE_UNSUPPORTED",
                    f"Column {path!r} has a field {field.name!r}, and jsonb cannot hold this name.",
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
        raise _bad_frame("COLUMN_TWICE", what, "Rename one of them in Spark.")


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


def type_from_json(value: Any) -> t.DataType:
    """
    Return the type that :func:`type_as_json` has written down, for what a dead letter records about its row.

    Every type is made here, from a fixed list of those that can be encoded. Nothing in the JSON is imported, evaluated
    or handed to Spark's own reader of types, which imports the class of a user-defined type by its name, and unpickles
    it.

    :raises ValueError: for anything else.
    """
    try:
        found = _made_of(value, 0)
    except (AssertionError, KeyError, TypeError):
        raise _unknown(value) from None
    if type_as_json(found) != value:
        raise _unknown(value)
    return found


def _made_of(value: Any, nested: int) -> t.DataType:
    """The type that ``value`` says, if it says one; it may say more."""
    if nested > MOST_NESTED:
        raise ValueError(f"a type is nested more than {MOST_NESTED} levels deep")
    if isinstance(value, str):
        return _plain_type(value)
    nested += 1
    if value["type"] == "array":
        return t.ArrayType(_made_of(value["elementType"], nested), value["containsNull"] is True)
    if value["type"] == "map":
        key, of_value = _made_of(value["keyType"], nested), _made_of(value["valueType"], nested)
        return t.MapType(key, of_value, value["valueContainsNull"] is True)
    if value["type"] != "struct":
        raise _unknown(value["type"])
    fields = [(field["name"], _made_of(field["type"], nested), field["nullable"] is True) for field in value["fields"]]
    return t.StructType([t.StructField(*field) for field in fields])


def _plain_type(name: str) -> t.DataType:
    if name in _PLAIN_TYPES:
        return _PLAIN_TYPES[name]
    found = _NUMBERED.fullmatch(name)
    if found is None:
        raise _unknown(name)
    kind, number, scale = found[1], int(found[2]), int(found[3] or 0)
    if kind != "decimal":
        made: t.DataType = {"char": t.CharType, "varchar": t.VarcharType, "time": TimeType}[kind](number)
        return made
    if not 1 <= number <= MOST_DIGITS or abs(scale) > MOST_DIGITS:
        raise _unknown(name)
    return t.DecimalType(number, scale)


def _unknown(value: Any) -> ValueError:
    return ValueError(f"{ascii(value)[:80]} is not a type that can be written to Postgres")
