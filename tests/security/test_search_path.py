"""
Whatever stands first on the search_path: our statements mean Postgres's own names, the user's mean the user's.

Covers: offsets_store.postgres.search_path.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes
from support.batches import make_planned_batch
from support.committed_batch import commit, commit_function, inline, rows_in
from support.dead_letters import STRUCT, put_aside, replayed
from support.evil_schema import make_evil
from support.fixtures.postgres import PostgresServer, made_database, url_with
from support.routed_rows import commit as commit_routed
from support.routed_rows import routed, routes
from support.with_rooms import work_into, write_batch_in_tx
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.dead_letters.chosen_letters import chosen_letters, discard_letters
from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger, init_sql, ledgers_seen
from pgonce.offsets_store.ledger.session import is_recorded
from pgonce.offsets_store.postgres.connect import connect, engine_for
from pgonce.offsets_store.progress.heard import Heard
from pgonce.offsets_store.progress.stored_progress import store_progress_in_tx
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import sweep
from pgonce.sink.writing import routes as by_route

PATHS = (
    "evil, pg_catalog",
    "evil",
    "evil, public",
    '"$user", evil, public, pg_catalog',
    "pg_temp, evil, pg_catalog, public",
    "",
)
TABLES = """
CREATE TABLE public.events (id bigint, name text);
CREATE TABLE public.cast_events (id numeric, name varchar(20), made timestamptz DEFAULT now());
CREATE TABLE public.kinds (id bigint, name uuid);
CREATE TABLE public.sums (id bigint PRIMARY KEY, name text);
CREATE TABLE public.changed (id numeric PRIMARY KEY, name text, seq timestamp, gone_at timestamptz);
CREATE FUNCTION public.same() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER same BEFORE INSERT OR UPDATE OR DELETE ON public.changed FOR EACH ROW EXECUTE FUNCTION public.same();
"""
UUID = "11111111-1111-1111-1111-111111111111"


@pytest.fixture(scope="module")
def evil_database(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with the schema ``evil`` in it."""
    with made_database(postgres_server.url("postgres"), "TEMPLATE template0") as name:
        with psycopg.connect(postgres_server.url(name), autocommit=True) as admin:
            shadowed = make_evil(admin)
            admin.execute(TABLES)
        # The list comes from the source, so a rename there must not empty it.
        assert {"set_config", "current_setting", "to_regclass", "hashtextextended", "clock_timestamp"} <= shadowed
        yield name


@pytest.fixture
def admin(postgres_server, evil_database) -> Iterator[psycopg.Connection]:
    """A connection with an ordinary search_path; there is no ledger, and the tables are empty."""
    with psycopg.connect(postgres_server.url(evil_database), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS pgonce, pgonce_staging CASCADE")
        connection.execute("TRUNCATE events, cast_events, kinds, sums")
        connection.execute("DROP TABLE IF EXISTS public.made, public.made_with_key")
        ledgers_seen.clear()
        yield connection


@pytest.fixture(params=PATHS)
def evil_url(request, postgres_server, evil_database) -> Iterator[str]:
    """A url whose sessions have one of the search_paths; at the end, nothing of evil was ever called."""
    escaped = request.param.replace(" ", "\\ ")
    url = postgres_server.url(evil_database, options=f"-csearch_path={escaped}")
    with psycopg.connect(url) as connection:
        assert connection.execute("SHOW search_path").fetchone() == (request.param,)
    before = log_of(postgres_server)
    yield url
    engine_for(url).dispose()
    assert "evil was called" not in log_of(postgres_server).removeprefix(before)


def log_of(server: PostgresServer) -> str:
    """The server's log, where it can be read; elsewhere the exceptions of evil must do."""
    return server.embedded.log_text() if server.embedded else ""


def test_a_path_with_evil_first_would_catch_an_unqualified_statement(evil_database, postgres_server):
    """The schema bites: each kind of name, used without its schema, is found there and fails."""
    for statement in (
        "SELECT set_config('a.b', 'c', true)",
        "SELECT set_config('a.b'::varchar, 'c'::varchar, true)",
        "SELECT 'a'::text = 'a'::varchar",
        "SELECT 1 = 1",
        "SELECT count(*) FROM pg_catalog.pg_class",
        "SELECT * FROM writers",
        "SELECT CASE 1 WHEN 1 THEN 2 END",
        "SELECT '{}'::jsonb",
        "SELECT current_schema()",
    ):
        url = postgres_server.url(evil_database, options="-csearch_path=evil,pg_catalog")
        with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="evil was called"):
            connection.execute(statement.encode()).fetchall()


