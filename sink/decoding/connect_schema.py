"""
Read the payload of Kafka Connect's JSON by its schema, as Debezium's connectors write both.

Pure: runs in tasks, and on the driver. Invariant: a time has an offset only if it had one in the source: Debezium's
timestamps in numbers have none.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

from __future__ import annotations

import datetime as dt
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql import types as t

from .schemas import (
    JSON,
    NUMBER,
    TEXT,
    Kind,
    Schema,
    UnreadableError,
    any_name,
    array_of,
    decimal_of,
    json_of,
    micros_of,
    variable_decimal,
)

_Read = Callable[[Any], Any]
_KINDS: dict[str, Kind] = {
    "int8": Kind(t.ShortType()),
    "int16": Kind(t.ShortType()),
    "int32": Kind(t.IntegerType()),
    "int64": Kind(t.LongType()),
    "float": Kind(t.FloatType()),
    "double": Kind(t.DoubleType()),
    "boolean": Kind(t.BooleanType()),
    "string": TEXT,
    "bytes": Kind(t.BinaryType()),
}
_NANO, _MICRO, _MILLI, _DAY = 1, 1000, 1_000_000, 86_400_000_000_000
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 (these times have no offset)


def _micros(number: Any, unit: int) -> dt.timedelta:
    if type(number) is not int:
        raise UnreadableError("a time is no whole number")
    return dt.timedelta(microseconds=micros_of(number * unit))


def _timestamp(unit: int) -> _Read:
    """What reads a number of units, each of so many nanoseconds."""
    return lambda number: _EPOCH + _micros(number, unit)


def _time(unit: int) -> _Read:
    def read(number: Any) -> dt.time:
        found = _EPOCH + _micros(number, unit)
        if found.date() != _EPOCH.date():
            raise UnreadableError("a time is not one of a day")
        return found.time()

    return read


def _date(days: Any) -> dt.date:
    return (_EPOCH + _micros(days, _DAY)).date()


_TIME, _CONNECTS = "io.debezium.time.", "org.apache.kafka.connect.data."
_LOCAL = Kind(t.TimestampNTZType())
_NAMED: dict[str, tuple[Kind, _Read]] = {
    f"{_CONNECTS}Date": (Kind(t.DateType()), _date),
    f"{_TIME}Date": (Kind(t.DateType()), _date),
    f"{_CONNECTS}Time": (TEXT, _time(_MILLI)),
    f"{_TIME}Time": (TEXT, _time(_MILLI)),
    f"{_TIME}MicroTime": (TEXT, _time(_MICRO)),
    f"{_TIME}NanoTime": (TEXT, _time(_NANO)),
    f"{_CONNECTS}Timestamp": (_LOCAL, _timestamp(_MILLI)),
    f"{_TIME}Timestamp": (_LOCAL, _timestamp(_MILLI)),
    f"{_TIME}MicroTimestamp": (_LOCAL, _timestamp(_MICRO)),
    f"{_TIME}NanoTimestamp": (_LOCAL, _timestamp(_NANO)),
    "io.debezium.data.Json": (JSON, json_of),
    "io.debezium.data.VariableScaleDecimal": (NUMBER, variable_decimal),
}
"""By the names of schemas; what is not here is read by its type."""


class ConnectSchema(Schema):
    """
    The schema of a payload, which stands next to it.

    :raises Exception: any, if it is none.
    """

    def __init__(self, text: bytes) -> None:
        self._root: Mapping[str, Any] = msgspec.json.decode(text)
        _, self._read = _read_as(self._root)

    def value(self, body: bytes) -> Any:
        """The payload."""
        return self._read(msgspec.json.decode(body))

    def _branches(self, schema: Mapping[str, Any]) -> list[tuple[Kind, Mapping[str, Any]]]:
        kind = _read_as(schema)[0]
        if schema["type"] == "map":
            return [(kind, any_name(schema["values"]))]
        return [(kind, {str(field["field"]): field for field in schema.get("fields", ())})]


def _read_as(schema: Mapping[str, Any]) -> tuple[Kind, _Read]:
    """As what values of this schema are read, and what reads them, null among them."""
    kind, read = _read_values_as(schema)
    return kind, (lambda value: None if value is None else read(value)) if read else (lambda value: value)


def _read_values_as(schema: Mapping[str, Any]) -> tuple[Kind, _Read | None]:
    name, kind = schema.get("name"), schema["type"]
    if name == f"{_CONNECTS}Decimal":
        scale = int(schema["parameters"]["scale"])
        return NUMBER, lambda text: decimal_of(b64decode(text, validate=True), scale)
    if name in _NAMED:
        return _NAMED[name]
    if kind == "bytes":
        return _KINDS[kind], lambda text: b64decode(text, validate=True)
    if kind == "struct":
        fields = {str(field["field"]): _read_as(field)[1] for field in schema["fields"]}
        return JSON, lambda value: {field: fields[field](one) for field, one in value.items()}
    if kind == "array":
        of_item, item = _read_as(schema["items"])
        return array_of(of_item), lambda value: [item(one) for one in value]
    if kind == "map":
        key, of_value = _read_as(schema["keys"])[1], _read_as(schema["values"])[1]
        if schema["keys"]["type"] == "string":
            return JSON, lambda value: {key: of_value(one) for key, one in value.items()}
        # A list of pairs.
        return JSON, lambda value: [[key(one), of_value(other)] for one, other in value]
    return _KINDS[kind], None
