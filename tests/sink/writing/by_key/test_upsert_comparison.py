"""Keys are told apart as the target table tells them apart, whichever way the rows come."""

from __future__ import annotations

import itertools

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes
from support.sent_rows import publish
from support.typed_rows import struct_of

import pgonce.sink.writing.by_key.upsert

STRUCT = struct_of({"region": t.StringType(), "amount": t.IntegerType(), "note": t.StringType()})
CI = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
# Rows of three keys, as the table calls them equal, and what must be left of them.
PADDED = [("a", 1, "old"), ("a  ", 2, "new"), ("b ", 5, "new"), ("b", 4, "old"), ("c", 1, "only")]
PADDED_LEFT = [("a", 2, "new"), ("b", 5, "new"), ("c", 1, "only")]
CASED = [("a", 1, "old"), ("A", 2, "new"), ("B", 5, "new"), ("b", 4, "old"), ("c", 1, "only")]


def execute(url, query):
    """Run SQL, and commit it; its rows, if it has any."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize(
    "ddl",
    [
        "region char(5) PRIMARY KEY, amount int, note text",
        "region varchar(1) PRIMARY KEY, amount int, note text",
        "region bpchar PRIMARY KEY, amount bigint, note varchar(9)",
        "region one PRIMARY KEY, amount int, note text",
        "region varchar(1), amount int, note text, UNIQUE NULLS NOT DISTINCT (region)",
        "region char(5) PRIMARY KEY, amount int, note text) PARTITION BY LIST (region);"
        "CREATE TABLE part PARTITION OF events DEFAULT; SELECT (1",
    ],
)
def test_spaces_that_do_not_count_make_no_other_key(ddl, admin, url, monkeypatch):
    """The newest row of a key is left, and a row that is there is replaced: new keys or known ones."""
    if "NULLS NOT" in ddl and admin.info.server_version < 150000:
        ddl = ddl.replace("NULLS NOT DISTINCT", "")
    admin.execute(b"CREATE DOMAIN one AS varchar(1)")
    admin.execute(f"CREATE TABLE events ({ddl})".encode())
    for transport, merged_rows in (("inline", 50_000), ("inline", 0), ("both", 50_000)):
        monkeypatch.setattr(pgonce.sink.writing.by_key.upsert, "MERGED_ROWS", merged_rows)
        admin.execute("TRUNCATE events")
        for _ in range(2):
            admin.execute("UPDATE events SET note = 'stored'")
            publish(url, transport, STRUCT, PADDED, "upsert", ["region"], "amount")
            found = admin.execute("SELECT trim(region), amount, note FROM events ORDER BY 1").fetchall()
            assert found == PADDED_LEFT


@pytest.mark.parametrize("element", ["varchar(3)", "char(3)", "char(9)"])
def test_spaces_that_do_not_count_make_no_other_key_in_an_array(element, admin, url):
    """As in a column of its own; an element that is too long in other ways is refused as usual."""
    admin.execute(f"CREATE TABLE events (id {element}[] PRIMARY KEY, name text, seq bigint)".encode())
    struct = changes(id=t.ArrayType(t.StringType()), name=t.StringType(), seq=t.LongType())
    key, same = ["abc  ", None, "d"], ["abc   ", None, "d  "]
    rows = [(key, "old", 1, WRITE), (key, "new", 2, WRITE), (["abd"], "other", 1, WRITE)]
    assert apply(url, *rows, struct=struct) == {"written": 2, "superseded": 1}
    publish(url, "both", t.StructType(struct.fields[:3]), [(key, "newest", 3)], "upsert", order_by="seq")
    assert admin.execute("SELECT name FROM events ORDER BY name").fetchall() == [("newest",), ("other",)]
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        apply(url, (["abc      e"], None, 3, DELETE), (["abc      e"], "long", 4, WRITE), struct=struct)
    equal = key if element == "varchar(3)" else same
    assert apply(url, (equal, None, 4, DELETE), struct=struct) == {"deleted": 1}


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE events (region text COLLATE ci PRIMARY KEY, amount int, note text)",
        "CREATE TABLE events (region varchar(1) COLLATE ci PRIMARY KEY, amount int, note text)",
        "CREATE DOMAIN one AS text COLLATE ci; CREATE TABLE events (region one PRIMARY KEY, amount int, note text)",
        "CREATE TABLE events (region text, amount int, note text);"
        "CREATE UNIQUE INDEX ON events (region COLLATE ci) INCLUDE (note)",
        "CREATE TABLE events (region text PRIMARY KEY, amount int, note text);"
        "CREATE UNIQUE INDEX ON events (region COLLATE ci)",
        "CREATE EXTENSION citext; CREATE TABLE events (region citext PRIMARY KEY, amount int, note text)",
    ],
)
def test_texts_that_the_unique_index_calls_equal_are_one_key(ddl, icu_url):
    """By its collation, which may be another than the column's, or by the type's own equality."""
    execute(icu_url, CI)
    execute(icu_url, ddl)
    for transport in ("inline", "both"):
        execute(icu_url, "UPDATE events SET note = 'stored'")
        publish(icu_url, transport, STRUCT, CASED, "upsert", ["region"], "amount")
        found = execute(icu_url, "SELECT lower(region::text), amount, note FROM events ORDER BY 1")
        assert found == PADDED_LEFT


def test_a_key_that_is_too_long_is_an_error_and_not_another_key(admin, url):
    """Only spaces are cut: two keys that begin alike are told apart, and the longer one is refused as usual."""
    admin.execute("CREATE TABLE events (region varchar(3) PRIMARY KEY, amount int, note text)")
    for long, transport in itertools.product(("abcd", "abc d", "abc   d"), ("inline", "both")):
        with pytest.raises(psycopg.errors.StringDataRightTruncation):
            publish(url, transport, STRUCT, [("abc", 9, "short"), (long, 1, "long")], "upsert", ["region"], "amount")
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_the_newest_row_is_the_greatest_by_the_collation_of_the_tables_own_column(icu_url):
    """Asked for its greatest value, the table gives the row that was kept."""
    execute(icu_url, 'CREATE TABLE events (region text, amount int PRIMARY KEY, note text COLLATE "und-x-icu")')
    publish(icu_url, "inline", STRUCT, [("lower", 1, "a"), ("upper", 1, "B")], "upsert", ["amount"], "note")
    publish(icu_url, "inline", STRUCT, [("upper", 2, "B"), ("lower", 2, "a")], "upsert", ["amount"], "note")
    assert execute(icu_url, "SELECT region FROM events ORDER BY amount") == [("upper",), ("upper",)]
