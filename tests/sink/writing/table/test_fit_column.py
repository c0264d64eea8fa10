"""
Types of extensions, and types of the user's own, hold what Spark held: round trips on real servers.

Covers: sink.writing.table.fit.
"""

from __future__ import annotations

import json
import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as t
from support import typed_rows
from support.query_runs import finish
from support.sent_rows import publish
from support.ways_in import WAYS, Sink

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.encoding.encoded_types import encoded_column
from pgonce.sink.writing.table.catalogue import look_up_table
from pgonce.sink.writing.table.fit_column import fit_column

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
    ("pair", TEXT, "(1,x)", "(1,x)"),
    ("more_positive", LONG, 5, "5"),
    ("numeric(5,2)", INT, 5, "5.00"),
    ("double precision", FLOAT, struct.unpack("f", struct.pack("f", 0.1))[0], "0.10000000149011612"),
    ("numeric(38,4)", t.DecimalType(10, 2), Decimal("-1.50"), "-1.5000"),
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
    ("pair", TEXT, "(1,xyz)", "22001"),
    ("interval", TEXT, "INTERVAL '1' DAY", "22007"),
    ("varchar(3)", TEXT, "abcd", "22001"),
    ("char(3)", TEXT, "abcd", "22001"),
    ("short", TEXT, "abc", "22001"),
    ("uuid", TEXT, "x", "22P02"),
    ("jsonb", TEXT, '"\\u0000"', "22P05"),
    ("varchar(3)[]", t.ArrayType(TEXT), ["abcd"], "22001"),
    ("numeric(5,2)", t.DecimalType(10, 2), Decimal("1000.00"), "22003"),
    ("bigint", t.DecimalType(20, 0), Decimal(10) ** 19, "22003"),
    ("integer", LONG, 2**31, "22003"),
    ("numeric(5,2)", LONG, 1000, "22003"),
    ("positive", INT, -1, "23514"),
    ("more_positive", INT, -1, "23514"),
    ("more_positive", LONG, -1, "23514"),
]
TYPES = """
CREATE TYPE mood AS ENUM ('bad', 'ok'); CREATE DOMAIN moody AS mood CHECK (value <> 'bad');
CREATE DOMAIN positive AS integer CHECK (value > 0); CREATE DOMAIN more_positive AS positive;
CREATE DOMAIN octet AS bit(8); CREATE DOMAIN short AS varchar(2); CREATE TYPE pair AS (n int, s varchar(2));
CREATE TYPE floats AS RANGE (subtype = float8, multirange_type_name = floats_multi);
"""


class TestTexts:
    """Types that are read from text, or that hold what another type of Spark's held."""

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_values_that_fit_arrive_by_a_cast_or_as_they_are(self, url, transport):
        """Enums, domains, ranges, addresses, bits, composites from strings, and wider types, by a cast or as it is."""
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
        """But for arrays of domains and of composites, which a cast would cut."""
        prepare(url, TYPES, "CREATE TABLE events (id bigint, c mood[], d bit(3)[], e int4range[], f floats[])")
        texts = t.ArrayType(TEXT)
        publish(url, "inline", of(*[texts] * 4), [(1, ["ok", None], ["101"], ["[1,2]"], [])])
        assert read(url, "SELECT c::text, d::text, e::text, f::text FROM events") == [
            ("{ok,NULL}", "{101}", '{"[1,3)"}', "{}")
        ]
        with pytest.raises(psycopg.errors.StringDataLengthMismatch):
            publish(url, "inline", of(texts, texts), [(1, [], ["1010"])])
        prepare(url, "ALTER TABLE events ALTER c TYPE short[] USING NULL, ALTER d TYPE pair[] USING NULL")
        assert "transactional function" in refusal(url, texts)
        prepare(url, "ALTER TABLE events DROP c; ALTER TABLE events RENAME d TO c")
        assert "fields n, s" in refusal(url, texts)

    def test_a_composite_that_would_round_its_text_takes_structs_only(self, url):
        """A text may say more than the attribute holds."""
        prepare(url, "CREATE TABLE events (id bigint)")
        for number, part in enumerate(("numeric(5,1)", "timestamp(0)", "time(3)", "interval(0)", "name")):
            prepare(url, f"CREATE TYPE inner_{number} AS (x {part}); CREATE TYPE one_{number} AS (y inner_{number})")
            retype(url, f"one_{number}")
            assert "struct" in refusal(url, TEXT)