@pytest.mark.parametrize("is_indexed", [False, True])
def test_rows_choose_their_tables_and_evil_is_never_called(evil_url, admin, monkeypatch, is_indexed):
    """Routes are counted, compared and indexed, and unknown ones put aside, by nothing but pg_catalog."""
    monkeypatch.setattr(by_route, "INDEXED_TABLES", 2 if is_indexed else 1000)
    monkeypatch.setattr(by_route, "INDEXED_ROWS", 1)
    admin.execute("DROP TABLE IF EXISTS public.routed; CREATE TABLE public.routed (id bigint PRIMARY KEY, name text)")
    tables = {"a": {"table": "public.routed", "mode": "upsert"}, "b": {"table": "public.events", "columns": "id,name"}}
    where = routes(tables, unknown_routes="deadLetters", dead_letters=True)
    rows = routed(("a", 1, "one"), ("b", 2, "two"), ("c", 3, "three"))
    batch = make_planned_batch(query_id="router", start=None, end=None)
    assert commit_routed(evil_url, batch, where, rows) is Verdict.NEW
    assert (rows_in(admin, "public.routed"), rows_in(admin, "events")) == ([(1, "one")], [(2, "two")])
    assert admin.execute("SELECT row_data ->> 'kind' FROM pgonce.dead_letters").fetchall() == [("c",)]


def test_bad_rows_are_halved_and_evil_is_never_called(evil_url, admin):
    """The function that finds them compares and counts by nothing but pg_catalog."""
    admin.execute("DROP TABLE IF EXISTS public.halved; CREATE TABLE public.halved (id bigint, name text)")
    admin.execute("CREATE UNIQUE INDEX ON public.halved (lower(name))")
    where = destination("public.halved", dead_letters=True)
    rows = inline([(1, "one"), (2, "two"), (3, "ONE"), (4, "four"), (5, "Two")])
    batch = make_planned_batch(query_id="halver", start=None, end=None)
    assert commit_routed(evil_url, batch, where, rows) is Verdict.NEW
    assert rows_in(admin, "public.halved") == [(1, "one"), (2, "two"), (4, "four")]
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters WHERE query_id = 'halver'").fetchone() == (2,)


def test_batches_are_published_by_every_way_and_evil_is_never_called(evil_url, admin):
    """Ledger, staging, casts, keys, new tables, replays and takeovers need nothing but pg_catalog."""
    ways = [
        destination("public.events"),
        destination("public.cast_events"),
        destination("public.sums", "upsert", ("id",)),
        destination("public.sums", "upsert", ("id",), "name"),
        destination("public.events", "complete"),
        destination("public.made", create_table=True),
        destination("public.made_with_key", "upsert", ("id",), "name", create_table=True),
    ]
    for number, where in enumerate(ways):
        for staged in (False, True):
            batch = {"query_id": f"q {number} {staged}", "start": None, "end": None}
            first, again = make_planned_batch(**batch), make_planned_batch(**batch, run_id="run 2")
            assert commit(evil_url, first, where, staged=staged, independent=True) is Verdict.NEW
            assert commit(evil_url, again, where) is Verdict.REPLAY
            assert is_recorded(evil_url, first.query_id, 0, first.attempt)
            assert is_recorded(evil_url, first.query_id, 0, again.attempt)
            with connect(evil_url, autocommit=True) as connection:
                sweep(connection, batch["query_id"], where.table, "run 1", 0)
    commit(evil_url, make_planned_batch(query_id="uuid", end=None), destination("public.kinds"), [(1, UUID)])
    rows = [(1, "one"), (2, "two")]
    assert rows_in(admin, "public.sums") == rows_in(admin, "public.made_with_key") == rows_in(admin, "events") == rows
    assert [row[:2] for row in rows_in(admin, "public.cast_events")] == sorted(rows * 2)
    assert rows_in(admin, "public.made") == sorted(rows * 2)
    commit(evil_url, make_planned_batch(query_id="old"), ways[0], independent=True)
    heirs = CommitSettings(url=evil_url, remedies=Remedies(replaces="old"), retry_timeout=0)
    heir = make_planned_batch(query_id="heir", start={"0": {"t": {"0": 10}}}, end={"0": {"t": {"0": 20}}})
    assert commit_batch(heirs, heir, work_into(None, ways[0], inline(rows))) is Verdict.NEW


