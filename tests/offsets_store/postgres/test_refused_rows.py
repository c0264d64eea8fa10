"""What Postgres refuses is said with a way out that fits."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import types as t
from support.committed_rows import STRUCT, TABLE
from support.sent_rows import publish

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.sink.encoding.encoded_types import encoded_columns
from pyspark_pgonce import DefaultSource

KEYED = "CREATE TABLE events (id bigint UNIQUE, name text)"
PUBLISHED = "; CREATE PUBLICATION changes FOR TABLE events; INSERT INTO events VALUES (1, 'a')"
REFERRED = (
    "CREATE TABLE events (id bigint PRIMARY KEY, name text); INSERT INTO events VALUES (9, 'nine');"
    "CREATE TABLE children (id bigint REFERENCES events); INSERT INTO children VALUES (9)"
)
PARTITIONED = TABLE + " PARTITION BY LIST (id); CREATE TABLE one PARTITION OF events FOR VALUES IN (1)"
NUMBERED = "CREATE SEQUENCE few MAXVALUE 2; SELECT nextval('few');" + TABLE.replace(
    ")", ", n int DEFAULT nextval('few'))"
)
CHECKED = TABLE.replace(")", " CHECK (name <> 'two'))")
TRIGGER = (
    TABLE + "; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {}; RETURN NEW; END';"
    "CREATE TRIGGER late BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION f()"
)


def refusal(url, mode="append", keys=()):
    """The error's text for two rows."""
    with pytest.raises((psycopg.Error, PgonceError)) as refused:
        publish(url, "inline", STRUCT, [(1, "one"), (2, "two")], mode, keys)
    error = refused.value
    return error if isinstance(error, PgonceError) else target_error(error)


@pytest.mark.parametrize(
    ("ddl", "mode", "code", "remedy"),
    [
        (TABLE + PUBLISHED, "complete", "NO_REPLICA_IDENTITY", "REPLICA IDENTITY"),
        (KEYED + PUBLISHED, "upsert", "NO_REPLICA_IDENTITY", "REPLICA IDENTITY"),
        (REFERRED, "complete", "FOREIGN_KEY_VIOLATION", "use upsert"),
        (KEYED.replace("UNIQUE", "UNIQUE DEFERRABLE"), "upsert", "NO_UNIQUE_KEY", "NOT DEFERRABLE"),
        (PARTITIONED, "append", "NO_PARTITION", "DEFAULT"),
        (NUMBERED, "append", "SEQUENCE_EXHAUSTED", "bigint"),
        (CHECKED, "append", "CHECK_VIOLATION", "in Spark"),
        (TRIGGER.format("RAISE EXCEPTION ''too late''"), "append", "TARGET_FAILED", "trigger"),
        (TRIGGER.format("NEW.id = (SELECT generate_series(1, 2))"), "append", "TARGET_FAILED", "SQLSTATE"),
    ],
)
def test_every_refusal_has_the_way_out_that_belongs_to_it(ddl, mode, code, remedy, admin, url):
    """One SQLSTATE may mean several things; and nobody is told that what fails again may be started again as it is."""
    admin.execute(ddl.encode())
    error = refusal(url, mode, ["id"] if mode == "upsert" else ())
    assert error.code == code
    assert remedy in error.remedy
    assert "as it is" not in error.remedy


@pytest.mark.parametrize(
    ("table", "create_table", "path", "says"),
    [
        ("nowhere.events", False, "public", "nowhere"),
        ("nowhere.events", True, "public", "nowhere"),
        ("events", True, "nowhere", "search_path"),
    ],
)
def test_a_schema_that_is_missing_is_what_the_error_says(table, create_table, path, says, url):
    """And not that a table is missing, or that its name is none."""
    url += f"&options=-csearch_path%3D{path}"
    with pytest.raises(PgonceError, match=rf"TARGET_MISSING.*{says}"):
        publish(url, "inline", STRUCT, [(1, "one")], table=table, create_table=create_table)


def test_malformed_json_is_not_repeated_as_the_place_of_the_error(admin, url):
    """Postgres gives the text itself as the context."""
    admin.execute("CREATE TABLE events (id bigint, name json)")
    with pytest.raises(psycopg.Error) as refused:
        publish(url, "inline", STRUCT, [(1, '{"card": 4711')])
    assert "4711" in refused.value.diag.context
    assert "4711" not in str(target_error(refused.value))


def wide(columns):
    """A frame's type of so many columns."""
    return t.StructType([t.StructField(f"c{n}", t.IntegerType()) for n in range(columns)])


@pytest.mark.parametrize(("transport", "columns"), [("inline", 1600), ("both", 1599)])
def test_as_many_columns_as_a_table_has(transport, columns, admin, url):
    """The tables in which rows are gathered have no column more; a staging table has one."""
    names = ", ".join(f"c{n} int" for n in range(1, columns))
    admin.execute(f"CREATE TABLE events (c0 int PRIMARY KEY, {names})".encode())
    rows = [tuple(range(n, n + columns)) for n in range(4)]
    publish(url, transport, wide(columns), rows, "upsert", ["c0"], "c1")
    assert sorted(admin.execute("SELECT * FROM events").fetchall()) == rows


def test_more_columns_are_refused_at_the_first_batch_and_not_when_one_is_large(tmp_path):
    """Whatever could be staged must be able to be."""
    source = DefaultSource({"url": "", "table": "events", "checkpointLocation": str(tmp_path)})
    with pytest.raises(PgonceError, match="TOO_MANY_COLUMNS.*PostgresBatchWriter"):
        source.streamWriter(wide(1600), overwrite=False)
    with pytest.raises(PgonceError, match="TOO_MANY_COLUMNS"):
        encoded_columns(wide(1601))
