"""
A value that Postgres refuses is named by its column, its types and its row, and the transaction has failed still.

Covers: sink.encoding.copy_encoder.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from pyspark.sql import types as t
from support.sent_rows import publish, sent
from support.typed_rows import commit_typed, struct_of
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.sink.options.destination import destination
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.writing.bad_rows import refused_values

PLACE = {"topic": t.StringType(), "partition": t.IntegerType(), "offset": t.LongType()}
STRUCT = struct_of(
    {"id": t.LongType(), **PLACE, **{f"n{number}": t.LongType() for number in range(20)}, "text": t.StringType()}
)
TEXT = len(STRUCT) - 1
N7 = STRUCT.names.index("n7")
NUMBERS = ", ".join(f"n{number} bigint" for number in range(20))
TABLE = f'CREATE TABLE events (id bigint, topic text, partition int, "offset" bigint, {NUMBERS}, text text)'
SHORT = TABLE.replace("text text", "text varchar(3)")
NARROW = TABLE.replace("n7 bigint", "n7 int")
# Column and value that is bad in the fourth row of six, what Postgres has in the table, and what is said.
BAD = {
    "integer out of range": (N7, 2**40, NARROW, "column n7 (integer; in Spark bigint)"),
    "no uuid": (TEXT, "4711-secret", TABLE.replace("text text", "text uuid"), "column text (uuid; in Spark string)"),
    "no json": (TEXT, '{"card": 4711', TABLE.replace("text text", "text json"), "column text (json; in Spark string)"),
    "too long": (TEXT, "abcd", SHORT, "column text (character varying(3); in Spark string)"),
    "too long, cast": (TEXT, "abcd", SHORT.replace("n7 bigint", "n7 int"), "column text (character varying(3);"),
    "domain": (
        N7,
        0,
        "CREATE DOMAIN much AS bigint CHECK (value > 0);" + TABLE.replace("n7 bigint", "n7 much"),
        "column n7",
    ),
    "null": (N7, None, TABLE.replace("n7 bigint", "n7 bigint NOT NULL"), "column n7 (bigint; in Spark bigint)"),
}


def rows_with(column, value):
    """Six rows of which the fourth has a bad value."""
    good = str(uuid.UUID(int=1)) if value == "4711-secret" else "{}" if "{" in str(value) else "abc"
    rows = [[n, "orders", n % 2, 100 + n, *[5] * 20, good] for n in range(1, 7)]
    rows[3][column] = value
    return [tuple(row) for row in rows]


def refused(where, *arguments, **options):
    """The error's text for rows that are refused, on a connection whose transaction has failed."""
    with psycopg.connect(where) as connection:
        with pytest.raises(psycopg.Error) as error:
            publish(connection, *arguments, **options)
        assert connection.info.transaction_status is TransactionStatus.INERROR
        connection.rollback()
    return str(target_error(error.value))


@pytest.mark.parametrize("transport", ["inline", "staged"])
def test_column_types_and_place_of_a_refused_value(transport, admin, url):
    """Where nothing else tells the row, its place does."""
    for bad, (column, value, ddl, says) in BAD.items():
        admin.execute(f"DROP TABLE IF EXISTS events; {ddl}".encode())
        text = refused(url, transport, STRUCT, rows_with(column, value))
        assert says in text
        assert "row 4 of the batch" in text or bad == "null"
        assert "pgonce_rows" not in text
        assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_row_of_a_refused_value_is_told_by_its_key(mode, admin, url):
    """By the upsert's keys, or the table's primary key."""
    for column, value, ddl, says in BAD.values():
        admin.execute(f"DROP TABLE IF EXISTS events; {ddl.replace('id bigint', 'id bigint PRIMARY KEY')}".encode())
        text = refused(url, "inline", STRUCT, rows_with(column, value), mode, ["id"] if mode == "upsert" else ())
        assert says in text
        assert " id = 4" in text


@pytest.mark.parametrize("ddl", [SHORT, SHORT.replace("n7 bigint", "n7 int")])
def test_the_row_of_a_refused_value_is_told_by_its_position(ddl, admin, url):
    """Whether it was copied straight or gathered."""
    admin.execute(ddl.encode())
    rows = sent(url, "inline", STRUCT, rows_with(TEXT, "abcd"))
    rows = replace(rows, positions=PositionColumns("topic", "partition", "offset", written=True))
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error) as error:
        write_batch_in_tx(connection, destination("events", "append", (), None), rows)
    assert "topic = orders, partition = 0, offset = 104" in str(target_error(error.value))


@pytest.mark.parametrize("transport", ["inline", "staged"])
def test_of_a_row_that_breaks_a_check_its_key_is_told(transport, admin, url):
    """Whether it was copied straight or gathered; nothing says which column it is."""
    admin.execute(TABLE.replace("id bigint", "id bigint PRIMARY KEY CHECK (id + n7 <> 9)").encode())
    text = refused(url, transport, STRUCT, rows_with(TEXT, "abc"))
    assert "CHECK_VIOLATION" in text
    assert " id = 4" in text


def test_a_check_of_another_table_is_blamed_on_no_row(admin, url):
    """A trigger writes there, and the row that breaks a CHECK of the target comes later."""
    admin.execute(TABLE.replace("id bigint", "id bigint PRIMARY KEY CHECK (id < 6)").encode())
    admin.execute(
        "CREATE TABLE log (id bigint CHECK (id < 3));"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END';"
        "CREATE TRIGGER logs BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION f()"
    )
    text = refused(url, "staged", STRUCT, rows_with(TEXT, "abc"))
    assert "CHECK_VIOLATION" in text
    assert "log_id_check" in text
    assert "It is" not in text


