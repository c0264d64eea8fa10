"""
A field of a schema goes only where its JSON is read as what it is, also within arrays, maps and unions.

Covers: sink.decoding.records_with_schemas.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal

import fastavro
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf import message_factory
from support.avro_records import named
from support.decoded_rows import write_records

from pgonce.sink.decoding import records_with_schemas
from pgonce.sink.decoding.avro_schema import AvroSchema
from pgonce.sink.decoding.protobuf_schema import ProtobufSchema

HEAD = b"\0\0\0\0\7"


@pytest.fixture
def url(url_with):
    """A database that has hstore."""
    return url_with("hstore")


@pytest.fixture
def write(url, monkeypatch):
    """Write the body of one record of this schema into table t; if it is refused, say why."""

    def run(schema, body, **options):
        class Registry:
            schema_id = SchemaId

            def schema(self, _):
                return schema

        monkeypatch.setattr(records_with_schemas, "registry_at", lambda _: Registry())
        given = {"decode": schema.form, "schema_registry_url": "http://registry", **options}
        return [letter.message for letter in write_records(url, [HEAD + body], **given)]

    return run


@pytest.fixture
def write_avro(write):
    """The same for a field of Avro."""

    def run(kind, value):
        schema, body = {"type": "record", "name": "made", "fields": [named("f", kind)]}, io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"f": value})
        return write(AvroSchema(json.dumps(schema)), body.getvalue())

    return run


def array(*items):
    """An array of a type of Avro's, or of a union of several."""
    return {"type": "array", "items": items[0] if len(items) == 1 else list(items)}


def mapped(values):
    """A map of a type of Avro's."""
    return {"type": "map", "values": values}


def record(**fields):
    """A record within another one."""
    return {"type": "record", "name": "inner", "fields": [named(*field) for field in fields.items()]}


LONG_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 1}
LONG = Decimal("9007199254740993.1")

UNSUITED = {
    "bytes in an array of a union": (array("bytes", "string"), [b"abcd"], "text[]"),
    "a long in an array of a union": (array("long", "double"), [2**53 + 1], "float8[]"),
    "a double in an array of a union": (array("null", "double", "string"), [0.1], "numeric[]"),
    "decimals": (array(LONG_DECIMAL), [LONG], "float8[]"),
    "arrays": (array(array("long")), [], "float8[]"),
    "records": (array(record(a="int")), [], "text[]"),
    "a record in a union": (["string", record(a="int")], "x", "text"),
    "bytes in a map": (mapped("bytes"), {"k": b"abcd"}, "ext.hstore"),
    "bytes in a map of a union": (mapped(["string", "bytes"]), {"k": b"abcd"}, "ext.hstore"),
    "bytes in a record": (record(a="string", b="bytes"), {"a": "x", "b": b"abcd"}, "ext.hstore"),
    "bytes in one map of two": ([record(a="string"), mapped("bytes")], {"k": b"abcd"}, "ext.hstore"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSUITED)
def test_a_field_that_may_become_another_value_is_refused(case, write_avro, create, stored):
    """Bytes as their base64, numbers without their last digits: whatever this record has."""
    kind, value, column = UNSUITED[case]
    create(f"f {column}")
    (message,) = write_avro(kind, value)
    assert message.startswith("Field 'f' is ")
    assert "in its schema, and column f is " in message
    assert stored() == []


SUITED = {
    "decimals": (array(LONG_DECIMAL), [LONG], "numeric[]", "{9007199254740993.1}"),
    "decimals of a scale": (array("null", LONG_DECIMAL), [LONG, None], "numeric(20,1)[]", "{9007199254740993.1,NULL}"),
    "a union of what suits": (array("int", "float"), [7, 0.5], "float8[]", "{7,0.5}"),
    "a map of texts": (mapped("string"), {"k": "v"}, "ext.hstore", '"k"=>"v"'),
    "a record of texts": (record(a="string", b=["null", "string"]), {"a": "x"}, "ext.hstore", '"a"=>"x", "b"=>NULL'),
    "anything for JSON": (array("bytes", mapped("long")), [b"abc", {"k": 1}], "jsonb", '["YWJj", {"k": 1}]'),
}  # fmt: skip


@pytest.mark.parametrize("case", SUITED)
def test_a_field_that_becomes_no_other_value_is_written(case, write_avro, create, stored):
    """With all its digits."""
    kind, value, column, expected = SUITED[case]
    create(f"f {column}")
    assert write_avro(kind, value) == []
    assert stored("f::text") == [(expected,)]


@pytest.mark.parametrize("column", ["float8[]", "numeric[]"])
def test_unsigned_numbers_of_protobuf_are_not_rounded(column, write, create, stored):
    """In an array as by themselves: a double has fewer digits."""
    create(f"f {column}")
    schema = ProtobufSchema('syntax = "proto3"; message M { repeated uint64 f = 1; }')
    made = message_factory.GetMessageClass(schema.message((0,))._root)  # noqa: SLF001 (its message)
    refused = write(schema, b"\0" + made(f=[2**53 + 1, 2**64 - 1]).SerializeToString())
    if column == "float8[]":
        assert refused == ["Field 'f' is numeric in its schema, and column f is double precision[]."]
    assert stored("f::text") == ([] if refused else [("{9007199254740993,18446744073709551615}",)])
