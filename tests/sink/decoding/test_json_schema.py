"""A JSON Schema says of which types the columns for its fields are; what it leaves open becomes jsonb."""

from __future__ import annotations

import json

import pytest
from support.decoded_rows import write_records

from pgonce.sink.decoding.json_schema import JsonSchema
from pgonce.sink.decoding.schemas import type_of

OTHER = {"definitions": {"money": {"type": "number"}, "price": {"$ref": "#/definitions/money"}}}
FIELDS = {
    "integer": ({"type": "integer"}, "bigint"),
    "number": ({"type": "number"}, "numeric"),
    "boolean": ({"type": "boolean"}, "boolean"),
    "string": ({"type": "string", "format": "uuid"}, "text"),
    "date": ({"type": "string", "format": "date"}, "date"),
    "instant": ({"type": "string", "format": "date-time"}, "timestamptz"),
    "bytes": ({"type": "string", "contentEncoding": "base64"}, "bytea"),
    "list": ({"type": "array", "items": {"type": "string"}}, "text[]"),
    "list of numbers": ({"type": "array", "items": {"type": "number"}}, "jsonb"),
    "list of lists": ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "jsonb"),
    "list of bytes": ({"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}, "jsonb"),
    "a tuple": ({"type": "array", "items": [{"type": "string"}]}, "jsonb"),
    "object": ({"type": "object", "properties": {"a": {"type": "string"}}}, "jsonb"),
    "nullable": ({"type": ["null", "integer"]}, "bigint"),
    "nullable by oneOf": ({"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]}, "date"),
    "one of two": ({"type": ["integer", "string"]}, "jsonb"),
    "anything": (True, "jsonb"),
    "referred": ({"$ref": "#/$defs/a~1b"}, "boolean"),
    "referred elsewhere": ({"$ref": "other.json#/definitions/price"}, "numeric"),
    "referred to nothing": ({"$ref": "#/$defs/none/at/all"}, "jsonb"),
    "within itself": ({"$ref": "#/$defs/tree"}, "jsonb"),
    "itself": ({"$ref": "#/$defs/self"}, "jsonb"),
}
DEFINITIONS = {
    "a/b": {"type": "boolean"},
    "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "string"}]},
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_has_the_type_that_its_schema_leaves_no_choice_about(case):
    """Or jsonb."""
    field, expected = FIELDS[case]
    text = json.dumps({"type": "object", "properties": {"f": field}, "$defs": DEFINITIONS})
    schema = JsonSchema(text, [("other.json", json.dumps(OTHER))])
    assert (schema.fields(), type_of(schema.kinds(["f"]))) == (["f"], expected)


def test_fields_are_found_in_all_parts_of_a_schema():
    """Those of an object that a reference leads to, and of each of several parts; a path leads into an object."""
    address = {"type": "object", "properties": {"zip": {"type": "string"}, "next": {"$ref": "#/definitions/address"}}}
    parts = [{"properties": {"id": {"type": "integer"}}}, {"$ref": "#/definitions/named"}]
    named = {"type": "object", "properties": {"name": {"type": "string"}, "at": {"$ref": "#/definitions/address"}}}
    schema = JsonSchema(json.dumps({"allOf": parts, "definitions": {"address": address, "named": named}}))
    assert schema.fields() == ["id", "name", "at"]
    assert type_of(schema.kinds(["at", "next", "next", "zip"])) == "text"
    assert schema.kinds(["at", "street"]) == []


@pytest.mark.kafka
def test_a_table_is_created_and_widened_by_a_subject(schema_registry, url, stored):
    """Of JSON Schema: the records behind its number are decoded for the columns that it names."""
    name = "json-schema-value"
    options = {"schema_registry_url": schema_registry.address, "schema_subjects": [name], "create_table": True}
    options |= {"schema_evolution": "addColumns", "columns": {"zip": "address.zip"}, "mode": "upsert", "keys": ["id"]}

    def write(fields, record):
        address = {"type": "object", "properties": {"zip": {"type": "string"}}}
        schema = {"type": "object", "properties": {"id": {"type": "integer"}, "address": address, **fields}}
        number = schema_registry.register(name, json.dumps(schema), "JSON")
        return write_records(url, [b"\0" + number.to_bytes(4, "big") + json.dumps(record).encode()], **options)

    price = {"price": {"type": ["null", "number"]}}
    assert write(price, {"id": 1, "address": {"zip": "1010"}, "price": 12.50}) == []
    assert write(price | {"at": {"type": "string", "format": "date"}}, {"id": 2, "at": "2026-01-31"}) == []
    (letter,) = write(price, {"id": "x"})
    assert letter.column_name == "id"
    assert stored("id, zip, price::text, at::text") == [(1, "1010", "12.5", None), (2, None, None, "2026-01-31")]
    types = "pg_typeof(id)::text, pg_typeof(zip)::text, pg_typeof(price)::text, pg_typeof(at)::text"
    assert stored(f"DISTINCT {types}") == [("bigint", "text", "numeric", "date")]
