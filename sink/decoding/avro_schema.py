"""
Read records of Avro, and say of which types their fields are.

Pure: runs in tasks, and on the driver. Invariant: a value has every digit, and a time an offset only where the schema
says that it is an instant.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS
from pyspark.sql import types as t

from .schemas import JSON, NUMBER, Kind, Schema, any_name, array_of, json_of, variable_decimal

_MOST_DIGITS = 38
_KINDS: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "fixed": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
    # Those that fastavro knows; of others, the type beneath counts.
    "int-date": t.DateType(),
    "int-time-millis": t.StringType(),
    "long-time-micros": t.StringType(),
    "long-timestamp-millis": t.TimestampType(),
    "long-timestamp-micros": t.TimestampType(),
    "long-local-timestamp-millis": t.TimestampNTZType(),
    "long-local-timestamp-micros": t.TimestampNTZType(),
}
# By the names that Kafka Connect's converter has noted, of schemas that Avro's logical types do not say.
_OF_CONNECT = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.data.Json": "pgonce-json",
    "io.debezium.data.VariableScaleDecimal": "pgonce-decimal",
}
LOGICAL_READERS["string-pgonce-json"] = lambda text, *_: json_of(text)
LOGICAL_READERS["record-pgonce-decimal"] = lambda value, *_: variable_decimal(value)


class AvroSchema(Schema):
    """
    A schema, with the ``references`` that it needs, each after those that it needs itself.

    :raises Exception: one of many, if they are not schemas.
    """

    form = "avro"

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        self._named: dict[str, Any] = {}
        for one in references:
            fastavro.parse_schema(json.loads(one, object_hook=_with_logical_type), self._named)
        self._root = fastavro.parse_schema(json.loads(text, object_hook=_with_logical_type), self._named)

    def message(self, _: Sequence[int]) -> AvroSchema:
        """Itself: only a schema of Protobuf has several messages."""
        return self

    def value(self, body: bytes) -> Any:
        """The record."""
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._root, None)
        if (rest := len(body) - stream.tell()) != 0:
            raise ValueError(f"{rest} bytes follow its end")
        return value

    def _branches(self, schema: Any) -> Iterator[tuple[Kind, Mapping[str, Any]]]:
        for branch in schema if isinstance(schema, list) else [schema]:
            found = self._named.get(branch, branch) if isinstance(branch, str) else branch
            kind = found["type"] if isinstance(found, dict) else found
            if isinstance(kind, (dict, list)):
                yield from self._branches(kind)
            elif kind == "map":
                yield JSON, any_name(found["values"])
            elif kind != "null":
                fields = found.get("fields", ()) if isinstance(found, dict) else ()
                yield self._kind(found), {field["name"]: field["type"] for field in fields}

    def _kind(self, schema: Any) -> Kind:
        found = schema if isinstance(schema, dict) else {"type": schema}
        logical = found.get("logicalType")
        if logical == "decimal" and found["type"] in ("bytes", "fixed"):
            precision, scale = found["precision"], found.get("scale", 0)
            return Kind(t.DecimalType(precision, scale)) if precision <= _MOST_DIGITS else NUMBER
        if logical in _KINDS_OF_CONNECT:
            return _KINDS_OF_CONNECT[logical]
        if found["type"] == "array":
            items = [kind for kind, _ in self._branches(found["items"])]
            return array_of(items[0] if len(items) == 1 else None)
        data_type = _KINDS.get(f"{found['type']}-{logical}") or _KINDS.get(found["type"])
        return Kind(data_type) if data_type else JSON


_KINDS_OF_CONNECT = {"pgonce-json": JSON, "pgonce-decimal": NUMBER}


def _with_logical_type(schema: dict[str, Any]) -> dict[str, Any]:
    logical = _OF_CONNECT.get(schema.get("connect.name", ""))
    return schema | {"logicalType": logical} if logical else schema
