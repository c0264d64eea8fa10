"""
Rows into tables, without Spark: both transports do the same to every kind of target, in every mode.

Covers: sink.writing.rows, sink.writing.table.catalogue, sink.writing.checked_table,
sink.writing.by_key.statements, sink.writing.table.table_name, sink.writing.written.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from pyspark.sql import types as t
from support.fixtures.postgres import url_with
from support.rows import given_rows
from support.sent_rows import arrow_rows, publish
from support.typed_rows import staged_rows, struct_of
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import PgonceError, TargetError
from pgonce.offsets_store.ledger.migrations import grants, migrate
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagedRows, StagingTable, drop_staging_table, sweep

TYPES = {"id": t.LongType(), "name": t.StringType(), "at": t.IntegerType()}
STRUCT = struct_of(TYPES)
COLUMNS = encoded_columns(STRUCT)
STAGING = StagingTable("query", "events", "run", 7)
TRANSPORTS = ("inline", "staged", "both")


def promised(number):
    """Rows of which the commit messages promise this many, under mark 3 of the staging table."""
    return given_rows(COLUMNS, number, list, StagedRows(STAGING, ((3, number),)))


def write(url, rows):
    """Append these rows to the table."""
    with psycopg.connect(url) as connection:
        write_batch_in_tx(connection, destination("events"), rows)


ROWS = [(n, f"name {n}", n * 10) for n in range(1, 7)]


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE events (id bigint, name text, at int)",
        "CREATE TABLE events (at int, extra int DEFAULT 5, name text, id bigint)",
        "CREATE TABLE events (id int, name varchar(20), at bigint)",
        "CREATE TABLE events (id numeric, name text, at numeric(6,2))",
        'CREATE TABLE events ("ID" bigint, "Name" text, at int)',
        "CREATE TABLE events (key bigint GENERATED ALWAYS AS IDENTITY, id bigint, name text, at int)",
        "CREATE TABLE events (id bigint, name text, at int, twice bigint GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE DOMAIN few AS bigint CHECK (value < 100); CREATE TABLE events (id few NOT NULL, name text, at int)",
        "CREATE TABLE events (id bigint, name text, at int) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF events FOR VALUES FROM (0) TO (4);"
        "CREATE TABLE high PARTITION OF events FOR VALUES FROM (4) TO (99)",
    ],
)
def test_every_kind_of_table_gets_the_same_rows_by_every_transport(ddl, admin, url):
    """Column order, other types, capitals, identity, generated columns, domains and partitions make no difference."""
    admin.execute(ddl.encode())
    columns = '"ID", "Name", at' if '"ID"' in ddl else "id, name, at"
    for transport in TRANSPORTS:
        admin.execute("TRUNCATE events")
        publish(url, transport, STRUCT, ROWS)
        found = admin.execute(f"SELECT {columns} FROM events ORDER BY 1".encode()).fetchall()
        assert [(int(i), n, int(a)) for i, n, a in found] == ROWS, transport


def test_an_identity_that_the_rows_bring_is_refused_with_the_statement_that_lets_them(admin, url):
    """To drop the column from the rows is no way out where it is their key."""
    admin.execute("CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, at int)")
    with pytest.raises(TargetError, match="COLUMN_GENERATED") as refused:
        publish(url, "inline", STRUCT, ROWS, "upsert")
    admin.execute(str(refused.value).partition("key: ")[2].rstrip(".").encode())
    publish(url, "inline", STRUCT, ROWS, "upsert")
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (6,)


@pytest.mark.parametrize("check", ["NOT NULL", "CHECK (value IS NOT NULL)"])
def test_a_domain_of_a_column_that_the_rows_lack_is_asked_by_every_transport(check, admin, url):
    """COPY alone does not ask it. A default of the domain is one of the column."""
    admin.execute(
        f"CREATE DOMAIN given AS text {check}; CREATE DOMAIN five AS int NOT NULL DEFAULT 5; "
        "CREATE TABLE events (id bigint, name text, at int, more five, x given)".encode()
    )
    for transport in TRANSPORTS:
        with pytest.raises((TargetError, psycopg.errors.IntegrityError), match="null|COLUMN_MISSING|check constraint"):
            publish(url, transport, STRUCT, ROWS)
    admin.execute("ALTER TABLE events DROP x")
    for transport in TRANSPORTS:
        publish(url, transport, STRUCT, ROWS)
    assert admin.execute("SELECT DISTINCT more FROM events").fetchall() == [(5,)]


def test_row_level_security_is_obeyed_by_every_transport(admin, url, login):
    """COPY does not go with row-level security, so rows take the way of INSERT, and the policy decides."""
    migrate(admin)
    admin.execute("CREATE TABLE events (id bigint, name text, at int)")
    admin.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
    admin.execute("CREATE POLICY small ON events USING (true) WITH CHECK (id < 7)")
    for statement in (*grants(login.user), f'GRANT INSERT, SELECT ON events TO "{login.user}"'):
        admin.execute(statement.encode())
    for times, transport in enumerate(TRANSPORTS, 1):
        publish(login.url, transport, STRUCT, ROWS)
        assert admin.execute("SELECT count(*) FROM events").fetchone() == (6 * times,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            publish(login.url, transport, STRUCT, [ROWS[0], (7, "too large", 0)])


@pytest.mark.parametrize("transport", ["inline", "staged"])
def test_of_doubled_keys_the_greatest_order_wins_and_of_ties_the_last(transport, admin, url):
    """The column in orderBy decides; rows that tie are taken in the order in which they came."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, at int)")
    admin.execute("INSERT INTO events VALUES (2, 'stored', 0), (9, 'other', 0)")
    doubled = [(1, "new", 5), (1, "old", 4), (2, "first", 7), (2, "last", 7), (3, "null", None), (3, "some", 0)]
    publish(url, transport, STRUCT, doubled, "upsert", ["id"], "at")
    stored = admin.execute("SELECT id, name FROM events ORDER BY id").fetchall()
    assert stored == [(1, "new"), (2, "last"), (3, "some"), (9, "other")]


