"""The JSON of a row that was put aside becomes the values that it stands for, or an error says where to mend it."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import types as t
from support.blocked import wait_for_blocked
from support.dead_letters import put_aside, replayed
from support.pages import DOCS, sections, sql_blocks
from support.recoveries import noted
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.offsets_store.errors import RecoveryError
from pgonce.sink.encoding.encoded_types import encoded_column
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.usefixtures("past")

# Spark's type, and texts of values of the Postgres type in which it is encoded.
VALUES = {
    t.BooleanType(): ["true", "false"],
    t.ByteType(): ["-128"],
    t.ShortType(): ["32767"],
    t.IntegerType(): ["-2147483648"],
    t.LongType(): ["9223372036854775807"],
    t.FloatType(): ["1.1", "NaN", "-Infinity", "1e-38"],
    t.DoubleType(): ["0.1", "NaN", "Infinity", "1.7976931348623157e308"],
    t.DecimalType(38, 18): ["99999999999999999999.123456789012345678", "0.000000000000000001"],
    t.StringType(): ["", "null", '"{}[]\\', "äß 漢 🐘", "{1,2}"],
    t.BinaryType(): ["\\x", "\\x00ff", "\\x5c78"],
    t.DateType(): ["0001-01-01", "9999-12-31", "infinity", "0044-03-15 BC"],
    t.TimestampType(): ["1969-12-31 23:59:59.999999+00", "2026-11-22 01:02:03.000001+00"],
    t.TimestampNTZType(): ["1582-10-15 00:00:00.000001", "9999-12-31 23:59:59.999999"],
    t.DayTimeIntervalType(0, 3): ["-3 days -00:00:00.000001", "106751 days"],
    t.ArrayType(t.StringType()): ["{}", '{NULL,"null","a,b","{}"}'],
    t.ArrayType(t.LongType()): ["{1,NULL,9223372036854775807}"],
    t.ArrayType(t.BinaryType()): ['{"\\\\x00ff",NULL}'],
    t.ArrayType(t.DecimalType(10, 2)): ["{1.10,-0.01}"],
    t.StructType([t.StructField("a", t.LongType())]): ['{"a": 9223372036854775807}', '{"a": {"base64": 1}}', "{}"],
    t.MapType(t.StringType(), t.StringType()): ['{"base64": "x", "b": null}'],
    t.ArrayType(t.StructType([t.StructField("a", t.LongType())])): ['[{"a": 1}, null]', "[]"],
}


def test_a_value_comes_back_from_json_with_its_type(url, admin):
    """What Postgres made JSON of is read as the same value of the same type; null stays null."""
    for data_type, texts in VALUES.items():
        column = encoded_column("value", data_type).postgres_type
        admin.execute("DROP TABLE IF EXISTS events, given")
        admin.execute(f"CREATE TABLE events (id int, value {column}); CREATE TABLE given (LIKE events)".encode())
        struct = t.StructType([t.StructField("id", t.IntegerType()), t.StructField("value", data_type)])
        for number, text in enumerate([*texts, None]):
            admin.execute("INSERT INTO given VALUES (%s, %s)", [number, text], prepare=False)
            row = admin.execute("SELECT to_jsonb(given)::text FROM given WHERE id = %s", [number]).fetchone()[0]
            put_aside(admin, {}, destination("public.events"), struct, row_data=row)
        replayed(url)
        query = "SELECT id, value::text FROM {} ORDER BY id"
        given, found = (admin.execute(query.format(table).encode()).fetchall() for table in ("given", "events"))
        assert (data_type, found) == (data_type, given)


def test_bytes_may_be_base64(url, admin):
    """For a column of bytes, that form needs no mending."""
    admin.execute("CREATE TABLE events (value bytea)")
    struct = t.StructType([t.StructField("value", t.BinaryType())])
    put_aside(admin, {"value": {"base64": "AP8="}}, destination("public.events"), struct)
    replayed(url)
    assert admin.execute("SELECT value FROM events").fetchall() == [(b"\x00\xff",)]


def test_a_value_may_look_like_one_that_could_not_be_encoded(url, admin):
    """Postgres refused the row for another reason, so the object is what the row has."""
    admin.execute("CREATE TABLE events (value jsonb)")
    struct = t.StructType([t.StructField("value", t.MapType(t.StringType(), t.StringType()))])
    for value in ({"json": "{}"}, {"base64": "AA=="}, {"arrow": "x"}):
        put_aside(admin, {"value": value}, destination("public.events"), struct)
    replayed(url)
    found = admin.execute("SELECT value FROM events").fetchall()
    assert found == [({"json": "{}"},), ({"base64": "AA=="},), ({"arrow": "x"},)]


def test_base64_in_json_is_always_the_value_itself(url, admin):
    """Also in a row of which another value could not be encoded: a value that has parts never takes that form."""
    admin.execute("CREATE TABLE events (name text, value jsonb)")
    value = t.StructType([t.StructField("base64", t.StringType())])
    struct = t.StructType([t.StructField("name", t.StringType()), t.StructField("value", value)])
    mended = {"name": "mended", "value": {"base64": "AA=="}}
    put_aside(admin, mended, destination("public.events"), struct, code="NUL_IN_TEXT")
    replayed(url)
    assert admin.execute("SELECT name, value FROM events").fetchall() == [("mended", {"base64": "AA=="})]


def test_a_column_that_is_not_written_needs_no_mending(url, admin):
    """With ignoreExtra, the table lacks it, and its value is left out as it would have been."""
    admin.execute("CREATE TABLE events (id bigint)")
    struct = t.StructType([t.StructField("id", t.LongType()), t.StructField("note", t.StringType())])
    where = destination("public.events", schema_evolution="ignoreExtra")
    put_aside(admin, {"id": 1, "note": {"base64": "AA=="}}, where, struct, code="NUL_IN_TEXT")
    replayed(url)
    assert admin.execute("SELECT * FROM events").fetchall() == [(1,)]


UNMENDED = (
    (t.StringType(), {"base64": "AA=="}, "still an object"),
    (t.StringType(), [1], "still an object"),
    (t.StringType(), ..., "is missing"),
    (t.LongType(), "seven", 'invalid input syntax for type bigint: "seven"'),
    (t.LongType(), 1.5, "cannot be read as int8"),
    (t.LongType(), {"base64": "AA=="}, "still an object"),
    (t.DateType(), "2026-02-30", "out of range"),
    (t.BinaryType(), {"base64": "AA==", "more": 1}, "still an object"),
    (t.BinaryType(), {"base64": "?"}, "cannot be read as bytea"),
    (t.ArrayType(t.StringType()), ["a", {"base64": "AA=="}], "still an object"),
    (t.ArrayType(t.LongType()), 5, "cannot be read as int8[]"),
    (t.StructType([t.StructField("a", t.StringType())]), {"json": "{}"}, "still an object"),
    (t.MapType(t.StringType(), t.StringType()), {"json": '{"a": "\\u0000"}'}, "still an object"),
    (t.MapType(t.StringType(), t.StringType()), {"arrow": "AA=="}, "still an object"),
    (t.BinaryType(), {"arrow": "AA=="}, "still an object"),
)


def test_a_value_that_nobody_mended(url, admin):
    """The error names the letter and the column, and the statement in it mends the value."""
    admin.execute('CREATE TABLE events (id bigint, "it\'s" text)')
    for data_type, value, says in UNMENDED:
        refused_until_mended(url, admin, data_type, value, says)
        admin.execute("DELETE FROM pgonce.dead_letters")


def refused_until_mended(url, admin, data_type, value, says):
    """Put a bad value aside after a good row, try to replay both, and run the statement of the error."""
    struct = t.StructType([t.StructField("id", t.LongType()), t.StructField("it's", data_type)])
    put_aside(admin, {"id": 1, "it's": None}, destination("public.events"), struct)
    row = {"id": 2, **({} if value is ... else {"it's": value})}
    bad = put_aside(admin, row, destination("public.events"), struct, code="TEXT_NOT_UTF8")
    with pytest.raises(RecoveryError, match=r"\[DEAD_LETTER_UNMENDED\]") as error:
        replayed(url)
    said = str(error.value)
    assert says in said
    assert f'column "it\'s" in dead letter {bad} ' in said
    admin.execute(said[said.index("UPDATE") : said.index(" with the value")].replace("'\"...\"'", "'null'").encode())
    kept = admin.execute("SELECT row_data -> 'it''s' FROM pgonce.dead_letters WHERE dead_letter_id = %s", [bad])
    assert kept.fetchone() == (None,)
    assert "DEAD_LETTER" not in str(replayed(url, dry_run=True))


@pytest.mark.parametrize("deletes", ["hard", "soft:is_gone", "ignore"])
def test_a_row_has_to_say_whether_it_deletes(url, admin, deletes):
    """Null is neither, and such a row would be gone with its letter."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, seq bigint, is_gone boolean)")
    struct = t.StructType([
        t.StructField("id", t.LongType()),
        t.StructField("seq", t.LongType()),
        t.StructField("gone", t.BooleanType()),
    ])  # fmt: skip
    where = destination("public.events", "apply", ["id"], "seq", delete_when="gone", only_newer=True, deletes=deletes)
    letter = put_aside(admin, {"id": 1, "seq": None, "gone": None}, where, struct)
    for how in ({"dry_run": True}, {}):
        with pytest.raises(RecoveryError, match="DEAD_LETTER_UNMENDED") as error:
            replayed(url, **how)
        assert f"column 'gone' in dead letter {letter} is null" in str(error.value)
    for value in ('{"gone": false}', '{"seq": 5}'):
        admin.execute("UPDATE pgonce.dead_letters SET row_data = row_data || %s::jsonb", [value])
    replayed(url)
    assert admin.execute("SELECT id, seq FROM events").fetchall() == [(1, 5)]


