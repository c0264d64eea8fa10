"""
Records of Avro, as Confluent's serializers write them, by schemas of a real registry.

Runs in: pytest. Invariant: they are written by fastavro's writer, which the product does not use.
"""

from __future__ import annotations

import io
import json

import fastavro


class Subject:
    """A subject of the registry, and records that are written by its schemas."""

    def __init__(self, registry, name):
        self.registry, self.name, self.url = registry, name, registry.address

    def record(self, value, *fields, kind=None):
        """The record, by a schema with these fields (or of this kind), which is registered first."""
        schema = kind or {"type": "record", "name": "made", "fields": [named(*field) for field in fields]}
        number = self.registry.register(self.name, json.dumps(schema))
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
        return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def named(name, kind, logical=None, **more):
    """A field of a record."""
    return {"name": name, "type": kind if logical is None else {"type": kind, "logicalType": logical, **more}}