@pytest.mark.parametrize("transport", ["inline", "staged"])
def test_changes_are_applied_and_evil_is_never_called(transport, evil_url, admin):
    """Reducing, comparing, deleting, remembering and looking at what triggers did need nothing but pg_catalog."""
    ensure_ledger(evil_url)
    struct = changes(id=t.LongType(), name=t.StringType(), seq=t.DateType())
    first, second, third = (date(2026, 1, day) for day in (1, 2, 3))
    how = {"struct": struct, "transport": transport, "table": "public.changed", "keep_where": "?"}
    for options in ({"only_newer": True}, {}, {"deletes": "soft:gone_at", "only_newer": True}):
        apply(evil_url, (1, "one", first, WRITE), (2, "two", second, WRITE), **how, **options)
        apply(evil_url, (1, "?", third, WRITE), (2, None, third, DELETE), (3, None, third, DELETE), **how, **options)
        apply(evil_url, (2, "late", first, WRITE), (1, "old", first, DELETE), **how, **options)
        admin.execute("TRUNCATE changed, pgonce.tombstones, pgonce.tombstone_sets")


def test_rows_are_written_in_their_order_and_evil_is_never_called(evil_url, admin):
    """Numbering the rows, halving them and asking whether a value has moved need nothing but pg_catalog."""
    ensure_ledger(evil_url)
    admin.execute(
        "DROP TABLE IF EXISTS public.moved;"
        "CREATE TABLE public.moved (id bigint PRIMARY KEY, u bigint UNIQUE, parent bigint REFERENCES public.moved "
        "ON DELETE CASCADE, name text, seq date)"
    )
    struct = changes(id=t.LongType(), u=t.LongType(), parent=t.LongType(), name=t.StringType(), seq=t.DateType())
    days = [date(2026, 1, day) for day in range(1, 9)]
    how = {"struct": struct, "table": "public.moved", "keep_where": "?", "dead_letters": True}
    admin.execute("TRUNCATE pgonce.dead_letters")
    apply(evil_url, *((n, n, None, "a", days[0], WRITE) for n in (1, 2, 3)), **how)
    rows = [(2, 4, 1, "?", days[1], WRITE), (1, 2, None, "b", days[2], WRITE), (9, 3, None, "c", days[3], WRITE)]
    moved = [(2, 4, 3, "?", days[4], WRITE), (1, None, None, None, days[5], DELETE), (8, 8, None, "?", days[6], WRITE)]
    apply(evil_url, *rows, *moved, **how)
    assert admin.execute("SELECT id, u, parent, name FROM public.moved ORDER BY id").fetchall() == [
        (2, 4, 3, "a"), (3, 3, None, "a")
    ]  # fmt: skip


