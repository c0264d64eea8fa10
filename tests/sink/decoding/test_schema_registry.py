"""
A record of Avro becomes the row that its schema and the table say, or is refused with the reason.

Covers: sink.decoding.avro_schema.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import uuid
from decimal import Decimal

import fastavro
import psycopg
import pytest
from support.avro_records import Subject, named
from support.decoded_rows import where_records_go, write_records

from pgonce.offsets_store.errors import ConfigurationError, TargetError
from pgonce.sink.decoding.avro_schema import AvroSchema
from pgonce.sink.decoding.schema_registry import SchemaRegistry, registry_at
from pgonce.sink.errors import EncodingError
from pgonce.sink.writing.bad_rows.recalled_destination import UNTOLD, recalled
from pgonce.sink.writing.recorded_destination import recorded

pytestmark = pytest.mark.kafka

UTC = dt.timezone.utc
AT = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def subject(schema_registry, request):
    """One that is new."""
    return Subject(schema_registry, f"{request.node.originalname}-{uuid.uuid4()}")


@pytest.fixture
def write(url, subject):
    """Write records into table t; those that are refused are given back."""

    def run(*values, **options):
        return write_records(url, values, decode="avro", schema_registry_url=subject.url, **options)

    return run


# The fields as they are written, the column, and what it has.
FIELDS = {
    "a long": (named("f", "long"), 2**63 - 1, "bigint", 2**63 - 1),
    "an int": (named("f", "int"), -7, "smallint", -7),
    "a boolean": (named("f", "boolean"), True, "boolean", True),
    "a double": (named("f", "double"), 0.1, "double precision", 0.1),
    "a float": (named("f", "float"), 0.5, "real", 0.5),
    "a float in a double": (named("f", "float"), 0.5, "double precision", 0.5),
    "an int in a double": (named("f", "int"), 2**31 - 1, "double precision", 2.0**31 - 1),
    "a string": (named("f", "string"), "ä\n", "varchar(2)", "ä\n"),
    "an enum": (named("f", {"type": "enum", "name": "e", "symbols": ["A", "B"]}), "B", "text", "B"),
    "bytes": (named("f", "bytes"), b"\0\xff", "bytea", b"\0\xff"),
    "fixed": (named("f", {"type": "fixed", "name": "x", "size": 2}), b"ab", "bytea", b"ab"),
    "null": (named("f", ["null", "long"]), None, "bigint", None),
    "a date": (named("f", "int", "date"), dt.date(1969, 12, 31), "date", dt.date(1969, 12, 31)),
    "a time": (named("f", "long", "time-micros"), dt.time(1, 2, 3, 4), "time", dt.time(1, 2, 3, 4)),
    "micros": (named("f", "long", "timestamp-micros"), AT, "timestamptz", AT),
    "millis": (named("f", "long", "timestamp-millis"), AT, "timestamptz", AT.replace(microsecond=123000)),
    "local micros": (
        named("f", "long", "local-timestamp-micros"), AT.replace(tzinfo=None), "timestamp", AT.replace(tzinfo=None),
    ),
    "a decimal": (
        named("f", "bytes", "decimal", precision=64, scale=10), Decimal("-1.0000000001"), "numeric",
        Decimal("-1.0000000001"),
    ),
    "a decimal of a scale": (
        named("f", "bytes", "decimal", precision=9, scale=2), Decimal("12.50"), "numeric(9,2)", Decimal("12.50"),
    ),
    "a uuid": (named("f", "string", "uuid"), uuid.UUID(int=7), "uuid", uuid.UUID(int=7)),
    "an array": (named("f", {"type": "array", "items": "long"}), [1, 2**60], "bigint[]", [1, 2**60]),
    "a union": (named("f", ["null", "long", "string"]), "x", "text", "x"),
    "a record": (
        named("f", {"type": "record", "name": "r", "fields": [named("a", "bytes", "decimal", precision=30, scale=1)]}),
        {"a": Decimal("9007199254740993.1")}, "jsonb", {"a": 9007199254740993.1},
    ),
    "a map": (named("f", {"type": "map", "values": "string"}), {"k": "v"}, "jsonb", {"k": "v"}),
}  # fmt: skip


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_arrives_as_it_was_written(case, subject, write, create, stored):
    """With all its digits, and a time as what its schema says that it is."""
    field, value, column, expected = FIELDS[case]
    create(f"id int, f {column}")
    schema = {"type": "record", "name": "made", "fields": [named("id", "int"), field]}
    assert write(subject.record({"id": 1, "f": value}, kind=schema)) == []
    assert stored() == [(1, expected)]


UNSUITED = {
    "bytes for a text": (named("f", "bytes"), b"abcd", "text", "binary"),
    "a text for bytes": (named("f", "string"), "abcd", "bytea", "string"),
    "a double for a numeric": (named("f", "double"), 0.5, "numeric", "double"),
    "a double for a real": (named("f", "double"), 0.5, "real", "double"),
    "a long for a double": (named("f", "long"), 1, "double precision", "bigint"),
    "bytes in an array": (named("f", {"type": "array", "items": "bytes"}), [b"abcd"], "text[]", "array"),
    "bytes in a union": (named("f", ["null", "bytes", "string"]), "abcd", "text", "binary"),
}


@pytest.mark.parametrize("case", UNSUITED)
def test_a_field_that_would_become_another_value_is_refused(case, subject, write, create, stored):
    """The record has a value that JSON could carry, and that the column would take for something else."""
    field, value, column, kind = UNSUITED[case]
    create(f"id int, f {column}")
    schema = {"type": "record", "name": "made", "fields": [named("id", "int"), field]}
    (letter,) = write(subject.record({"id": 1, "f": value}, kind=schema), subject.record({"id": 2}, ("id", "int")))
    assert (letter.column_name, letter.place) == ("f", ("t", 0, 0))
    assert f"Field 'f' is {kind}" in letter.message
    assert stored("id") == [(2,)]


def test_records_that_cannot_be_read_are_refused_one_by_one(subject, write, create, stored):
    """Each with its reason; the others are written."""
    create("id bigint, ratio double precision")
    fields = ("id", "long"), ("ratio", ["null", "double"])
    good, none = (subject.record({"id": number, "ratio": None}, *fields) for number in (1, 2))
    nan = subject.record({"id": 3, "ratio": math.nan}, *fields)
    infinite = subject.record({"id": 3, "ratio": -math.inf}, *fields)
    unknown = b"\0" + (9999).to_bytes(4, "big") + good[5:]
    bad = [b'{"id":1}', b"", good[:4], unknown, good[:6], good + b"\0", nan, infinite]
    letters = write(good, *bad, none)
    assert stored("id") == [(1,), (2,)]
    whys = ["does not begin with"] * 3 + ["9999 is not in the registry", "does not fit", "1 bytes follow"]
    whys += ["not a number or infinite"] * 2
    assert [letter.place[2] for letter in letters] == list(range(1, 9))
    assert [why in letter.message for why, letter in zip(whys, letters, strict=True)] == [True] * 8


def test_a_new_version_adds_its_column(subject, write, create, stored):
    """Without a new start: the registry is asked for the subject's versions at each batch."""
    create("id int PRIMARY KEY")
    evolves = {"schema_evolution": "addColumns", "schema_subjects": [subject.name]}
    first = subject.record({"id": 1}, ("id", "int"))
    assert write(first, **evolves) == []
    amount = named("amount", "bytes", "decimal", precision=64, scale=2)
    schema = {"type": "record", "name": "made", "fields": [named("id", "int"), amount, named("at", ["null", "string"])]}
    newer = subject.record({"id": 2, "amount": Decimal("1.50"), "at": "x"}, kind=schema)
    assert write(first.replace(b"\x02", b"\x08"), newer, **evolves) == []
    assert stored() == [(1, None, None), (2, Decimal("1.50"), "x"), (4, None, None)]
    assert stored("DISTINCT pg_typeof(amount)::text, pg_typeof(at)::text") == [("numeric", "text")]