def test_an_error_of_a_trigger_is_blamed_on_no_column(admin, url):
    """All values are good in themselves."""
    admin.execute(NARROW.encode())
    admin.execute(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n7 = 1 / (NEW.id - 4); RETURN NEW; END';"
        "CREATE TRIGGER divides BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION f()"
    )
    text = refused(url, "inline", STRUCT, rows_with(TEXT, "abc"))
    assert "VALUE_NOT_STORABLE" in text
    assert "column" not in text.partition("Help:")[0]
    assert "PL/pgSQL function f()" in text


def test_a_row_that_is_not_found_in_time_is_not_named(url, admin, monkeypatch):
    """Postgres's own words are raised without it, because the writer's row is locked meanwhile."""
    admin.execute("CREATE TABLE timed (id bigint, name varchar(3))")
    columns = {"id": t.LongType(), "name": t.StringType()}
    with pytest.raises(TargetError, match=r"22001.*column name\b"):
        commit_typed(url, 0, destination("timed"), columns, [(1, "long")], staged=True)
    monkeypatch.setattr(refused_values, "_MOST_SECONDS", 0)
    with pytest.raises(TargetError, match="22001") as raised:
        commit_typed(url, 0, destination("timed"), columns, [(1, "long")], staged=True)
    assert "column name" not in str(raised.value)


MOMENT = datetime(2026, 1, 1)  # noqa: DTZ001 (it has no zone in the table either)
# The table's column, the rows' type, a value that fits, one that does not, and the type that holds both.
NARROW_COLUMNS = [
    ("varchar(3)", t.StringType(), "abc", "longer", "text"),
    ("char(3)", t.StringType(), "abc", "longer", "text"),
    ('varchar(3) COLLATE "C"', t.StringType(), "abc", "longer", 'text COLLATE pg_catalog."C"'),
    ("varchar(3)[]", t.ArrayType(t.StringType()), ["abc"], ["longer"], "text[]"),
    ("varchar(3)", t.MapType(t.StringType(), t.StringType()), None, {"a": "longer"}, "text"),
    ("bit(3)", t.StringType(), "101", "10101", "bit varying"),
    ("varbit(3)", t.StringType(), "101", "10101", "bit varying"),
    ("smallint", t.LongType(), 1, 1 << 40, "bigint"),
    ("integer", t.LongType(), 1, 1 << 40, "bigint"),
    ("integer[]", t.ArrayType(t.LongType()), [1], [1 << 40], "bigint[]"),
    ("integer", t.DecimalType(12, 2), Decimal("1.00"), Decimal("1.50"), "numeric"),
    ("bigint", t.DecimalType(38, 0), Decimal(1), Decimal(1 << 70), "numeric"),
    ("numeric(5,2)", t.DecimalType(12, 2), Decimal("999.99"), Decimal("1000.00"), "numeric"),
    ("numeric(5,2)", t.DecimalType(12, 4), Decimal("1.0000"), Decimal("1.0001"), "numeric"),
    ("numeric(10,2)", t.LongType(), 1, 1 << 40, "numeric"),
    ("timestamp(0)", t.TimestampNTZType(), MOMENT, MOMENT.replace(microsecond=5), "timestamp without time zone"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("staged", [False, True])
def test_the_statement_of_a_value_that_is_too_large_makes_room_for_it(staged, url, admin):
    """The value goes in once it was run, what was stored stays, and pgonce runs it in no case."""
    for kind, spark_type, fits, too_large, roomier in NARROW_COLUMNS:
        admin.execute(f"DROP TABLE IF EXISTS events; CREATE TABLE events (id bigint, k {kind})".encode())
        columns, query = {"id": t.LongType(), "k": spark_type}, str(uuid.uuid4())
        where = destination("events", schema_evolution="addColumns")
        commit_typed(url, 0, where, columns, [(1, fits)], query=query, staged=staged)
        with pytest.raises(TargetError, match=r"\[VALUE_NOT_STORABLE\]") as raised:
            commit_typed(url, 1, where, columns, [(2, too_large)], query=query, staged=staged)
        (statement,) = re.findall(r"make room for it: (ALTER TABLE .*)\. Then", raised.value.remedy)
        assert statement.startswith(f'ALTER TABLE "public"."events" ALTER COLUMN "k" TYPE {roomier}'), (kind, statement)
        admin.execute(statement.encode())
        # By another query, because the rows of this one's batch are staged already.
        commit_typed(url, 0, where, columns, [(2, too_large)], query=f"{query} later", staged=staged)
        stored = [value for (value,) in admin.execute("SELECT k FROM events ORDER BY id").fetchall()]
        assert (kind, stored[0]) == (kind, fits)
        assert (kind, stored[1]) == (kind, '{"a": "longer"}' if isinstance(too_large, dict) else too_large)


def test_no_statement_is_shown_for_a_value_that_no_larger_type_holds(url, admin):
    """What is no number or no label of the type, and what a domain says."""
    for ddl, spark_type, value in (
        ("CREATE TABLE events (id bigint, k numeric(5,2))", t.StringType(), "abc"),
        ("CREATE TABLE events (id bigint, k uuid)", t.StringType(), "abc"),
        ("DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE events (id bigint, k mood)",
         t.StringType(), "glad"),
        ("CREATE DOMAIN short AS varchar(3); CREATE TABLE events (id bigint, k short)", t.StringType(), "longer"),
        ("CREATE TABLE events (id bigint, k bigint NOT NULL)", t.LongType(), None),
    ):  # fmt: skip
        admin.execute(f"DROP TABLE IF EXISTS events; {ddl}".encode())
        with pytest.raises(TargetError) as raised:
            commit_typed(url, 0, destination("events"), {"id": t.LongType(), "k": spark_type}, [(1, value)])
        assert "It is column k" in raised.value.what, ddl
        assert "ALTER TABLE" not in raised.value.remedy