def test_an_administrators_ledger_means_what_it_says(evil_url, admin):
    """Migrations, run or printed, and the views that they leave behind are made of pg_catalog's names."""
    ensure_ledger(evil_url)
    admin.execute("DROP SCHEMA pgonce CASCADE")
    with psycopg.connect(evil_url, autocommit=True) as administrator:
        administrator.execute(init_sql("postgres").encode())
    ledgers_seen.clear()
    ensure_ledger(evil_url)
    commit(evil_url, make_planned_batch(), destination("public.events"))
    with psycopg.connect(evil_url) as reader:
        assert reader.execute("SELECT topic, partition, end_offset FROM pgonce.current_offsets").fetchall() == [
            ("t", 0, 10)
        ]
    named_in_evil = admin.execute(
        "SELECT count(*) FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid "
        "JOIN pg_class AS v ON v.oid = r.ev_class JOIN pg_proc AS p ON p.oid = d.refobjid "
        "WHERE v.relnamespace = 'pgonce'::regnamespace AND p.pronamespace = 'evil'::regnamespace"
    ).fetchone()
    assert named_in_evil == (0,)


def test_readers_and_the_listener_call_nothing_of_evil(evil_url, admin):
    """OffsetsStore, `pgonce` and the listener's statements, each over a connection that is new."""
    commit(evil_url, make_planned_batch(), destination("public.events"))
    engine_for(evil_url).dispose()
    store = OffsetsStore(evil_url)
    assert store.latest("q1").batch_id == 0
    assert [batch.rows for batch in store.history("q1")] == [2]
    heard = Heard("q1", "run 1", 0, None, datetime(2026, 1, 1, tzinfo=timezone.utc), 2, {}, {"0": 1}, {"0": 1}, {})
    with engine_for(evil_url).begin() as connection:
        store_progress_in_tx(connection, heard)
    assert store.status()[0][0].batch_id == 0
    for arguments in (["status"], ["init", "--role", "postgres"]):
        assert CliRunner().invoke(app, [*arguments, "--url", evil_url]).exit_code == 0


def test_those_who_wait_call_nothing_of_evil(evil_url, admin):
    """The body of pgonce.wait_for runs in the session of its caller, and means pg_catalog's names."""
    commit(evil_url, make_planned_batch(), destination("public.events"))
    with psycopg.connect(evil_url, autocommit=True) as connection:
        for offset, expected in ((9, True), (10, False)):
            # pg_catalog's types: a caller's own statement is the caller's to qualify.
            call = """SELECT pgonce.wait_for('q1'::pg_catalog.text, '{"t": {"0": %s}}'::pg_catalog.jsonb,
                '50 ms'::pg_catalog.interval)"""
            assert connection.execute(call % offset).fetchone() == (expected,)
            assert OffsetsStore(evil_url).wait_for("q1", {"t": {0: offset}}, 0.05) is expected


def test_dead_letters_are_listed_replayed_and_discarded_and_evil_is_never_called(evil_url, admin):
    """Reading values from JSON, and writing, deleting and noting need nothing but pg_catalog."""
    commit(evil_url, make_planned_batch(), destination("public.events"))
    struct = t.StructType([*STRUCT.fields, t.StructField("made", t.TimestampType())])
    kinds = [t.StructField("bytes", t.BinaryType()), t.StructField("texts", t.ArrayType(t.StringType()))]
    row = {"id": 7, "name": "seven", "made": "2026-01-01T00:00:00Z"}
    of = {"query_id": "q1", "sink_name": "public.events"}
    put_aside(admin, row, destination("public.cast_events"), struct, **of)
    bad = put_aside(admin, {**row, "id": "x"}, destination("public.events"), struct, **of)
    more = {**row, "bytes": "\\x00", "texts": ["a"]}
    where = destination("public.events", schema_evolution="ignoreExtra")
    put_aside(admin, more, where, t.StructType([*struct.fields, *kinds]), **of)
    assert len(OffsetsStore(evil_url).dead_letters("q1")) == 3
    with pytest.raises(PgonceError, match="DEAD_LETTER_UNMENDED"):
        replayed(evil_url, "q1")
    discard_letters(chosen_letters(evil_url, "q1", ids=[bad]), evil_url, reason="evil")
    assert len(replayed(evil_url, "q1")) == 2
    assert (7, "seven") in rows_in(admin, "public.events")


