"""Large upserts: MERGE leaves what ON CONFLICT leaves, and steps back where it might not."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus
from pyspark.sql import types as t
from support.blocked import wait_until_blocked
from support.sent_rows import publish
from support.typed_rows import struct_of

import pgonce.sink.writing.by_key.upsert
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.sink.writing.by_key.upsert import merged

STRUCT = struct_of({"id": t.LongType(), "region": t.StringType(), "amount": t.IntegerType()})
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, region text, amount int)"
ROWS = [(1, "north", 10), (2, "south", 20), (3, "east", 30)]


@pytest.fixture
def merges(monkeypatch):
    """Batches of any size may be merged; a list of what came of each."""
    outcomes = []

    def noted(*arguments):
        count = merged(*arguments)
        outcomes.append(count is not None)
        return count

    monkeypatch.setattr(pgonce.sink.writing.by_key.upsert, "MERGED_ROWS", 0)
    monkeypatch.setattr(pgonce.sink.writing.by_key.upsert, "merged", noted)
    return outcomes


def upsert(connection, rows, keys=("id",), order_by=None, table="events", **how):
    """Upsert rows in the transaction of ``connection``."""
    publish(connection, "inline", STRUCT, rows, "upsert", keys, order_by, table=table, **how)


def stored(admin, table="events"):
    """All rows, in some order."""
    return sorted(admin.execute(f"SELECT * FROM {table}".encode()).fetchall(), key=repr)


def is_postgres_14(admin):
    """Whether this server has no MERGE."""
    return admin.info.server_version < 150000


@pytest.mark.parametrize(
    ("ddl", "keys", "order_by"),
    [
        ("id bigint PRIMARY KEY, region text, amount int", ["id"], "amount"),
        ("id bigint, region text, amount int, PRIMARY KEY (region, id)", ["region", "id"], "amount"),
        ("id bigint, region varchar(9), amount int UNIQUE", ["amount"], "id"),
        ('amount numeric(9,2), "Region" text, more int, "ID" bigint PRIMARY KEY', ["id"], "amount"),
        ("id bigint PRIMARY KEY, region text, amount int DEFAULT 7", ["id"], "amount"),
    ],
)
def test_merge_leaves_what_on_conflict_leaves(ddl, keys, order_by, admin, url, merges, monkeypatch):
    """Batches of new, known and doubled keys, one after the other: both tables have the same rows after each."""
    for table in ("events", "by_conflict"):
        admin.execute(f"CREATE TABLE {table} ({ddl})".encode())
    seed = random.randrange(10**9)
    draw = random.Random(seed)
    for number in range(6):
        rows = [(draw.randrange(40), f"region {draw.randrange(9)}", draw.randrange(60)) for _ in range(80)]
        for table, least in (("events", 0), ("by_conflict", 10**9)):
            monkeypatch.setattr(pgonce.sink.writing.by_key.upsert, "MERGED_ROWS", least)
            with psycopg.connect(url) as connection:
                upsert(connection, rows, keys, order_by, table)
        assert stored(admin) == stored(admin, "by_conflict"), f"seed {seed}, batch {number}"
    assert merges == ([] if is_postgres_14(admin) else [True] * 6)


def test_a_key_that_another_writer_inserts_meanwhile_is_updated(admin, url, merges):
    """MERGE waits for the other's key and cannot take it; ON CONFLICT then updates that row."""
    admin.execute(TABLE.encode())
    with psycopg.connect(url) as other, psycopg.connect(url) as ours, ThreadPoolExecutor(1) as pool:
        other.execute("INSERT INTO events VALUES (2, 'theirs', 0), (9, 'theirs', 0)")
        writing = pool.submit(upsert, ours, ROWS)
        wait_until_blocked(admin, ours)
        other.commit()
        writing.result()
        ours.commit()
    assert stored(admin) == [*ROWS, (9, "theirs", 0)]
    assert merges == ([] if is_postgres_14(admin) else [False])


@pytest.mark.parametrize("known", [[], [(1, "known", 0)]])
@pytest.mark.parametrize("rows", [[*ROWS, (1, "hidden", 0), (1, "hidden", 1)], [(7, "x" * 50, 1)] * 2])
def test_one_key_that_is_doubled_is_named(rows, known, admin, url, merges):
    """Its values and how many rows have it, no other value, new key or known; the transaction stays failed."""
    admin.execute(TABLE.encode())
    for row in known:
        admin.execute("INSERT INTO events VALUES (%s, %s, %s)", row)
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.CardinalityViolation) as error:
            upsert(connection, rows)
        assert connection.info.transaction_status is TransactionStatus.INERROR
    refused = target_error(error.value)
    assert refused.code == "DOUBLED_KEYS"
    assert f" {sum(row[0] == rows[-1][0] for row in rows)} rows have id = {rows[-1][0]}." in str(refused)
    assert "hidden" not in str(refused)
    assert "xxx" not in str(refused)
    assert stored(admin) == known
    assert True not in merges