def test_each_record_is_read_by_the_schema_that_it_names(subject, write, create, stored):
    """Whatever stood before it in the batch: the same schema, another one, or a number that the registry lacks."""
    create("id int, a int, b int")
    schemas = (("id", "int"), ("a", "int")), (("id", "int"), ("b", "int"))
    order = (0, 0, 1, 0, 1, 1)
    records = [subject.record({"id": n, "ab"[one]: 7}, *schemas[one]) for n, one in enumerate(order)]
    unknown = records[3][:1] + b"\x7f\xff\xff\xff" + records[3][5:]
    (letter,) = write(*records[:3], unknown, *records[3:])
    assert "not in the registry" in letter.message
    assert stored() == [(n, *((7, None), (None, 7))[one]) for n, one in enumerate(order)]


def test_a_new_field_without_addcolumns_is_refused_with_the_statement_that_fits(subject, write, create, stored):
    """Or passed over."""
    create("id int")
    record = subject.record({"id": 1, "at": AT}, ("id", "int"), ("at", "long", "timestamp-micros"))
    with pytest.raises(TargetError, match='COLUMN_UNKNOWN.*ALTER TABLE .* ADD COLUMN "at" timestamptz'):
        write(record)
    assert write(record, schema_evolution="ignoreExtra") == []
    assert stored() == [(1,)]


