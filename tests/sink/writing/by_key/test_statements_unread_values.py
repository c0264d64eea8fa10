"""
The placeholder of a value that the source could not read is known in every form in which Debezium sends it.

Covers: sink.writing.by_key.unread_value.
"""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from pyspark.sql import types as t
from support.applied_changes import WRITE, apply, changes
from support.with_rooms import look_at_table

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import Existing, destination

UNREAD = "__debezium_unavailable_value"
AS_MAP = json.dumps({UNREAD: UNREAD}, separators=(",", ":"))
NUMBERS = list(UNREAD.encode())
MAP = t.MapType(t.StringType(), t.StringType())
FORMS = {
    "text": (t.StringType(), "text", "large", UNREAD, "large"),
    "hstore as JSON": (t.StringType(), "jsonb", '{"a": "b"}', AS_MAP, {"a": "b"}),
    "hstore as a map": (MAP, "jsonb", [("a", "b")], [(UNREAD, UNREAD)], {"a": "b"}),
    "bytea": (t.BinaryType(), "bytea", b"large", UNREAD.encode(), b"large"),
    "text[]": (t.ArrayType(t.StringType()), "text[]", ["large"], [UNREAD], ["large"]),
    "bytea[]": (t.ArrayType(t.BinaryType()), "bytea[]", [b"large"], [UNREAD.encode()], [b"large"]),
    "int[]": (t.ArrayType(t.IntegerType()), "int[]", [1], NUMBERS, [1]),
    "bigint[]": (t.ArrayType(t.LongType()), "bigint[]", [1], NUMBERS, [1]),
}


@pytest.mark.parametrize("only_newer", [False, True])
def test_the_stored_value_stays(only_newer, url, admin):
    """Whatever type the column has, the placeholder does not overwrite what is stored."""
    for form, (spark_type, postgres_type, value, placeholder, kept) in FORMS.items():
        admin.execute("DROP TABLE IF EXISTS events")
        admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, large {postgres_type}, seq bigint)".encode())
        struct = changes(id=t.LongType(), large=spark_type, seq=t.LongType())
        how = {"struct": struct, "keep_where": UNREAD, "only_newer": only_newer}
        assert apply(url, (1, value, 1, WRITE), **how) == {"written": 1}
        assert apply(url, (1, placeholder, 2, WRITE), **how) == {"written": 1}
        assert (form, admin.execute("SELECT * FROM events", prepare=False).fetchall()) == (form, [(1, kept, 2)])


def test_values_that_only_look_like_the_placeholder_are_written(url, admin):
    """An array that has it among others, or an object that has it as a value, is a value."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, tags text[], doc jsonb, seq bigint)")
    struct = changes(id=t.LongType(), tags=t.ArrayType(t.StringType()), doc=t.StringType(), seq=t.LongType())
    how = {"struct": struct, "keep_where": UNREAD}
    doc = {"name": UNREAD}
    apply(url, (1, ["a"], "{}", 1, WRITE), **how)
    apply(url, (1, ["a", UNREAD], json.dumps(doc), 2, WRITE), **how)
    assert admin.execute("TABLE events").fetchall() == [(1, ["a", UNREAD], doc, 2)]


def test_uuids_are_made_as_java_makes_them(url, admin):
    """A column of type uuid[] comes as texts, and its placeholder is one UUID of the text's bytes."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, ids uuid[], seq bigint)")
    struct = changes(id=t.LongType(), ids=t.ArrayType(t.StringType()), seq=t.LongType())
    kept = UUID("12345678-1234-5678-1234-567812345678")
    how = {"struct": struct, "keep_where": "hello"}
    apply(url, (1, [str(kept)], 1, WRITE), **how)
    # MD5 of "hello" is 5d41402abc4b2a76b9719d911017c592; a UUID of version 3 has some bits of its own.
    apply(url, (1, ["5d41402a-bc4b-3a76-b971-9d911017c592"], 2, WRITE), **how)
    assert admin.execute("TABLE events").fetchall() == [(1, [kept], 2)]


def test_an_array_without_elements_is_a_value(url, admin):
    """Also where the placeholder is the empty string, whose bytes are none."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, few int[], many bigint[], name text, seq bigint)")
    arrays = {"few": t.ArrayType(t.IntegerType()), "many": t.ArrayType(t.LongType())}
    how = {"struct": changes(id=t.LongType(), **arrays, name=t.StringType(), seq=t.LongType()), "keep_where": ""}
    apply(url, (1, [1], [2], "kept", 1, WRITE), **how)
    apply(url, (1, [], [], "", 2, WRITE), **how)
    assert admin.execute("SELECT few, many, name FROM events").fetchall() == [([], [], "kept")]


@pytest.mark.parametrize(
    ("spark_type", "postgres_type"),
    [
        (t.DateType(), "date"), (t.DecimalType(20, 2), "numeric"), (t.DoubleType(), "double precision"),
        (t.FloatType(), "real"), (t.ShortType(), "smallint"), (t.BooleanType(), "boolean"),
        (t.TimestampType(), "timestamptz"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["apply", "upsert"])
def test_an_array_whose_placeholder_looks_like_a_value_is_refused(mode, spark_type, postgres_type, url, admin):
    """Before the first row, because the bytes of the text as dates or numbers would overwrite what is stored."""
    admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, large {postgres_type}[])".encode())
    how = destination("events", mode, keep_where=UNREAD, **({"delete_when": "gone"} if mode == "apply" else {}))
    columns = encoded_columns(changes(id=t.LongType(), large=t.ArrayType(spark_type)))
    with pytest.raises(TargetError, match=r"\[VALUE_NOT_READ\]") as refused:
        look_at_table(admin, how, columns if mode == "apply" else columns[:2])
    assert "REPLICA IDENTITY FULL" in refused.value.remedy
    look_at_table(admin, replace(how, existing=Existing()), columns if mode == "apply" else columns[:2])


@pytest.mark.parametrize("name", ["geometry", "geography"])
def test_a_shape_is_refused_too(name, url, admin):
    """Its placeholder comes in a form that depends on how the frame makes a shape of it."""
    admin.execute(f"CREATE TYPE {name} AS ENUM ('a')".encode())
    admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, large {name})".encode())
    columns = encoded_columns(changes(id=t.LongType(), large=t.StringType()))
    with pytest.raises(TargetError, match="VALUE_NOT_READ"):
        look_at_table(admin, destination("events", "apply", delete_when="gone", keep_where=UNREAD), columns)