def test_what_on_conflict_refuses_is_refused_for_any_size(admin, url, merges):
    """MERGE needs no unique index, and must not let a table without one pass."""
    for ddl in (
        TABLE.replace("PRIMARY KEY", "UNIQUE DEFERRABLE"),
        TABLE.replace("PRIMARY KEY", "") + "; CREATE UNIQUE INDEX ON events (id) WHERE amount > 0",
        TABLE.replace("PRIMARY KEY", "") + "; CREATE UNIQUE INDEX ON events (abs(id))",
        TABLE.replace("PRIMARY KEY", ""),
        TABLE.replace("PRIMARY KEY", ", UNIQUE (region)").replace("id bigint ,", "id bigint,"),
    ):
        admin.execute(f"DROP TABLE IF EXISTS events; {ddl}".encode())
        with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.Error) as refused:
            upsert(connection, ROWS)
        assert refused.value.sqlstate in ("42P10", "55000")
        assert (ddl, merges) == (ddl, [])


def test_where_the_two_might_differ_it_is_on_conflict(admin, url, merges):
    """Triggers would see which it was; partitions, domains, casts and collations have rules of their own."""
    for ddl in (
        TABLE + "; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER seen BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION f()",
        TABLE + " PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF events FOR VALUES FROM (0) TO (99)",
        "CREATE DOMAIN key AS bigint CHECK (value > 0); " + TABLE.replace("id bigint", "id key"),
        TABLE.replace("id bigint", "id numeric(9,0)"),
        TABLE.replace("region text", 'region text COLLATE "C"'),
        TABLE.replace("amount int", "amount int, more int DEFAULT 7"),
        TABLE.replace("amount int", "amount int, more bigint GENERATED BY DEFAULT AS IDENTITY"),
        TABLE.replace("amount int", "amount int, twice bigint GENERATED ALWAYS AS (id * 2) STORED"),
        TABLE.replace("amount int", "amount int CHECK (amount > 0)"),
        TABLE.replace("amount int", "amount int, EXCLUDE (amount WITH =)"),
    ):
        admin.execute(f"DROP TABLE IF EXISTS events; {ddl}".encode())
        if "COLLATE" in ddl:
            admin.execute("CREATE UNIQUE INDEX ON events (region)")
        for _ in range(2):
            with psycopg.connect(url) as connection:
                upsert(connection, ROWS, ["region"] if "COLLATE" in ddl else ["id"])
        assert [row[:3] for row in stored(admin)] == ROWS
        assert (ddl, merges) == (ddl, [])


def test_columns_that_no_update_sets_are_checked_in_a_batch_of_any_size(admin, url, merges):
    """ON CONFLICT refuses a value for its column even if the row is there, and MERGE would not look at it."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, region text, amount int NOT NULL)")
    admin.execute("INSERT INTO events VALUES (1, 'eu', 1)")
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.NotNullViolation):
        upsert(connection, [(1, "us", None)], update_columns=["region"])
    assert merges == []


@pytest.mark.parametrize(
    ("key", "keys"), [("PRIMARY KEY (region, id)", ["id", "region"]), ("UNIQUE (id, region, amount)", STRUCT.names)]
)
def test_keys_in_another_order_or_alone_are_for_on_conflict(key, keys, admin, url, merges):
    """A join goes through the rows in the index's order; and where a row is all key there is nothing to update."""
    admin.execute(f"CREATE TABLE events (id bigint, region text, amount int, {key})".encode())
    for _ in range(2):
        with psycopg.connect(url) as connection:
            upsert(connection, ROWS, keys)
    assert stored(admin) == ROWS
    assert merges == []


def test_a_unique_index_that_goes_away_while_the_batch_waits_is_missed(admin, url, merges):
    """The table is locked before it is looked at: MERGE would let a doubled key in; ON CONFLICT refuses."""
    admin.execute(TABLE.encode())
    with psycopg.connect(url) as migration, psycopg.connect(url) as ours, ThreadPoolExecutor(1) as pool:
        migration.execute("ALTER TABLE events DROP CONSTRAINT events_pkey")
        writing = pool.submit(upsert, ours, [*ROWS, (3, "again", 0)])
        wait_until_blocked(admin, ours)
        migration.commit()
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            writing.result()
    assert stored(admin) == []
    assert merges == []


def test_a_role_that_may_not_read_the_table_hears_so_for_any_size(admin, url, merges, login):
    """ON CONFLICT needs SELECT on what it updates from, and so does a large batch."""
    admin.execute(TABLE.encode())
    grants = "GRANT INSERT, UPDATE, SELECT (id) ON events TO {role}; GRANT TEMPORARY ON DATABASE {database} TO {role}"
    names = {"role": sql.Identifier(login.user), "database": sql.Identifier(admin.info.dbname)}
    admin.execute(sql.SQL(grants).format(**names))
    with psycopg.connect(login.url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        upsert(connection, ROWS)
    assert merges == []


def test_rows_of_tables_that_inherit_are_not_touched(admin, url, merges):
    """As with ON CONFLICT: the key counts within the table that is named."""
    admin.execute(TABLE.encode())
    admin.execute(b"CREATE TABLE child () INHERITS (events); INSERT INTO child VALUES (1, 'child', 0)")
    with psycopg.connect(url) as connection:
        upsert(connection, ROWS)
    assert sorted(admin.execute("SELECT * FROM ONLY events").fetchall()) == ROWS
    assert admin.execute("SELECT * FROM child").fetchall() == [(1, "child", 0)]
    assert False not in merges