INSTANT, CLOCK, DAY = t.TimestampType(), t.TimestampNTZType(), t.DateType()
# Each attribute: its type in the composite, Spark's, and values.
PARTS = [
    ("boolean", t.BooleanType(), [True, False]),
    ("smallint", t.ByteType(), [-128, 127]),
    ("bigint", LONG, [-(2**63), 2**63 - 1]),
    ("integer", LONG, [2**31 - 1, -(2**31)]),
    ("numeric(40,4)", t.DecimalType(38, 2), [Decimal("9" * 36 + ".99"), Decimal("-0.01")]),
    ("bigint", t.DecimalType(18, 0), [Decimal(10**17 + 1), Decimal(-1)]),
    ("double precision", DOUBLE, [0.1 + 0.2, 5e-324]),
    ("double precision", DOUBLE, [math.inf, -1.7976931348623157e308]),
    ("real", FLOAT, [struct.unpack("f", struct.pack("f", 0.1))[0], -math.inf]),
    ("text", TEXT, ['"\\{},()é😀', ""]),
    ("varchar(3)", TEXT, ["abc", ""]),
    ("bytea", BINARY, [b"\x00\xff\\", b""]),
    ("date", DAY, [date(1582, 10, 4), date(9999, 12, 31)]),
    ("timestamp", DAY, [date(2024, 2, 29), date(1, 1, 1)]),
    (
        "timestamptz",
        INSTANT,
        [datetime(2024, 3, 10, 7, 30, 0, 1, timezone.utc), datetime(1900, 1, 1, tzinfo=timezone.utc)],
    ),
    ("timestamp", CLOCK, [*map(datetime.fromisoformat, ("2024-02-29 23:59:59.999999", "0001-01-01"))]),
    ("interval", t.DayTimeIntervalType(), [timedelta(days=-1, hours=2, microseconds=1), timedelta(microseconds=-1)]),
    ("mood", TEXT, ["ok", "bad"]),
    ("octet", TEXT, ["10100101", "00000000"]),
    ("inet", TEXT, ["10.0.0.1", "::1"]),
    ("int4range", TEXT, ["[1,5)", "empty"]),
    ("bigint[]", t.ArrayType(LONG), [[1, None, 2**63 - 1], []]),
    ("text[]", t.ArrayType(TEXT), [["a,b", "{", None, "NULL"], []]),
    ("jsonb", t.MapType(TEXT, LONG), [[("a", 2**60)], []]),
]