def test_complete_replaces_all_rows_and_readers_never_see_the_table_empty(admin, url):
    """A reader inside the replacing transaction's life sees the old rows; after it, the new ones."""
    admin.execute("CREATE TABLE events (id bigint, name text, at int)")
    for transport in TRANSPORTS:
        admin.execute("TRUNCATE events; INSERT INTO events VALUES (50, 'old', 0)")
        with psycopg.connect(url) as connection:
            publish(connection, transport, STRUCT, ROWS, "complete")
            assert admin.execute("SELECT id FROM events").fetchall() == [(50,)]
        assert admin.execute("SELECT * FROM events ORDER BY id").fetchall() == ROWS


def test_an_unqualified_name_follows_the_search_path(admin, url):
    """A table is found as SQL would find it."""
    admin.execute("CREATE SCHEMA app")
    admin.execute("CREATE TABLE app.events (id bigint, name text, at int)")
    publish(url_with(url, options="-csearch_path=app"), "inline", STRUCT, ROWS)
    assert admin.execute("SELECT count(*) FROM app.events").fetchone() == (6,)


def test_what_fails_in_making_rows_is_no_business_of_the_server(admin, url, monkeypatch):
    """The caller hears what failed; Postgres, which logs the text of what ends a COPY, hears nothing of it."""
    admin.execute("CREATE TABLE events (id bigint, name text, at int)")
    heard = []
    finish = psycopg.Copy.finish
    monkeypatch.setattr(psycopg.Copy, "finish", lambda copy, error: (heard.append(repr(error)), finish(copy, error)))

    def failing():
        yield CopyEncoder(STRUCT).encode(arrow_rows(STRUCT, ROWS))
        raise RuntimeError("the value 'a secret' is malformed")

    with pytest.raises(RuntimeError, match="a secret"):
        write(url, given_rows(COLUMNS, 6, failing))
    assert len(heard) == 1
    assert "secret" not in heard[0]
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_staged_rows_that_are_not_those_promised_are_refused(admin, url):
    """Fewer rows than promised, or more, mean that the staging table is not to be trusted; or it may be gone."""
    admin.execute("CREATE TABLE events (id bigint, name text, at int)")
    staged_rows(url, STAGING, TYPES, ROWS)
    for number in (5, 7):
        with pytest.raises(PgonceError, match="STAGED_ROWS_LOST.*mark 3"):
            write(url, promised(number))
    drop_staging_table(admin, STAGING.name)
    with pytest.raises(PgonceError, match="STAGED_ROWS_LOST"):
        write(url, promised(6))
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_rows_that_a_trigger_leaves_out_were_there_all_the_same(admin, url):
    """A trigger may leave rows out: before staged rows are called lost, they are counted where they were staged."""
    admin.execute("CREATE TABLE events (id bigint, name text, at int)")
    admin.execute(
        "CREATE FUNCTION no_odd() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.id % 2 = 1 THEN RETURN NULL; END IF; RETURN NEW; END'"
    )
    admin.execute("CREATE TRIGGER no_odd BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION no_odd()")
    for transport in TRANSPORTS:
        admin.execute("TRUNCATE events")
        publish(url, transport, STRUCT, ROWS)
        assert admin.execute("SELECT id FROM events ORDER BY 1").fetchall() == [(2,), (4,), (6,)], transport