def test_a_table_is_created_by_the_subject(subject, write, stored, url):
    """With the types of its fields, paths and columns of Kafka's own among them."""
    inner = {"type": "record", "name": "inner", "fields": [named("id", "long")]}
    schema = {
        "type": "record",
        "name": "made",
        "fields": [named("id", "int"), named("customer", inner), named("tags", {"type": "array", "items": "string"}),
                   named("more", {"type": "map", "values": "long"}), named("at", "long", "timestamp-millis")],
    }  # fmt: skip
    value = {"id": 1, "customer": {"id": 5}, "tags": ["a"], "more": {"k": 1}, "at": AT}
    options = {"mode": "upsert", "keys": ["id"], "create_table": True, "schema_subjects": [subject.name]}
    options |= {"columns": {"customer_id": "customer.id"}, "kafka_columns": {"place": "offset"}}
    write(subject.record(value, kind=schema), **options)
    columns = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass"
    with psycopg.connect(url) as connection:
        types = dict(connection.execute(f"{columns} AND attnum > 0").fetchall())
    assert types == {
        "id": "integer",
        "customer_id": "bigint",
        "tags": "text[]",
        "more": "jsonb",
        "at": "timestamp with time zone",
        "place": "bigint",
    }
    assert stored("id, customer_id, tags, more, place") == [(1, 5, ["a"], {"k": 1}, 0)]


def test_a_schema_may_refer_to_others(schema_registry, subject, write, create, stored):
    """They are asked for, too."""
    create("id int, owner jsonb")
    owner = {"type": "record", "name": "people.owner", "fields": [named("name", "string")]}
    schema_registry.register(f"{subject.name}-owner", json.dumps(owner))
    schema = {"type": "record", "name": "made", "fields": [named("id", "int"), named("owner", "people.owner")]}
    refers = [{"name": "people.owner", "subject": f"{subject.name}-owner", "version": 1}]
    number = schema_registry.register(subject.name, json.dumps(schema), references=refers)
    body, named_schemas = io.BytesIO(), {}
    fastavro.parse_schema(owner, named_schemas)
    parsed = fastavro.parse_schema(schema, named_schemas)
    fastavro.schemaless_writer(body, parsed, {"id": 1, "owner": {"name": "Ann"}})
    write(b"\0" + number.to_bytes(4, "big") + body.getvalue())
    assert stored() == [(1, {"name": "Ann"})]


