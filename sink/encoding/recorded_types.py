"""
Spark's types as JSON and back, for what a dead letter records about its row.

Pure: runs in the commit that puts rows aside, and in their replay. Invariant: every type is made here, from a fixed
list of those that can be encoded. Nothing in the JSON is imported, evaluated or handed to Spark's own reader of types,
which imports the class of a user-defined type by its name, and unpickles it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import types as t

from .newer_types import TimeType, VariantType

MOST_NESTED = 100
"""How deep a type may be nested; nobody's rows are, and Python's stack is deeper."""

_PLAIN: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "byte": t.ByteType(),
    "short": t.ShortType(),
    "integer": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "void": t.NullType(),
    "variant": VariantType(),
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


def as_json(data_type: t.DataType) -> Any:
    """
    What :func:`from_json` reads, in the form that Spark uses, but without metadata and collations.

    :raises ValueError: for a type that cannot be encoded.
    """
    if isinstance(data_type, t.ArrayType):
        element = as_json(data_type.elementType)
        return {"type": "array", "elementType": element, "containsNull": data_type.containsNull}
    if isinstance(data_type, t.MapType):
        key, of_value = as_json(data_type.keyType), as_json(data_type.valueType)
        return {"type": "map", "keyType": key, "valueType": of_value, "valueContainsNull": data_type.valueContainsNull}
    if isinstance(data_type, t.StructType):
        fields = [{"name": f.name, "type": as_json(f.dataType), "nullable": f.nullable} for f in data_type]
        return {"type": "struct", "fields": fields}
    if type(data_type) is t.StringType:
        # Postgres compares texts by its own collations, so Spark's has no meaning there.
        return "string"
    if isinstance(data_type, VariantType):
        return "variant"
    is_interval = isinstance(data_type, t.DayTimeIntervalType)
    name = data_type.simpleString() if is_interval else str(data_type.jsonValue())
    _scalar(name)
    return name


def from_json(value: Any, nested: int = 0) -> t.DataType:
    """
    The type that :func:`as_json` has written down.

    :raises ValueError: for anything else.
    """
    if nested > MOST_NESTED:
        raise ValueError(f"a type is nested more than {MOST_NESTED} levels deep")
    if isinstance(value, str):
        return _scalar(value)
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or _KEYS.get(kind) != frozenset(value):
        raise _unknown(value if kind is None else kind)
    nested += 1
    if kind == "array":
        return t.ArrayType(from_json(value["elementType"], nested), _boolean(value["containsNull"]))
    if kind == "map":
        key, of_value = from_json(value["keyType"], nested), from_json(value["valueType"], nested)
        return t.MapType(key, of_value, _boolean(value["valueContainsNull"]))
    if not isinstance(value["fields"], list):
        raise _unknown(value["fields"])
    return t.StructType([_field(field, nested) for field in value["fields"]])


def _field(value: Any, nested: int) -> t.StructField:
    if not isinstance(value, Mapping) or frozenset(value) != _OF_A_FIELD or not isinstance(value["name"], str):
        raise _unknown(value)
    return t.StructField(value["name"], from_json(value["type"], nested), _boolean(value["nullable"]))


def _scalar(name: str) -> t.DataType:
    if name in _PLAIN:
        return _PLAIN[name]
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