def test_a_crash_of_postgres_between_staging_and_commit_is_noticed(url, postgres_server, admin):
    """Unlogged tables empty themselves in a crash; the count of rows tells."""
    if postgres_server.embedded is None:
        pytest.skip("only an embedded server can be crashed")
    admin.execute("CREATE TABLE events (id bigint, name text, at int)")
    staged_rows(url, STAGING, TYPES, ROWS)
    postgres_server.embedded.crash()
    with pytest.raises(PgonceError, match="STAGED_ROWS_LOST"):
        write(url, promised(6))


# What the ledger knows of the run that has published batch 7.
PUBLISHED = """
WITH w AS (INSERT INTO pgonce.writers (query_id, sink_name) VALUES ('query', 'events') RETURNING writer_id)
INSERT INTO pgonce.runs (writer_id, run_id, first_batch_id) SELECT writer_id, 'run', 7 FROM w
"""


def test_the_sweep_drops_decided_tables_and_leaves_the_others(admin, url):
    """Tables up to the published batch go, its run's and older ones; later batches', other sinks', successors' stay."""
    later = StagingTable("query", "events", "run", 8)
    zombies = StagingTable("query", "events", "older run", 7)
    other_sink = StagingTable("query", "other", "a run of another sink", 7)
    successors = StagingTable("query", "events", "next run", 6)
    for table in (STAGING, later, zombies, other_sink):
        staged_rows(url, table, TYPES, ROWS)
    admin.execute(PUBLISHED)
    staged_rows(url, successors, TYPES, ROWS)
    sweep(admin, "query", "events", "run", 7)
    left = {row[0] for row in admin.execute("SELECT table_name FROM pgonce.staged_tables").fetchall()}
    there = {
        row[0]
        for row in admin.execute("SELECT relname FROM pg_class WHERE relname LIKE 'staged\\_%' AND relkind = 'r'")
        if row[0] != "staged_tables"
    }
    assert left == there == {later.name, other_sink.name, successors.name}


def test_a_table_that_a_task_of_an_older_run_makes_afterwards_is_swept(admin, url):
    """A task may outlive its run. When its batch was planned tells it from a successor's, which is left alone."""
    admin.execute(PUBLISHED)
    now = int(time.time() * 1000)
    late = StagingTable("query", "events", "older run", 7, now - 60_000)
    successors = StagingTable("query", "events", "next run", 7, now + 60_000)
    for table in (late, successors):
        staged_rows(url, table, TYPES, ROWS)
    sweep(admin, "query", "events", "run", 7)
    assert admin.execute("SELECT table_name, created_at <= now() FROM pgonce.staged_tables").fetchall() == [
        (successors.name, True)
    ]


def test_the_sweep_does_not_wait_for_a_task_that_still_writes(admin, url):
    """A zombie's task keeps its table until the next sweep."""
    staged_rows(url, STAGING, TYPES, ROWS)
    with psycopg.connect(url) as zombie:
        zombie.execute(f"INSERT INTO {STAGING.qualified_name} (id) VALUES (1)".encode())
        sweep(admin, "query", "events", "run", 7)
        assert admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (1,)
    sweep(admin, "query", "events", "run", 7)
    assert admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (0,)


def test_tasks_that_start_together_share_one_staging_table(admin, url):
    """Only one of them creates it; all rows are there."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda attempt: staged_rows(url, STAGING, TYPES, [(attempt, "x", 0)], attempt), range(16)))
    assert admin.execute(f"SELECT count(*) FROM {STAGING.qualified_name}".encode()).fetchone() == (16,)
    assert admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (1,)


def test_the_name_of_a_staging_table_fits_postgres():
    """Postgres cuts names after 63 bytes in silence, and two cut names would be one table."""
    longest = StagingTable("q" * 36, "s" * 200, "r" * 36, 2**63 - 1)
    assert len(longest.name) <= 63
