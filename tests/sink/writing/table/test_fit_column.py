"""
Types of extensions, and types of the user's own, hold what Spark held: round trips on real servers.

Covers: sink.writing.table.fit.
"""

from __future__ import annotations

import math
import struct
from datetime import date

import psycopg
import pytest
from pyspark.sql import types as t
from support import typed_rows
from support.sent_rows import publish

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger

TEXT, LONG, INT, DOUBLE, FLOAT = t.StringType(), t.LongType(), t.IntegerType(), t.DoubleType(), t.FloatType()
BINARY = t.BinaryType()
TEXTS_BY_KEY = t.MapType(TEXT, TEXT)
VECTOR = t.ArrayType(FLOAT)
TRANSPORTS = ("inline", "staged")


def struct_of(**types):
    """A struct type with these fields."""
    return typed_rows.struct_of(types)


def of(*types):
    """The schema of a frame with an id, and columns ``c``, ``d`` and so on."""
    return struct_of(id=LONG, **dict(zip("cdefgh", types, strict=False)))


def prepare(url, *statements):
    """Run what makes the types and the table."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def read(url, query):
    """The rows of a query."""
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def written(url, transport, data_type, values, column="c::text", **how):
    """Publish values of one column with ids from 1, and read the column."""
    publish(url, transport, of(data_type), list(enumerate(values, 1)), **how)
    return [row[0] for row in read(url, f"SELECT {column} FROM events ORDER BY id")]


def refusal(url, data_type, values=(None,)):
    """What is said when a column of this type is refused."""
    with pytest.raises(TargetError, match=r"\[TYPE_MISMATCH\]") as caught:
        publish(url, "inline", of(data_type), list(enumerate(values, 1)))
    return str(caught.value)


def stopped(url, data_type, value):
    """The SQLSTATE, message and notes with which Postgres stops a batch that has this value; no row is there."""
    with pytest.raises(psycopg.Error) as caught:
        publish(url, "inline", of(data_type), [(1, value)])
    assert read(url, "SELECT FROM events") == []
    return caught.value.sqlstate, f"{caught.value} {' '.join(getattr(caught.value, '__notes__', ()))}"


def retype(url, column):
    """Give the column ``c`` of the empty table another type."""
    prepare(url, f"ALTER TABLE events DROP COLUMN IF EXISTS c, ADD COLUMN c {column}")


class TestVector:
    """pgvector."""

    @pytest.fixture
    def url(self, url_with):
        """A database with pgvector, and a table with a vector(3)."""
        url = url_with("vector")
        prepare(url, "CREATE TABLE events (id bigint PRIMARY KEY, c ext.vector(3))")
        return url

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_floats_arrive_with_all_bits(self, url, transport):
        """Of every float the bits are there, of the least and of the greatest too; a null row is null."""
        # What numpy and Spark call 0.1 in 32 bits.
        values = [[0.1, -1.5, 2.0], [1.4e-45, 3.4028235e38, -0.0], None, [1 / 3, 16777217.0, 1e-10]]
        found = written(url, transport, VECTOR, values, "c::real[]")
        bits = [row and [struct.pack("f", value) for value in row] for row in values]
        assert [row and [struct.pack("f", value) for value in row] for row in found] == bits

    def test_what_is_no_vector_of_the_column_stops_the_batch(self, url):
        """Too few dimensions, an element that is null, no number: an error that names column and row."""
        unfit = (([1.0, 2.0], "22000"), ([1.0, None, 3.0], "22004"), ([math.nan, 1.0, 2.0], "22000"), ([], "22000"))
        for value, sqlstate in unfit:
            state, text = stopped(url, VECTOR, value)
            assert (value, state) == (value, sqlstate)
            assert "column c (ext.vector(3); in Spark array<float>) in the row with id = 1" in text

    def test_what_would_be_rounded_is_refused(self, url):
        """Doubles are not floats, and floats are not halves: the refusal says what to write."""
        for data_type, column, words in (
            (t.ArrayType(DOUBLE), "vector(3)", "cast to array<float> in Spark"),
            (t.ArrayType(INT), "vector(3)", "cast to array<float> in Spark"),
            (VECTOR, "halfvec(3)", "write the text form, concat('[', array_join(cast(c AS array<string>), ','), ']')"),
            (VECTOR, "sparsevec(3)", "make a string of it in Spark, in the text form of ext.sparsevec"),
            (TEXTS_BY_KEY, "vector(3)", "cast to array<float> in Spark"),
        ):
            retype(url, f"ext.{column}")
            assert words in refusal(url, data_type)


class TestHstore:
    """The extension hstore."""

    @pytest.fixture
    def url(self, url_with):
        """A database with hstore, and a table with one."""
        url = url_with("hstore")
        prepare(url, "CREATE TABLE events (id bigint PRIMARY KEY, c ext.hstore)")
        return url

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_texts_by_key_arrive(self, url, transport):
        """Odd keys and values, null values, an empty map, and no map: each is there, and different from the others."""
        values = [
            {"a": "1", "": "", 'q"\\': "=>,{}", "é😀": "\n\t"},
            {"n": None, "null": "null", "NULL": "NULL"},
            {},
            None,
            {"x" * 300: "y" * 70_000},
        ]
        as_pairs = [None if value is None else list(value.items()) for value in values]
        assert written(url, transport, TEXTS_BY_KEY, as_pairs, "ext.hstore_to_jsonb(c)") == values

    def test_what_is_not_texts_is_refused(self, url):
        """Numbers would become texts in silence."""
        for data_type in (t.MapType(TEXT, INT), t.MapType(INT, TEXT), struct_of(a=TEXT), t.ArrayType(TEXTS_BY_KEY)):
            assert "map<string,string>" in refusal(url, data_type)


def wkb(x, y, srid=None):
    """A point as Postgres's neighbours write it: WKB, or PostGIS's EWKB with an SRID."""
    head = struct.pack("<BI", 1, 1) if srid is None else struct.pack("<BII", 1, 0x20000001, srid)
    return head + struct.pack("<dd", x, y)


class TestPostgis:
    """PostGIS."""

    @pytest.fixture
    def url(self, url_with):
        """A database with PostGIS, and a table with a point of each kind."""
        url = url_with("postgis")
        columns = "c ext.geometry(Point,4326), d ext.geography(Point,4326), e ext.geometry, f ext.geography"
        prepare(url, f"CREATE TABLE events (id bigint PRIMARY KEY, {columns})")
        return url

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_wkb_arrives_with_all_bits(self, url, transport):
        """WKB takes the column's SRID; EWKB brings its own; every bit of a coordinate is kept."""
        x, y = 0.1 + 0.2, -1 / 3
        rows = [
            (1, wkb(x, y), wkb(x, y), wkb(x, y), wkb(x, y)),
            (2, wkb(x, y, 4326), wkb(x, y, 4326), wkb(x, y, 3857), wkb(180.0, -90.0, 4326)),
            (3, None, None, None, None),
        ]
        publish(url, transport, of(BINARY, BINARY, BINARY, BINARY), rows)
        query = ", ".join(f"ext.st_asbinary({name}), ext.st_srid({name}::ext.geometry)" for name in "cdef")
        first, second, third = read(url, f"SELECT {query} FROM events ORDER BY id")
        assert first == (wkb(x, y), 4326, wkb(x, y), 4326, wkb(x, y), 0, wkb(x, y), 4326)
        assert second == (wkb(x, y), 4326, wkb(x, y), 4326, wkb(x, y), 3857, wkb(180.0, -90.0), 4326)
        assert set(third) == {None}

    def test_what_the_column_does_not_hold_stops_the_batch(self, url):
        """Another SRID or kind of shape, no WKB, and what PostGIS would move onto the globe with only a notice."""
        for column, value, sqlstate, words in (
            ("geometry(Point,4326)", wkb(1, 2, 3857), "22023", "SRID (3857) does not match column SRID (4326)"),
            ("geometry(LineString)", wkb(1, 2), "22023", "(Point) does not match column type (LineString)"),
            ("geometry", b"\1\1\0\0\0", "XX000", "WKB structure does not match expected size"),
            ("geometry", b"", "XX000", "Unable to parse WKB"),
            ("geography", wkb(200, 95), "22P02", "a longitude beyond 180 or a latitude beyond 90"),
            ("geography", wkb(180.00000000000003, 0), "22P02", "a longitude beyond 180"),
            ("geography", wkb(1, 2, 3857), "22023", "Only lon/lat coordinate systems"),
        ):
            retype(url, f"ext.{column}")
            state, text = stopped(url, BINARY, value)
            assert (state, words in text) == (sqlstate, True)
            assert " id = 1" in text


