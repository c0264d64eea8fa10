"""
A record of Protobuf becomes the row that its schema and the table say, or is refused with the reason.

Covers: sink.decoding.protobuf_schema.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from support.decoded_rows import write_records

pytestmark = pytest.mark.kafka

AT = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
SCHEMA = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
enum Color { NONE = 0; RED = 1; }
message Other { int64 id = 1; }
message Order {
  message Line { string what = 1; }
  int64 id = 1;
  int32 i = 2;
  uint64 u = 3;
  bool ok = 4;
  float r = 5;
  double d = 6;
  string s = 7;
  bytes b = 8;
  Color color = 9;
  google.protobuf.Timestamp at = 10;
  google.protobuf.Int64Value wrapped = 11;
  google.protobuf.Duration took = 12;
  google.protobuf.Struct more = 13;
  Line line = 14;
  repeated int32 numbers = 15;
  repeated Line lines = 16;
  map<string, int32> counts = 17;
  optional int32 set = 18;
  oneof one { string left = 19; string right = 20; }
}
"""
ORDER, OTHER, LINE = b"\x02\x02", b"\0", b"\x04\x02\0"


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """The classes of these messages, which protoc makes."""
    folder = tmp_path_factory.mktemp("proto")
    (folder / "made.proto").write_text(SCHEMA)
    out, include = folder / "made.bin", f"{protoc.__file__.rpartition('/')[0]}/_proto"
    given = ["protoc", f"-I{folder}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}", "made.proto"]
    assert protoc.main(given) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for name in ("Order", "Other", "Order.Line")
    }


@pytest.fixture
def head(schema_registry):
    """What stands in front of records of this schema."""
    return b"\0" + schema_registry.register("shop-value", SCHEMA, "PROTOBUF").to_bytes(4, "big")


@pytest.fixture
def write(url, schema_registry):
    """Write records into table t; those that are refused are given back."""

    def run(*values, **options):
        return write_records(url, values, decode="protobuf", schema_registry_url=schema_registry.address, **options)

    return run


def full(order):
    """An order with every field."""
    made = order(id=2**63 - 1, i=-7, u=2**64 - 1, ok=True, r=0.5, d=0.1, s="ä", b=b"\0\xff", color="RED")
    made.at.FromDatetime(AT)
    made.wrapped.value, made.line.what, made.set, made.right = 0, "x", 0, "r"
    made.took.FromMilliseconds(1500)
    made.more.update({"a": [1, None]})
    made.numbers.extend([1, 2])
    made.lines.add(what="y")
    made.counts["k"] = 3
    return made.SerializeToString()


def test_fields_arrive_as_they_were_written(classes, head, write, create, stored):
    """Those that are not set are null, or have Protobuf's default where it cannot tell."""
    create("""id bigint, i integer, u numeric, ok boolean, r real, d double precision, s text, b bytea, color text,
        at timestamptz, wrapped bigint, took interval, more jsonb, line jsonb, numbers int[], lines jsonb, counts jsonb,
        "set" int, "left" text, "right" text""")
    assert write(head + ORDER + full(classes["Order"]), head + ORDER) == []
    empty, row = stored()
    assert row == (
        *(2**63 - 1, -7, Decimal(2**64 - 1), True, 0.5, 0.1, "ä", b"\0\xff", "RED", AT, 0),
        *(dt.timedelta(seconds=1.5), {"a": [1, None]}, {"what": "x"}, [1, 2], [{"what": "y"}], {"k": 3}, 0, None, "r"),
    )
    assert empty == (0, 0, 0, False, 0.0, 0.0, "", b"", "NONE", *[None] * 5, [], [], {}, None, None, None)


def test_a_record_says_which_message_it_is(classes, head, write, create, stored):
    """By its place in the schema, also within another message."""
    create("id bigint, what text")
    assert write(head + OTHER + classes["Other"](id=5).SerializeToString()) == []
    assert write(head + b"\x02\0" + classes["Other"](id=6).SerializeToString()) == []
    assert write(head + LINE + classes["Order.Line"](what="x").SerializeToString()) == []
    assert stored() == [(5, None), (6, None), (None, "x")]


def test_records_that_cannot_be_read_are_refused_one_by_one(classes, head, write, create, stored):
    """Each with its reason; the others are written."""
    create("id bigint")
    order = classes["Order"]
    fine = order(id=1)
    fine.at.nanos = 1
    bad = {
        head: "does not begin with the numbers of a schema and a message",
        head + b"\x01": "does not begin with the numbers of a schema and a message",
        head + b"\x02\x01": "has no message",
        head + b"\x02\x08": "has no message",
        head + ORDER + b"\xff": "DecodeError",
        head + OTHER + b"\x10\x01": "a field that its schema lacks",
        head + ORDER + fine.SerializeToString(): "nanoseconds",
        head + ORDER + order(id=1, d=math.nan).SerializeToString(): "not a number",
    }
    letters = write(head + OTHER + classes["Other"](id=5).SerializeToString(), *bad, schema_evolution="ignoreExtra")
    assert [letter.place[2] for letter in letters] == list(range(1, 9))
    assert [why in letter.message for why, letter in zip(bad.values(), letters, strict=True)] == [True] * len(bad)
    assert stored() == [(5,)]