class TestComposites:
    """Composite types, from structs."""

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_every_attribute_reads_back(self, url, transport):
        """Values at their edges, null attributes, and no struct at all."""
        prepare(url, TYPES, f"CREATE TYPE whole AS ({', '.join(f'a{i} {part}' for i, (part, *_) in enumerate(PARTS))})")
        columns = ", ".join(f"a{i} {part}" for i, (part, *_) in enumerate(PARTS))
        prepare(url, f"CREATE TABLE events (id bigint, c whole); CREATE TABLE plain (id bigint, {columns})")
        types = {f"a{i}": data_type for i, (_, data_type, _) in enumerate(PARTS)}
        rows = [(row + 1, *(values[row] for *_, values in PARTS)) for row in range(2)]
        rows.append((3, *[None] * len(PARTS)))
        # The columns of a table are the judge of what the attributes should be.
        publish(url, transport, struct_of(id=LONG, **types), rows, table="plain")
        structs = [(row[0], dict(zip(types, row[1:], strict=True))) for row in rows]
        publish(url, transport, of(struct_of(**types)), [*structs, (4, None)])
        expected = read(url, f"SELECT id, row({', '.join(types)})::text FROM plain ORDER BY id")
        found = read(url, "SELECT id, row((c).*)::text FROM events ORDER BY id")
        assert found[:3] == expected
        assert read(url, "SELECT id FROM events WHERE c IS NOT DISTINCT FROM NULL") == [(4,)]

    @pytest.mark.parametrize("transport", TRANSPORTS)
    def test_they_may_be_nested(self, url, transport):
        """Structs in structs and in arrays; names without regard to case; attributes that the struct lacks."""
        prepare(
            url,
            'CREATE SCHEMA app; CREATE TYPE app.address AS (street text, "Zip" varchar(5), raw bytea, more text)',
            "CREATE DOMAIN app.known AS app.address CHECK ((value).street <> 'nowhere')",
            "CREATE TYPE app.person AS (name text, home app.known, others app.address[])",
            "CREATE TABLE events (id bigint, c app.person, d app.address[])",
        )
        address = struct_of(street=TEXT, zip=TEXT, raw=BINARY)
        person = struct_of(name=TEXT, home=address, others=t.ArrayType(address))
        here, there = ("a", "1", b"\0\1"), ("b", None, None)
        make = [{"name": "Ada", "home": here, "others": [here, None, there]}, [there, None]]
        rows = [(1, *make), (2, {"name": None, "home": None, "others": []}, []), (3, None, None)]
        publish(url, transport, of(person, t.ArrayType(address)), rows)
        assert read(
            url,
            "SELECT (c).name, (c).home::text, (c).others[1]::text, (c).others[2] IS NULL, "
            "(c).others[3]::text, d::text FROM events ORDER BY id",
        ) == [
            ("Ada", r'(a,1,"\\x0001",)', r'(a,1,"\\x0001",)', True, "(b,,,)", '{"(b,,,)",NULL}'),
            (None, None, None, True, None, "{}"),
            (None, None, None, True, None, None),
        ]
        assert read(url, "SELECT cardinality((c).others), c IS NOT DISTINCT FROM NULL FROM events ORDER BY id") == [
            (3, False),
            (0, False),
            (None, True),
        ]
        nowhere = {"name": "x", "home": ("nowhere", "1", None), "others": None}
        with pytest.raises(psycopg.errors.CheckViolation):
            publish(url, transport, of(person), [(4, nowhere)])

    def test_types_of_extensions_may_be_attributes(self, url_with):
        """A geometry, a geography and an hstore in one, and a vector in another."""
        url = url_with("postgis", "hstore")
        prepare(
            url, "CREATE TYPE place AS (g ext.geometry(Point,4326), h ext.geography, t ext.hstore, w ext.geography)"
        )
        prepare(url, "CREATE TABLE events (id bigint PRIMARY KEY, c place)")
        place = struct_of(g=BINARY, h=BINARY, t=TEXTS_BY_KEY, w=TEXT)
        rows = [
            {"g": wkb(0.1, 2), "h": wkb(3, 4), "t": [("a", None), ("b", '"')], "w": "POINT(5 6)"},
            dict.fromkeys("ghtw"),
        ]
        found = written(
            url,
            "both",
            place,
            rows,
            "array[encode(ext.st_asewkb((c).g), 'hex'), encode(ext.st_asbinary((c).h), 'hex'), "
            "ext.hstore_to_json((c).t)::text, ext.st_astext((c).w)]",
        )
        assert found == [
            [wkb(0.1, 2, 4326).hex(), wkb(3, 4).hex(), '{"a": null, "b": "\\""}', "POINT(5 6)"],
            [None] * 4,
        ]
        prepare(url, "DELETE FROM events")
        assert stopped(url, place, rows[1] | {"h": wkb(200, 95)})[0] == "22P02"
        assert stopped(url, place, rows[1] | {"g": wkb(1, 2, 3857)})[0] == "22023"
        url = url_with("vector")
        prepare(url, "CREATE TYPE item AS (e ext.vector(2))")
        prepare(url, "CREATE TABLE events (id bigint PRIMARY KEY, c item)")
        item = struct_of(e=VECTOR)
        assert stopped(url, item, {"e": [1.0]})[0] == "22000"
        assert written(url, "inline", item, [{"e": [0.5, 1.4e-45]}, {"e": None}], "(c).e::text") == [
            "[0.5,1e-45]",
            None,
        ]

    def test_a_value_that_does_not_fit_stops_the_batch(self, url):
        """Nothing is cut, at any depth, and the error names column and row."""
        prepare(url, TYPES, "CREATE TABLE events (id bigint PRIMARY KEY)")
        for number, (part, data_type, value, sqlstate) in enumerate((
            ("varchar(3)", TEXT, "abcd", "22001"),
            ("short", TEXT, "abc", "22001"),
            ("bit(3)", TEXT, "1010", "22026"),
            ("char(3)", TEXT, "abcd", "22001"),
            ("integer", LONG, 2**31, "22003"),
            ("numeric(3,2)", t.DecimalType(5, 2), Decimal("100.00"), "22003"),
            ("mood", TEXT, "glad", "22P02"),
            ("varchar(1)[]", t.ArrayType(TEXT), ["ab"], "22001"),
            ("pair", struct_of(n=INT, s=TEXT), {"n": 1, "s": "abc"}, "22001"),
            # Years that JSON does not say as Postgres reads them: no other time is written.
            ("date", DAY, 2_932_897, "2200"),
            ("date", DAY, -719_529, "2200"),
            ("timestamp", CLOCK, -62_135_596_800_000_001, "2200"),
            ("timestamptz", INSTANT, 253_402_300_800_000_000, "2200"),
        )):  # fmt: skip
            whole = f"whole_{number}"
            prepare(url, f"CREATE TYPE {whole} AS (x {part})")
            retype(url, whole)
            state, text = stopped(url, struct_of(x=data_type), {"x": value})
            assert state.startswith(sqlstate), (part, value, state)
            assert f"column c (public.{whole}; in Spark struct<x:" in text
            assert " id = 1" in text

    def test_a_field_that_does_not_fit_is_refused_by_its_path(self, url):
        """The refusal names the field and what to do, at any depth."""
        prepare(url, TYPES, "CREATE TABLE events (id bigint)")
        for number, (part, data_type, words) in enumerate((
            ("integer", TEXT, "Column 'c.x' is string in Spark and integer in Postgres"),
            ("numeric(5,1)", DOUBLE, "Column 'c.x' is double in Spark and numeric(5,1) in Postgres"),
            ("varchar(3)[]", t.ArrayType(t.ArrayType(TEXT)), "make it a column of its own"),
            ("bit(3)[]", t.ArrayType(t.ArrayType(TEXT)), "make it a column of its own"),
            ("real", DOUBLE, "cast to float in Spark"),
            ("double precision", FLOAT, "cast to double in Spark"),
            ("double precision[]", t.ArrayType(FLOAT), "cast to double in Spark"),
            ("jsonb", TEXT, "make it a struct or a map"),
            ("jsonb", t.VariantType(), "make it a column of its own"),
            ("bytea[]", t.ArrayType(BINARY), "make it a column of its own"),
            ("pair", struct_of(n=INT, z=TEXT), "Column 'c.x' is struct<n:int,z:string> in Spark and public.pair"),
            ("pair[]", t.ArrayType(struct_of(n=TEXT)), "Column 'c.x.element.n' is string in Spark and integer"),
            ("pair", INT, "make a struct with the fields n, s in Spark"),
            ("pair[]", struct_of(n=INT), "make an array of structs with the fields n, s in Spark"),
        )):  # fmt: skip
            prepare(url, f"CREATE TYPE whole_{number} AS (x {part})")
            retype(url, f"whole_{number}")
            assert words in refusal(url, struct_of(x=data_type))

    def test_fields_and_attributes_are_paired_one_to_one(self, url):
        """A field that the type lacks is refused, and so are two that mean one attribute."""
        prepare(url, "CREATE TYPE whole AS (x int, y int); CREATE TABLE events (id bigint, c whole)")
        assert "field 'z'" in refusal(url, struct_of(x=INT, z=INT))
        assert "field 'X'" in refusal(url, struct_of(x=INT, X=INT))
        assert "fields x, y" in refusal(url, TEXTS_BY_KEY)

    def test_an_attribute_that_is_renamed_meanwhile_is_an_error(self, url):
        """Otherwise it would be null, because it would not be found in the JSON."""
        prepare(url, "CREATE TYPE whole AS (x int, y int); CREATE TABLE events (id bigint, c whole)")
        with psycopg.connect(url) as connection:
            _, table = look_up_table(connection, "events")
            column = next(column for column in table.columns if column.column_name == "c")
            make = fit_column(encoded_column("c", struct_of(x=INT, y=INT)), column).expression
            query = sql.SQL("SELECT {}").format(make(sql.SQL("'{}'::jsonb")))
            connection.execute(query)
            connection.execute("ALTER TYPE whole RENAME ATTRIBUTE y TO z")
            with pytest.raises(psycopg.errors.UndefinedColumn):
                connection.execute(query)

    def test_the_schema_of_users_shadows_nothing(self, url):
        """Functions and operators of the user's schema, first on the search_path, are not called."""
        prepare(
            url,
            'CREATE TYPE whole AS (x int, "Y" bytea); CREATE TABLE events (id bigint, c whole[])',
            "CREATE FUNCTION jsonb_build_object(text, jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'",
            "CREATE FUNCTION jsonb_agg(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'",
            "CREATE DOMAIN text AS varchar CHECK (false); CREATE DOMAIN jsonb AS pg_catalog.jsonb CHECK (false)",
            "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', "
            "current_database()); END$$",
        )
        rows = [[{"x": 1, "y": b"\x01"}]]
        assert written(url, "inline", t.ArrayType(struct_of(x=INT, y=BINARY)), rows, '(c[1])."Y"') == [b"\x01"]