# Each column, Spark's type, a value of it, and its text in Postgres.
HELD = [
    ("mood", TEXT, "ok", "ok"),
    ("moody", TEXT, "ok", "ok"),
    ("int4range", TEXT, "[1,5]", "[1,6)"),
    ("int8multirange", TEXT, "{[1,2],[7,8)}", "{[1,3),[7,8)}"),
    ("numrange", TEXT, "[0.10,)", "[0.10,)"),
    ("tstzrange", TEXT, "[2024-01-01 00:00+00,)", '["2024-01-01 00:00:00+00",)'),
    ("floats", TEXT, "[0.1,0.2)", "[0.1,0.2)"),
    ("floats_multi", TEXT, "{[0.1,0.2)}", "{[0.1,0.2)}"),
    ("interval", TEXT, "1 years 2 months 25 days 5 hours 6 minutes 7.5 seconds", "1 year 2 mons 25 days 05:06:07.5"),
    ("inet", TEXT, "10.0.0.1/8", "10.0.0.1/8"),
    ("inet", TEXT, "2001:db8::1", "2001:db8::1/128"),
    ("cidr", TEXT, "10.0.0.0/8", "10.0.0.0/8"),
    ("macaddr", TEXT, "08-00-2b-01-02-03", "08:00:2b:01:02:03"),
    ("macaddr8", TEXT, "08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:05"),
    ("bit(8)", TEXT, "10100101", "10100101"),
    ("octet", TEXT, "10100101", "10100101"),
    ("varbit(8)", TEXT, "101", "101"),
    ("more_positive", LONG, 5, "5"),
    ("double precision", FLOAT, struct.unpack("f", struct.pack("f", 0.1))[0], "0.10000000149011612"),
    ("timestamp", t.DateType(), date(1582, 10, 15), "1582-10-15 00:00:00"),
    ("json", t.MapType(TEXT, LONG), [("a", 2**60)], '{"a": 1152921504606846976}'),
    ("varchar(3)[]", t.ArrayType(TEXT), ["a", None], "{a,NULL}"),
    ("integer[]", t.ArrayType(LONG), [1, None], "{1,NULL}"),
]
# Each column, Spark's type, a value that the column cannot hold, and the SQLSTATE.
NOT_HELD = [
    ("mood", TEXT, "glad", "22P02"),
    ("int4range", TEXT, "[5,1]", "22000"),
    ("cidr", TEXT, "10.0.0.1/8", "22P02"),
    ("inet", TEXT, "10.0.0.256", "22P02"),
    ("macaddr", TEXT, "08", "22P02"),
    ("bit(8)", TEXT, "1010", "22026"),
    ("bit(8)", TEXT, "101001011", "22026"),
    ("octet", TEXT, "1010", "22026"),
    ("varbit(8)", TEXT, "101001011", "22001"),
    ("interval", TEXT, "INTERVAL '1' DAY", "22007"),
    ("varchar(3)", TEXT, "abcd", "22001"),
    ("char(3)", TEXT, "abcd", "22001"),
    ("short", TEXT, "abc", "22001"),
    ("uuid", TEXT, "x", "22P02"),
    ("jsonb", TEXT, '"\\u0000"', "22P05"),
    ("varchar(3)[]", t.ArrayType(TEXT), ["abcd"], "22001"),
    ("positive", INT, -1, "23514"),
    ("more_positive", INT, -1, "23514"),
    ("more_positive", LONG, -1, "23514"),
]
TYPES = """
CREATE TYPE mood AS ENUM ('bad', 'ok'); CREATE DOMAIN moody AS mood CHECK (value <> 'bad');
CREATE DOMAIN positive AS integer CHECK (value > 0); CREATE DOMAIN more_positive AS positive;
CREATE DOMAIN octet AS bit(8); CREATE DOMAIN short AS varchar(2);
CREATE TYPE floats AS RANGE (subtype = float8, multirange_type_name = floats_multi);
"""