def test_the_look_for_a_locks_holder_calls_nothing_of_evil(evil_url, admin, caplog):
    """Who holds a lock is asked, and a frozen session ended, by pg_catalog's functions."""
    where = destination("public.events")
    commit(evil_url, make_planned_batch(), where)
    settings = CommitSettings(url=evil_url, lock_timeout=0.3, retry_timeout=20)
    with psycopg.connect(evil_url, application_name=application_name("run 0")) as frozen:
        frozen.execute("TABLE pgonce.writers FOR UPDATE")
        work = work_into(None, where, inline([(3, "three")]))
        assert commit_batch(settings, make_planned_batch(1), work) is Verdict.NEW
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT")
    assert "application 'pgonce run 0'" in caplog.text


USERS_OWN = """
CREATE SCHEMA app;
CREATE TABLE app.events (id bigint, name text);
CREATE TABLE app.audit (at text, path text);
CREATE FUNCTION app.audit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO audit VALUES (TG_NAME, current_setting('search_path')); RETURN NULL; END $$;
CREATE TRIGGER at_once AFTER INSERT ON app.events FOR EACH STATEMENT EXECUTE FUNCTION app.audit();
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON app.events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION app.audit();
"""


@pytest.mark.parametrize("mode", ["append", "staged", "function"])
def test_names_in_the_users_sql_and_triggers_are_looked_up_along_the_users_path(mode, url):
    """An unqualified table, the SQL of a function, and triggers, also deferred ones, see the session's search_path."""
    url = url_with(url, options="-csearch_path=app")
    where = destination("events")

    def work(tx, connection):
        write_batch_in_tx(connection, where, inline([(1, "one")]))
        tx.execute("INSERT INTO audit SELECT 'tx', current_setting('search_path')")

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(USERS_OWN)
        if mode == "function":
            commit_function(url, make_planned_batch(), "app.events", work)
        else:
            commit(url, make_planned_batch(), where, [(1, "one")], staged=mode == "staged")
        assert rows_in(admin, "app.events") == [(1, "one")]
        seen = [("at_commit", "app"), ("at_once", "app"), *([("tx", "app")] if mode == "function" else [])]
        assert rows_in(admin, "app.audit") == seen
        assert OffsetsStore(url).latest("q1").sink_name == "app.events"
    engine_for(url).dispose()


def test_a_path_that_the_users_sql_sets_lasts_until_commit(url):
    """SET LOCAL search_path in a function holds for what follows it, deferred triggers too, and ends with the batch."""

    def work(tx, connection):
        tx.execute("SET LOCAL search_path = app")
        write_batch_in_tx(connection, destination("events"), inline([(1, "one")]))

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(USERS_OWN)
        commit_function(url, make_planned_batch(), "app.events", work)
        assert rows_in(admin, "app.audit") == [("at_commit", "app"), ("at_once", "app")]
        with engine_for(url).connect() as connection:
            assert connection.exec_driver_sql("SHOW search_path").scalar() == '"$user", public'
    engine_for(url).dispose()


def test_temporary_tables_of_our_names_are_not_mistaken_for_ours(url, monkeypatch):
    """Tables in pg_temp come first for Postgres: the ledger's are named by schema, and a target there is refused."""

    def work(tx, _):
        for name in ("writers", "batches", "replays", "runs", "staged_tables", "schema_version", "pg_class", "events"):
            tx.execute(f"CREATE TEMPORARY TABLE {name} (id bigint, name text)")

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE TABLE public.events (id bigint, name text)")
        # A pooler hands out the same session, with these tables in it.
        monkeypatch.setattr("pgonce.offsets_store.commit.one_transaction._FORGET", ())
        commit_function(url, make_planned_batch(), "odd", work)
        assert commit(url, make_planned_batch(query_id="q2"), destination("public.events")) is Verdict.NEW
        with pytest.raises(PgonceError, match="TARGET_NOT_DURABLE"):
            commit(url, make_planned_batch(1, query_id="q2"), destination("events"), sink_name="public.events")
        assert rows_in(admin, "public.events") == [(1, "one"), (2, "two")]
        assert admin.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (2,)
    engine_for(url).dispose()
