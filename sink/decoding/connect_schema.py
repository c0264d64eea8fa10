"""
Read the payload of Kafka Connect's JSON by the schema beside it, as Debezium's connectors write both.

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

from .schemas import JSON, NUMBER, Kind, Schema, array_of, decimal_of, json_of, variable_decimal

_Read = Callable[[Any], Any]
_KINDS: dict[str, t.DataType] = {
    "int8": t.ShortType(),
    "int16": t.ShortType(),
    "int32": t.IntegerType(),
    "int64": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "boolean": t.BooleanType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
}
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 (these times have no offset)


def _micros(number: int, of_a_micro: int) -> dt.timedelta:
    if number % of_a_micro:
        raise ValueError("it has nanoseconds")
    return dt.timedelta(microseconds=number // of_a_micro)


def _timestamp(micros: int, of_a_micro: int = 1) -> _Read:
    return lambda number: _EPOCH + _micros(number * micros, of_a_micro)


def _time(micros: int, of_a_micro: int = 1) -> _Read:
    return lambda number: (_EPOCH + _micros(number * micros, of_a_micro)).time()


def _date(days: int) -> dt.date:
    return _EPOCH.date() + dt.timedelta(days)


_TIME, _CONNECTS = "io.debezium.time.", "org.apache.kafka.connect.data."
_LOCAL = Kind(t.TimestampNTZType())
_TEXT = Kind(t.StringType())
_NAMED: dict[str, tuple[Kind, _Read]] = {
    f"{_CONNECTS}Date": (Kind(t.DateType()), _date),
    f"{_TIME}Date": (Kind(t.DateType()), _date),
    f"{_CONNECTS}Time": (_TEXT, _time(1000)),
    f"{_TIME}Time": (_TEXT, _time(1000)),
    f"{_TIME}MicroTime": (_TEXT, _time(1)),
    f"{_TIME}NanoTime": (_TEXT, _time(1, 1000)),
    f"{_CONNECTS}Timestamp": (_LOCAL, _timestamp(1000)),
    f"{_TIME}Timestamp": (_LOCAL, _timestamp(1000)),
    f"{_TIME}MicroTimestamp": (_LOCAL, _timestamp(1)),
    f"{_TIME}NanoTimestamp": (_LOCAL, _timestamp(1, 1000)),
    "io.debezium.data.Json": (JSON, json_of),
    "io.debezium.data.VariableScaleDecimal": (NUMBER, variable_decimal),
}
"""By the names of schemas; what is not here is read by its type."""


class ConnectSchema(Schema):
    """
    The schema beside a payload.

    :raises LookupError, TypeError, ValueError: if it is none.
    """

    def __init__(self, text: bytes) -> None:
        self._root: Mapping[str, Any] = msgspec.json.decode(text)
        self._read = _reader(self._root)

    def value(self, body: bytes) -> Any:
        """The payload."""
        return self._read(msgspec.json.decode(body))

    def _branches(self, schema: Mapping[str, Any]) -> list[tuple[Kind, Mapping[str, Any]]]:
        return [(_kind(schema), {field["field"]: field for field in schema.get("fields", ())})]


def _kind(schema: Mapping[str, Any]) -> Kind:
    if schema.get("name") == f"{_CONNECTS}Decimal":
        return NUMBER
    if (named := _NAMED.get(schema.get("name", ""))) is not None:
        return named[0]
    if schema["type"] == "array":
        return array_of(_kind(schema["items"]))
    data_type = _KINDS.get(schema["type"])
    return Kind(data_type) if data_type else JSON


def _reader(schema: Mapping[str, Any]) -> _Read:
    """What reads values of this schema, null among them."""
    read = _reader_of_values(schema)
    return (lambda value: None if value is None else read(value)) if read else (lambda value: value)


def _reader_of_values(schema: Mapping[str, Any]) -> _Read | None:
    name, kind = schema.get("name", ""), schema["type"]
    if name == f"{_CONNECTS}Decimal":
        scale = int(schema["parameters"]["scale"])
        return lambda text: decimal_of(b64decode(text, validate=True), scale)
    if name in _NAMED:
        return _NAMED[name][1]
    if kind == "bytes":
        return lambda text: b64decode(text, validate=True)
    if kind == "struct":
        fields = {field["field"]: _reader(field) for field in schema["fields"]}
        return lambda value: {field: fields[field](one) for field, one in value.items()}
    if kind == "array":
        item = _reader(schema["items"])
        return lambda value: [item(one) for one in value]
    if kind == "map" and schema["keys"]["type"] == "string":
        of_value = _reader(schema["values"])
        return lambda value: {key: of_value(one) for key, one in value.items()}
    return None