@pytest.mark.parametrize("is_record", [True, False], ids=["of a record", "of a single value"])
def test_a_record_without_a_value_deletes_by_its_key_in_avro(is_record, subject, write, create, stored):
    """The key may be a record that has the column, or its value alone."""
    create("id bigint PRIMARY KEY, name text")
    values = [subject.record({"id": n, "name": "a"}, ("id", "long"), ("name", "string")) for n in (1, 2)]
    keys = Subject(subject.registry, f"{subject.name}-key")
    key = keys.record({"id": 1}, ("id", "long")) if is_record else keys.record(1, kind="long")
    options = {"mode": "apply", "keys": ["id"], "decode_key": "avro"}
    assert write(*values, None, record_keys=[None, None, key], **options) == []
    assert stored() == [(2, "a")]
    (letter,) = write(None, record_keys=[b"1"], **options)
    assert letter.message == "Its key does not begin with the number of a schema."


def test_json_may_have_the_number_of_a_schema_in_front(url, schema_registry, create, stored):
    """As Confluent's serializer for JSON Schema writes it; what it says is read as other JSON is."""
    create("id int")
    records = b'\0\0\0\0\x07{"id": 1}', b'{"id": 2}'
    (letter,) = write_records(url, records, schema_registry_url=schema_registry.address)
    assert (letter.place, letter.message) == (("t", 0, 1), "Its value does not begin with the number of a schema.")
    assert stored() == [(1,)]


def test_a_registry_that_does_not_answer_stops_the_batch(url, create):
    """No record is taken for a bad one, and no password is shown."""
    create("id int")
    nowhere = "http://ann:secret@127.0.0.1:1?max.retries=1&retries.wait.ms=1"
    with pytest.raises(EncodingError) as caught:
        write_records(url, [b"\0\0\0\0\x01\x02"], decode="avro", schema_registry_url=nowhere)
    assert (caught.value.code, "127.0.0.1:1 does not answer" in str(caught.value)) == ("REGISTRY_UNREACHABLE", True)
    assert "secret" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "http://ann:secret@r?max.retries=often",
        "http://r?ssl.ca.location=/no/such",
        "http://r?a=b",
        "http://ann:a/secret@r",
        "http://ann:a?secret@r",
        "https://u:[secret]@r",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url):
    """And a password in it is not shown."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION") as caught:
        SchemaRegistry(url)
    assert "secret" not in str(caught.value)


def test_a_subject_that_says_no_columns_is_refused(schema_registry, subject):
    """It is not there, is none of Avro, or has no fields."""
    found = registry_at(schema_registry.address)
    with pytest.raises(ConfigurationError, match="no subject"):
        found.versions("none-such", "avro")
    schema_registry.register(subject.name, '{"type": "object", "properties": {}}', "JSON")
    for form in ("avro", "json"):
        with pytest.raises(ConfigurationError, match=f"without fields, or one that is none of {form}"):
            found.versions(subject.name, form)


@pytest.mark.parametrize(
    "field",
    [
        {"name": "next", "type": ["null", "made"]},
        {"name": "all", "type": {"type": "array", "items": "null"}},
        {"name": "all", "type": {"type": "array", "items": {"type": "record", "name": "empty", "fields": []}}},
        {"name": "next", "type": {"type": "error", "name": "e", "fields": [named("e", ["null", "e"])]}},
        {"name": "all", "type": {"type": "array", "items": {"type": "error", "name": "empty", "fields": []}}},
    ],
    ids=["recursive", "of nulls", "of empty records", "a recursive error", "of empty errors"],
)
def test_a_schema_that_a_few_bytes_make_endless_is_refused(field, subject, write, create, stored):
    """Its records are bad ones; its reader would crash, or count to any number."""
    create("id int")
    schema = {"type": "record", "name": "made", "fields": [named("id", "int"), field]}
    number = subject.registry.register(subject.name, json.dumps(schema))
    (letter,) = write(b"\0" + number.to_bytes(4, "big") + b"\2\2" * 6000, schema_evolution="ignoreExtra")
    assert letter.message == f"Its schema {number} cannot be read."


def test_a_schema_within_itself_cannot_hide():
    """Behind fastavro's own mark that a schema was parsed before, or a name that two schemas define."""

    def record(name, *fields):
        return {"type": "record", "name": name, "fields": list(fields)}

    fine = fastavro.parse_schema(record("made", named("x", record("inner", named("y", "int")))))
    assert AvroSchema(json.dumps(fine)).fields(["x"]) == ["y"]
    inner = record("inner", named("x", ["null", "inner"]))
    marked = record("made", named("x", ["null", "inner"])) | {"__fastavro_parsed": True}
    with pytest.raises(ValueError, match="inner"):
        AvroSchema(json.dumps(marked | {"__named_schemas": {"inner": inner}}))
    one, other, again = record("a", named("x", "int")), record("b", named("x", "a")), record("a", named("x", "b"))
    with pytest.raises(ValueError, match="cycle"):
        AvroSchema(json.dumps(again), [json.dumps(one), json.dumps(other)])