def test_all_letters_whose_values_nobody_mended_are_named(url, admin):
    """The text of the error shows how to repair the first of them, and which others there are."""
    admin.execute("CREATE TABLE events (id bigint, name text)")
    for number, name in enumerate([{"base64": "AA=="}, "good", {"base64": "AA=="}, {"base64": "AA=="}]):
        put_aside(admin, {"id": number, "name": name})
    with pytest.raises(RecoveryError, match=r"DEAD_LETTER_UNMENDED.*dead letter 1 .*3, 4\b"):
        replayed(url, dry_run=True)


def test_what_is_no_row(url, admin):
    """Something else than an object in row_data is an error like a missing column."""
    admin.execute("CREATE TABLE events (id bigint, name text)")
    put_aside(admin, {}, row_data=Jsonb([1, 2]))
    with pytest.raises(RecoveryError, match="DEAD_LETTER_UNMENDED"):
        replayed(url)


def test_names_are_only_names(url, admin):
    """Quotes, dots and braces in a column's name do not become part of a statement."""
    name = """a"b'c.d{}%s; --"""
    admin.execute(psycopg.sql.SQL("CREATE TABLE events ({} text)").format(psycopg.sql.Identifier(name)))
    put_aside(admin, {name: "x"}, destination("public.events"), t.StructType([t.StructField(name, t.StringType())]))
    replayed(url)
    assert admin.execute("SELECT * FROM events").fetchall() == [("x",)]


