"""
Read records of Avro as the JSON that they are, and say of which types their fields are.

Pure: runs in tasks, and on the driver. Invariant: the JSON has every digit, and a time with an offset only where the
schema says that it is an instant. What JSON has no form for (not-a-number, infinity) is refused.

https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import msgspec
from pyspark.sql import types as t

from .decoded_columns import Form


class Kind(NamedTuple):
    """As what a field of a schema would be read; a number of more digits than Spark's decimals have by ``DIGITS``."""

    data_type: t.DataType
    form: Form = Form.VALUE


JSON = Kind(t.StringType(), Form.JSON)
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
_TO_JSON = msgspec.json.Encoder(decimal_format="number").encode
UNREADABLE = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError, struct.error)
"""What a record that does not fit its schema ends in."""


class AvroSchema:
    """
    A schema, with the ``references`` that it needs, each after those that it needs itself.

    :raises Exception: one of many, if they are not schemas.
    """

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        self._named: dict[str, Any] = {}
        for one in references:
            fastavro.parse_schema(json.loads(one), self._named)
        self._schema = fastavro.parse_schema(json.loads(text), self._named)
        self._has_floats = any(f'"{kind}"' in one for kind in ("float", "double") for one in (text, *references))

    def as_json(self, body: bytes) -> bytes:
        """
        The record as JSON.

        :raises Exception: one of :data:`UNREADABLE`.
        """
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._schema, None)
        if (rest := len(body) - stream.tell()) != 0:
            raise ValueError(f"{rest} bytes follow its end")
        text = _TO_JSON(value)
        if self._has_floats and b"null" in text and _has_no_number(value):
            raise ValueError("it has a float that is not a number or infinite")
        return text

    def kinds(self, path: Sequence[str]) -> list[Kind]:
        """As what the field at this path would be read: several if it is a union; none if there is no such field."""
        return [self._kind(found) for found in self._at(self._schema, path)]

    def fields(self, path: Sequence[str] = ()) -> list[str]:
        """The names of the fields of the record at this path."""
        of = (found.get("fields", ()) for found in self._at(self._schema, path) if isinstance(found, dict))
        return [field["name"] for fields in of for field in fields]

    def _at(self, schema: Any, path: Sequence[str]) -> Iterator[Any]:
        for branch in schema if isinstance(schema, list) else [schema]:
            found = self._named.get(branch, branch) if isinstance(branch, str) else branch
            inner = found["type"] if isinstance(found, dict) else found
            if isinstance(inner, (dict, list)):
                yield from self._at(inner, path)
            elif not path:
                yield from () if found == "null" else (found,)
            elif isinstance(found, dict) and found["type"] == "map":
                yield from self._at(found["values"], path[1:])
            elif isinstance(found, dict):
                types = [field["type"] for field in found.get("fields", ()) if field["name"] == path[0]]
                yield from self._at(types, path[1:])

    def _kind(self, schema: Any) -> Kind:
        found = schema if isinstance(schema, dict) else {"type": schema}
        logical = found.get("logicalType")
        if logical == "decimal" and found["type"] in ("bytes", "fixed"):
            precision, scale = found["precision"], found.get("scale", 0)
            if precision <= _MOST_DIGITS:
                return Kind(t.DecimalType(precision, scale))
            return Kind(t.StringType(), Form.DIGITS)
        if found["type"] == "array":
            items = [self._kind(one) for one in self._at(found["items"], ())]
            is_plain = (
                len(items) == 1 and items[0].form is Form.VALUE and not isinstance(items[0].data_type, t.ArrayType)
            )
            return Kind(t.ArrayType(items[0].data_type)) if is_plain else JSON
        data_type = _KINDS.get(f"{found['type']}-{logical}") or _KINDS.get(found["type"])
        return Kind(data_type) if data_type else JSON


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_no_number, inner))