@pytest.mark.spark
@pytest.mark.parametrize("way", [way for way in WAYS if not way.upserts], ids=lambda way: way.name)
def test_they_travel_by_every_way_in(spark, way, url_with, tmp_path):
    """Vectors, hstores and composites of a stream arrive inline, staged, received, and by foreachBatch."""
    (tmp_path / "in").mkdir()
    rows = [
        {"id": 1, "c": [0.5, 1e-10], "d": {"k": "v", "n": None}, "e": {"n": 7, "s": "ab"}},
        {"id": 2, "c": None, "d": {}, "e": None},
    ]
    (tmp_path / "in/rows.json").write_text("\n".join(map(json.dumps, rows)))
    schema = "id bigint, c array<float>, d map<string,string>, e struct<n: bigint, s: string>"
    events = spark.readStream.schema(schema).json(str(tmp_path / "in"))
    for extension, spark_name, column, query, expected in (
        ("vector", "c", "ext.vector(2)", "c::text", ["[0.5,1e-10]", None]),
        ("hstore", "d", "ext.hstore", "d::text", ['"k"=>"v", "n"=>NULL', ""]),
    ):
        url = url_with(extension)
        create = f"CREATE TABLE events (id bigint, {spark_name} {column}, e pair)"
        prepare(url, TYPES, create)
        sink = Sink(url, "events", str(tmp_path / f"checkpoint_{extension}"))
        finish(way.append(events.select("id", spark_name, "e"), sink))
        found = read(url, f"SELECT {query}, e::text FROM events ORDER BY id")
        assert found == list(zip(expected, ["(7,ab)", None], strict=True))


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
            ("vector", "pair", struct_of(n=LONG, s=TEXT), {"n": 1, "s": "a"}, {"n": 1, "s": "a"}, {"n": 2, "s": None}),
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