def test_the_statements_of_the_page_mend_rows_and_its_replay_writes_them(url, admin, monkeypatch):
    """As its owner types them; every digit and byte is there, also of the columns that nobody mended."""
    page = sections((DOCS / "dead-letters.md").read_text(), 2)
    admin.execute("CREATE TABLE events (id bigint, name varchar(5), amount numeric(30,2), photo bytea)")
    admin.execute("ALTER TABLE pgonce.dead_letters ALTER dead_letter_id RESTART WITH 7")
    struct = t.StructType([
        t.StructField("id", t.LongType()),
        t.StructField("name", t.StringType()),
        t.StructField("amount", t.DecimalType(30, 2)),
        t.StructField("photo", t.BinaryType()),
    ])  # fmt: skip
    for row, column, code in (
        ('{"id": 9007199254740993, "name": "too long", "amount": 0.10, "photo": null}', "name", "22001"),
        ('{"id": 2, "name": "b", "amount": "NaN", "photo": {"base64": "AAE="}}', "amount", "23514"),
        ('{"id": 3, "name": "c", "amount": 1234567890123456789.01, "photo": {"arrow": "AA=="}}', "photo", "X"),
        ('{"id": 4, "name": "d", "amount": 1e40, "photo": null}', "amount", "22003"),
    ):
        put_aside(admin, {}, destination("public.events"), struct, row_data=row, column_name=column, code=code)
    updates = [statement for statement in sql_blocks(page["Repair"]) if "UPDATE" in statement]
    for statement in updates:
        admin.execute(statement.encode())
    (line,) = (line for line in page["Replay"].splitlines() if "--id 7 --id 8" in line)
    monkeypatch.setenv("PGONCE_URL", url)
    done = CliRunner().invoke(app, shlex.split(line.replace("QUERY", "orders"))[1:])
    assert done.exit_code == 0, done.output
    assert noted(admin)[0][:3] == ("replay-dead-letters", None, "names shortened")
    replayed(url)
    assert admin.execute("SELECT * FROM events ORDER BY name").fetchall() == [
        (2, "b", Decimal("12345678901234567890.10"), b"\x00\x01"),
        (3, "c", Decimal("1234567890123456789.01"), b"\x00\xff"),
        (4, "d", None, None),
        (9007199254740993, "short", Decimal("0.10"), None),
    ]
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (0,)


def test_a_replay_waits_for_an_update_of_its_letters(url, admin):
    """And writes what that leaves."""
    admin.execute("CREATE TABLE events (id bigint, name varchar(5))")
    put_aside(admin, {"id": 1, "name": "too long"})
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("UPDATE pgonce.dead_letters SET row_data = jsonb_set(row_data, '{name}', '\"short\"', false)")
        waiting = pool.submit(replayed, url)
        wait_for_blocked(admin, other)
        other.commit()
        waiting.result(timeout=60)
    assert admin.execute("SELECT id, name FROM events").fetchall() == [(1, "short")]