def test_bytes_are_no_text(classes, head, write, create):
    """What JSON could carry, and the column would take for something else."""
    create("id bigint, b text, u bigint")
    (letter,) = write(head + ORDER + full(classes["Order"]), schema_evolution="ignoreExtra")
    assert (letter.column_name, "binary" in letter.message) == ("b", True)


def test_a_table_is_created_by_the_first_message(head, write, stored):
    """With the types of its fields."""
    options = {"create_table": True, "schema_subjects": ["shop-value"]}
    assert write(head + OTHER + b"\x08\x05", **options) == []
    assert stored() == [(5,)]
    assert stored("pg_typeof(id)::text") == [("bigint",)]


@pytest.mark.parametrize("name", ["../outside.proto", "/outside.proto"])
def test_a_schema_cannot_write_outside_of_its_directory(name, tmp_path, monkeypatch):
    """Whatever a registry calls those that it imports."""
    from pgonce.sink.decoding.protobuf_schema import ProtobufSchema

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="leads out"):
        ProtobufSchema('syntax = "proto3";', [(name, 'syntax = "proto3";')])


EXTENDED = """syntax = "proto2";
message M { optional int64 id = 1; extensions 100 to 200; }
extend M { optional int32 extra = 100; }
"""


def test_extensions_are_not_lost(schema_registry, write, create):
    """A message that may have them is refused."""
    create("id bigint")
    number = schema_registry.register("extended", EXTENDED, "PROTOBUF")
    (letter,) = write(b"\0" + number.to_bytes(4, "big") + b"\0\x08\1\xa0\x06\7")
    assert "extensions" in letter.message


@pytest.mark.parametrize("index", [b"\2\xfe" + b"\xff" * 11 + b"\2", b"\xff" * 100_000], ids=["large", "endless"])
def test_a_place_that_no_message_has_is_refused(index, head, write, create):
    """At once."""
    create("id bigint")
    (letter,) = write(head + index + b"\x08\1")
    assert "does not begin with" in letter.message or "has no message" in letter.message


def test_what_is_within_a_type_of_googles_is_read_whole(classes, head, write, create):
    """An unknown field of a wrapper, and the nanoseconds of a duration, are refused."""
    create("id bigint")
    fine = classes["Order"](id=1)
    fine.took.nanos = 1
    (unknown, nanos) = write(
        head + ORDER + b"\x08\1\x5a\2\x10\1", head + ORDER + fine.SerializeToString(), schema_evolution="ignoreExtra"
    )
    assert ("schema lacks" in unknown.message, "nanoseconds" in nanos.message) == (True, True)


MAPS = """syntax = "proto3";
message M {
  message Inner { bytes b = 1; }
  int64 id = 1;
  map<string, bytes> blobs = 2;
  map<string, double> ratios = 3;
  map<string, Inner> inner = 4;
  map<string, int64> counts = 5;
}
"""
IN_MAPS = {
    "bytes": (b"\x12\x07\x0a\x01k\x12\x02\0\xff", "blobs.k", "text", "binary"),
    "a double": (b"\x1a\x0c\x0a\x01k\x11" + struct.pack("<d", 0.5), "ratios.k", "numeric", "double"),
    "bytes in a message": (b"\x22\x09\x0a\x01k\x12\x04\x0a\x02\0\xff", "inner.k.b", "text", "binary"),
    "a number": (b"\x2a\x05\x0a\x01k\x10\x07", "counts.k", "bigint", None),
}


@pytest.mark.parametrize("case", IN_MAPS)
def test_a_path_into_a_map_is_checked_by_the_type_of_its_values(case, schema_registry, write, create, stored):
    """As any other field is; what suits its column is written."""
    record, path, column, kind = IN_MAPS[case]
    create(f"id bigint, f {column}")
    head = b"\0" + schema_registry.register("maps", MAPS, "PROTOBUF").to_bytes(4, "big") + b"\0"
    letters = write(head + record, columns={"f": path}, schema_evolution="ignoreExtra")
    assert all(f"Field {path!r} is {kind} in its schema" in letter.message for letter in letters)
    assert (len(letters), stored()) == ((1, []) if kind else (0, [(0, 7)]))
