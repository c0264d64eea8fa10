"""
Read records of Avro, and say of which types their fields are.

Pure: runs in tasks, and on the driver. Invariant: a value has every digit, and a time an offset only where the schema
says that it is an instant.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
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
        for one in (*references, text):
            self._root = fastavro.parse_schema(json.loads(one, object_hook=_with_logical_type), self._named)
        # Of a type within itself, a few bytes would crash the reader.
        TopologicalSorter({name: set(_names_in(of)) for name, of in {"": self._root, **self._named}.items()}).prepare()

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
            if kind == "map":
                yield JSON, any_name(found["values"])
            elif kind == "array":
                yield from ((array_of(item), {}) for item, _ in self._branches(found["items"]))
            elif kind != "null":
                fields = found.get("fields", ()) if isinstance(found, dict) else ()
                yield self._kind(found), {field["name"]: field["type"] for field in fields}

    def _kind(self, schema: Any) -> Kind:
        found = schema if isinstance(schema, dict) else {"type": schema}
        logical = found.get("logicalType")
        if logical == "pgonce-number":
            precision, scale = found["precision"], found.get("scale", 0)
            return Kind(t.DecimalType(precision, scale)) if precision <= MOST_DIGITS else NUMBER
        return _KINDS.get(f"{found['type']}-{logical}") or _KINDS.get(found["type"], JSON)


def _names_in(schema: Any) -> Iterator[str]:
    """
    The names of the types that a value of this schema may have within it.

    :raises ValueError: for a type that takes no byte, because a few bytes can say that a list has millions of such.
    """
    if isinstance(schema, list):
        parts = [branch for branch in schema if branch not in ("null", {"type": "null"})]
    else:
        found = schema if isinstance(schema, dict) else {"type": schema}
        if found["type"] == "null" or found.get("fields") == [] or found.get("size") == 0:
            raise ValueError("a type takes no byte")
        if isinstance(schema, str):
            yield schema
        parts = [field["type"] for field in found.get("fields", ())]
        parts += [found[part] for part in ("items", "values") if part in found]
    for part in parts:
        yield from _names_in(part)


def _with_logical_type(schema: dict[str, Any]) -> dict[str, Any]:
    logical = _OF_CONNECT.get(schema.get("connect.name", ""))
    if schema.get("logicalType") == "decimal" and schema.get("type") in ("bytes", "fixed"):
        logical = "pgonce-number"
    # With this, fastavro would take the schema as one that it has parsed itself.
    schema.pop("__fastavro_parsed", None)
    return schema | {"logicalType": logical} if logical else schema