def test_a_type_may_be_used_twice(subject, write, create, stored):
    """That makes no schema recursive."""
    create("a jsonb, b jsonb")
    inner = {"type": "record", "name": "inner", "fields": [named("x", "int")]}
    schema = {"type": "record", "name": "made", "fields": [named("a", inner), named("b", ["null", "inner"])]}
    assert write(subject.record({"a": {"x": 1}, "b": {"x": 2}}, kind=schema)) == []
    assert stored() == [({"x": 1}, {"x": 2})]


def test_a_decimal_has_more_digits_than_its_schema_says(subject, write, create, stored):
    """A producer may write them, and none is rounded."""
    create("f numeric")
    schema = {"type": "record", "name": "made", "fields": [named("f", "bytes", "decimal", precision=4, scale=2)]}
    number = subject.registry.register(subject.name, json.dumps(schema))
    head = b"\0" + number.to_bytes(4, "big")
    long = (1 << 14_000).to_bytes(2000, "big")
    assert write(head + b"\x08" + (12345678).to_bytes(4, "big")) == []
    assert write(head + b"\xa0\x1f" + long) == []
    assert stored("f < 200000, length(f::text) > 4000") == [(False, True), (True, False)]
    (letter,) = write(head + b"\xc0\x9a\x0c" + bytes(100_000))
    assert "too many digits" in letter.message


@pytest.mark.parametrize("begin", [b"\1" * 20, b"\0\xff\xff\xff\xff" + b"\2" * 20], ids=["a guid", "a large number"])
def test_bytes_that_look_like_a_number_ask_nothing_that_the_registry_does_not_know(begin, write, create):
    """They are a bad record, and no error of the registry."""
    create("id int")
    (letter,) = write(begin)
    assert letter.code == "RECORD_UNDECODED"


def test_a_column_of_a_subject_may_not_have_a_name_of_ours(subject, write):
    """Before a row moves."""
    subject.record({"pgonce_refused": 1}, ("pgonce_refused", "int"))
    with pytest.raises(TargetError, match="COLUMN_TWICE"):
        write(create_table=True, schema_subjects=[subject.name])


def test_a_letter_has_no_login():
    """It says that a registry knows the schema, and a replay is told which."""
    where = where_records_go(table="t", decode="avro", schema_registry_url="http://ann:secret@registry")
    text = json.dumps(recorded(where, []))
    found, _ = recalled(json.loads(text) | {"columns": [{"name": "id", "type": "long"}]})
    assert (found.decoding.registry_url, "secret" in text + repr(where)) == (UNTOLD, False)
