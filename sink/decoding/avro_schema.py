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

from ..encoding.encoded_types import MOST_DIGITS
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
    variable_decimal,
)

_KINDS: dict[str, Kind] = {
    "boolean": Kind(t.BooleanType()),
    "int": Kind(t.IntegerType()),
    "long": Kind(t.LongType()),
    "float": Kind(t.FloatType()),
    "double": Kind(t.DoubleType()),
    "bytes": Kind(t.BinaryType()),
    "fixed": Kind(t.BinaryType()),
    "string": TEXT,
    "enum": TEXT,
    # Those that fastavro knows, and ours; of others, the type beneath counts.
    "int-date": Kind(t.DateType()),
    "int-time-millis": TEXT,
    "long-time-micros": TEXT,
    "long-timestamp-millis": Kind(t.TimestampType()),
    "long-timestamp-micros": Kind(t.TimestampType()),
    "long-local-timestamp-millis": Kind(t.TimestampNTZType()),
    "long-local-timestamp-micros": Kind(t.TimestampNTZType()),
    "string-pgonce-json": JSON,
    "record-pgonce-decimal": NUMBER,
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
# fastavro's own reader rounds to the precision that the schema says.
LOGICAL_READERS["bytes-pgonce-number"] = lambda unscaled, schema, *_: decimal_of(unscaled, schema.get("scale", 0))
LOGICAL_READERS["fixed-pgonce-number"] = LOGICAL_READERS["bytes-pgonce-number"]


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
        self._refuse_unbounded(self._root, (), {})

    def message(self, _: Sequence[int]) -> AvroSchema:
        """Itself: only a schema of Protobuf has several messages."""
        return self

    def value(self, body: bytes) -> Any:
        """The record."""
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._root, None)
        if (rest := len(body) - stream.tell()) != 0:
            raise UnreadableError(f"{rest} bytes follow its end")
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
        if logical == "pgonce-number":
            precision, scale = found["precision"], found.get("scale", 0)
            return Kind(t.DecimalType(precision, scale)) if precision <= MOST_DIGITS else NUMBER
        if found["type"] == "array":
            items = [kind for kind, _ in self._branches(found["items"])]
            return array_of(items[0] if len(items) == 1 else None)
        return _KINDS.get(f"{found['type']}-{logical}") or _KINDS.get(found["type"], JSON)

    def _refuse_unbounded(self, schema: Any, within: tuple[str, ...], seen: dict[str, bool]) -> bool:
        """
        Refuse what a few bytes could make endless: types within themselves, and lists of items that take no byte.

        :param within: the names of the types around it; :param seen: those that were looked at, and what was found.
        :return: whether a value may take no byte.
        """
        if isinstance(schema, list):
            for branch in schema:
                self._refuse_unbounded(branch, within, seen)
            return False
        if isinstance(schema, str) and schema in self._named:
            if schema in within:
                raise ValueError("the schema is recursive")
            if schema not in seen:
                seen[schema] = self._refuse_unbounded(self._named[schema], within, seen)
            return seen[schema]
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, (dict, list)):
            return self._refuse_unbounded(kind, within, seen)
        if kind == "record":
            inside = (*within, schema["name"])
            takes_none = [self._refuse_unbounded(field["type"], inside, seen) for field in schema["fields"]]
            return all(takes_none)
        if kind == "map":
            self._refuse_unbounded(schema["values"], within, seen)
        if kind == "array" and self._refuse_unbounded(schema["items"], within, seen):
            raise ValueError("the items of a list take no byte")
        return kind == "null" or (kind == "fixed" and schema["size"] == 0)


def _with_logical_type(schema: dict[str, Any]) -> dict[str, Any]:
    logical = _OF_CONNECT.get(schema.get("connect.name", ""))
    if schema.get("logicalType") == "decimal" and schema.get("type") in ("bytes", "fixed"):
        logical = "pgonce-number"
    return schema | {"logicalType": logical} if logical else schema