class TestTexts:
    """Types that are read from text, or that hold what another type of Spark's held."""

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_values_that_fit_arrive_by_a_cast_or_as_they_are(self, url, transport):
        """Enums, domains, ranges, addresses, bits, and wider types, by a cast or as it is."""
        columns = ", ".join(f"c{i} {column}" for i, (column, *_) in enumerate(HELD))
        prepare(url, TYPES, f"CREATE TABLE events (id bigint, {columns})")
        fields = {f"c{i}": data_type for i, (_, data_type, *_) in enumerate(HELD)}
        rows = [(1, *(given for _, _, given, _ in HELD)), (2, *[None] * len(HELD))]
        publish(url, transport, struct_of(id=LONG, **fields), rows)
        texts = ", ".join(f"c{i}::text" for i in range(len(HELD)))
        first, second = read(url, f"SELECT {texts} FROM events ORDER BY id")
        assert list(first) == [text for *_, text in HELD]
        assert set(second) == {None}

    def test_what_does_not_fit_stops_the_batch(self, url):
        """Copied straight or cast and assigned, nothing is cut or guessed, domains included."""
        prepare(url, TYPES, "CREATE TABLE events (id bigint PRIMARY KEY)")
        for column, data_type, value, sqlstate in NOT_HELD:
            retype(url, column)
            assert (column, value, stopped(url, data_type, value)[0]) == (column, value, sqlstate)

    def test_arrays_of_them_arrive(self, url):
        """But for arrays of domains, which a cast would cut."""
        prepare(url, TYPES, "CREATE TABLE events (id bigint, c mood[], d bit(3)[], e int4range[], f floats[])")
        texts = t.ArrayType(TEXT)
        publish(url, "inline", of(*[texts] * 4), [(1, ["ok", None], ["101"], ["[1,2]"], [])])
        assert read(url, "SELECT c::text, d::text, e::text, f::text FROM events") == [
            ("{ok,NULL}", "{101}", '{"[1,3)"}', "{}")
        ]
        with pytest.raises(psycopg.errors.StringDataLengthMismatch):
            publish(url, "inline", of(texts, texts), [(1, [], ["1010"])])
        prepare(url, "ALTER TABLE events ALTER c TYPE short[] USING NULL")
        assert "transactional function" in refusal(url, texts)

    def test_a_composite_type_is_refused(self, url):
        """From a struct, a text, or an array of them; also under a domain."""
        prepare(
            url, "CREATE TYPE pair AS (n int, s text); CREATE DOMAIN named AS pair", "CREATE TABLE events (id bigint)"
        )
        for column, array in (("pair", False), ("named", False), ("pair[]", True)):
            retype(url, column)
            for kind in (TEXT, struct_of(n=INT, s=TEXT)):
                assert "alter it to jsonb" in refusal(url, t.ArrayType(kind) if array else kind)


class TestChanges:
    """Changes that are applied by key: written, found by their keys, and deleted."""

    @pytest.mark.parametrize(
        ("extension", "column", "data_type", "first", "same", "other"),
        [
            ("citext", "ext.citext", TEXT, "Ada", "ADA", "bob"),
            ("hstore", "ext.hstore", TEXTS_BY_KEY, [("a", "1"), ("b", None)], [("b", None), ("a", "1")], []),
            ("postgis", "ext.geometry(Point,4326)", BINARY, wkb(1, 2), wkb(1, 2, 4326), wkb(2, 1)),
            ("postgis", "ext.geography(Point,4326)", TEXT, "POINT(1 2)", "SRID=4326;POINT(1.0 2)", "POINT(2 1)"),
            ("postgis", "ext.geometry(Point,4326)", TEXT, "POINT(1 2)", "SRID=4326;POINT(1.0 2)", "POINT(2 1)"),
            ("vector", "ext.vector(2)", VECTOR, [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]),
            ("vector", "mood", TEXT, "ok", "ok", "bad"),
            ("vector", "inet", TEXT, "10.0.0.1", "10.0.0.1/32", "10.0.0.2"),
            ("vector", "int4range", TEXT, "[1,2]", "[1,3)", "empty"),
        ],
    )
    def test_keys_are_found_as_the_type_compares_them(self, url_with, extension, column, data_type, first, same, other):
        """A key that is written otherwise and means the same is updated, and deleted."""
        url = url_with(extension)
        ensure_ledger(url)
        prepare(url, TYPES, f"CREATE TABLE events (id bigint, c {column} PRIMARY KEY)")

        def apply(*rows):
            how = {"mode": "apply", "keys": ["c"], "order_by": "id", "delete_when": "gone"}
            return publish(url, "staged", struct_of(id=LONG, c=data_type, gone=t.BooleanType()), rows, **how).counts

        assert apply((1, first, False), (1, other, False))["written"] == 2
        assert apply((2, same, False), (3, other, True), (4, first, False))["written"] == 1
        assert read(url, "SELECT id FROM events") == [(4,)]
        assert apply((5, same, True))["deleted"] == 1
        assert read(url, "SELECT id FROM events") == []
