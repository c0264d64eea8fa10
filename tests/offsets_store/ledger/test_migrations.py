"""
The ledger's form: who may create it, what it looks like, and which code may use it.

Covers: offsets_store.ledger.migrations, offsets_store.ledger.tables.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import MetaData, create_engine, inspect
from sqlalchemy.dialects.postgresql import dialect
from support.batches import make_planned_batch
from support.fixtures.postgres import url_with
from support.ledger_history import publish
from support.made_up_migration import made_up, upgrade_pgonce

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import LedgerError
from pgonce.offsets_store.ledger import VIEWS, tables
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.migrations import MIGRATIONS, NEWEST, ensure_ledger, grants, init_sql, migrate
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.status.store import OffsetsStore

VERSIONS = [migration.version for migration in MIGRATIONS]

SIGNATURE = """
SELECT 'column', attrelid::regclass::text, attname::text, format_type(atttypid, atttypmod) || attnotnull
       || coalesce(pg_get_expr(adbin, adrelid), '') || attidentity::text
       || coalesce(col_description(attrelid, attnum), '')
FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE c.relnamespace = 'pgonce'::regnamespace AND c.relkind IN ('r', 'v') AND attnum > 0
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname::text, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'pgonce'::regnamespace
UNION ALL SELECT 'index', indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'pgonce'::regnamespace
UNION ALL SELECT 'view', c.oid::regclass::text, '', pg_get_viewdef(c.oid) || coalesce(obj_description(c.oid), '')
FROM pg_class c WHERE c.relnamespace = 'pgonce'::regnamespace AND c.relkind = 'v'
UNION ALL SELECT 'version', version::text, least_reader_version::text, '' FROM pgonce.schema_version
ORDER BY 1, 2, 3, 4
"""


class TestCreation:
    def test_two_drivers_at_once(self, url, observer):
        """Drivers that start together create the ledger once, and all of them may go on."""
        drivers = 4
        start = Barrier(drivers)

        def create():
            with psycopg.connect(url, autocommit=True) as connection:
                start.wait()
                return migrate(connection)

        with ThreadPoolExecutor(drivers) as pool:
            applied = [future.result() for future in [pool.submit(create) for _ in range(drivers)]]
        assert sorted(applied) == [[], [], [], VERSIONS]
        assert observer.execute("SELECT version FROM pgonce.schema_version").fetchall() == [(n,) for n in VERSIONS]

    def test_the_printed_sql_makes_the_same_ledger(self, url, admin, other_url):
        """What an administrator runs by hand equals what a driver creates, comments and constraints included."""
        migrate(admin)
        migrated = admin.execute(SIGNATURE).fetchall()
        with psycopg.connect(other_url, autocommit=True) as connection:
            connection.execute(init_sql().encode())
            assert connection.execute(SIGNATURE).fetchall() == migrated
            assert migrate(connection) == []

    def test_the_printed_sql_is_all_or_nothing(self, url, observer):
        """A role that does not exist leaves no half of a ledger behind."""
        with psycopg.connect(url, autocommit=True) as connection, pytest.raises(psycopg.errors.UndefinedObject):
            connection.execute(init_sql("nobody_of_that_name").encode())
        assert observer.execute("SELECT to_regnamespace('pgonce')").fetchone() == (None,)


class TestForm:
    @pytest.fixture(autouse=True)
    def _ledger(self, url):
        ensure_ledger(url)

    def test_tables_py_says_what_the_migrations_create(self, url):
        """Each of SQLAlchemy's tables equals the reflected one: its name, columns and types."""
        found = MetaData(schema="pgonce")
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
        found.reflect(engine)
        assert set(found.tables) > set(tables.metadata.tables)

        def form(table):
            return {column.name: column.type.compile(dialect=dialect()) for column in table.columns}

        for name, table in tables.metadata.tables.items():
            assert form(found.tables[name]) == form(table)
        assert set(inspect(engine).get_view_names("pgonce")) == set(VIEWS)
        engine.dispose()

    def test_everything_has_a_comment(self, observer):
        """A person in psql finds a comment on every table, view and column."""
        bare = observer.execute(
            """SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
            WHERE c.relnamespace = 'pgonce'::regnamespace AND c.relkind IN ('r', 'v') AND attnum > 0
            AND (col_description(c.oid, attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)"""
        ).fetchall()
        assert bare == []

    def test_a_writer_cannot_name_a_batch_that_is_not_recorded(self, url):
        """The constraint behind the seal refuses at COMMIT a last batch without a record."""
        publish(url, 0, {"0": 1})
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET last_batch_id = 7")
            with pytest.raises(psycopg.errors.ForeignKeyViolation, match="last_batch_is_recorded"):
                connection.commit()

    def test_current_offsets_has_a_row_a_partition(self, url, observer):
        """The view splits Kafka by topic and partition, and gives other sources one row each."""
        publish(url, 4, {"0": {"t": {"0": 10, "11": 0}, "u": {"0": 3}}, "1": {"logOffset": 2}, "2": 7, "3": None})
        rows = observer.execute(
            "SELECT source, topic, partition, end_offset, batch_id FROM pgonce.current_offsets ORDER BY 1, 2, 3"
        ).fetchall()
        assert rows == [
            ("0", "t", 0, 10, 4),
            ("0", "t", 11, 0, 4),
            ("0", "u", 0, 3, 4),
            ("1", None, None, {"logOffset": 2}, 4),
            ("2", None, None, 7, 4),
            ("3", None, None, None, 4),
        ]


class TestVersions:
    def test_a_ledger_that_is_too_new_is_refused(self, url, admin, observer):
        """Code that a ledger names too old neither writes nor reads it, and says so."""
        ensure_ledger(url)
        admin.execute("INSERT INTO pgonce.schema_version (version, least_reader_version) VALUES (999, 999)")
        with pytest.raises(LedgerError, match=rf" 999 .* {VERSIONS[-1]}\b") as refused:
            migrate(admin)
        with pytest.raises(LedgerError) as unread:
            OffsetsStore(url).queries()
        assert refused.value.code == unread.value.code == "PGONCE_TOO_OLD"

    def test_a_process_that_runs_notices_that_the_ledger_was_upgraded(self, url, admin, observer):
        """Its next batch is refused, and so is its next batch job, though it has used this ledger before."""
        publish(url, 0, {"0": 1})
        admin.execute("INSERT INTO pgonce.schema_version (version, least_reader_version) VALUES (999, 999)")
        with pytest.raises(LedgerError) as batch:
            publish(url, 1, {"0": 2})
        with pytest.raises(LedgerError) as job:
            commit_job(CommitSettings(url), Job("a key", uuid4()), Work(lambda _: "public.events", pytest.fail))
        assert batch.value.code == job.value.code == "PGONCE_TOO_OLD"
        assert observer.execute("SELECT max(batch_id) FROM pgonce.batches").fetchone() == (0,)
        assert observer.execute("SELECT count(*) FROM pgonce.batch_jobs").fetchone() == (0,)

    def test_a_step_that_older_code_cannot_use_waits_for_the_commits_of_older_code(self, url):
        """A commit that has begun holds the lock that such a step takes first."""
        taken = []

        def look(_connection, _batch, _stored):
            with psycopg.connect(url) as other, pytest.raises(psycopg.errors.LockNotAvailable) as refused:
                other.execute("LOCK TABLE pgonce.schema_version NOWAIT")
            taken.append(refused)
            return Published(0, "inline")

        work = Work(lambda _: "public.orders", look)
        commit_batch(CommitSettings(url), make_planned_batch(0), work)
        assert taken

    def test_a_newer_ledger_that_still_reads_is_used(self, url, admin):
        """One upgraded job does not stop the others: an additive version is no obstacle."""
        publish(url, 0, {"0": 1})
        admin.execute("INSERT INTO pgonce.schema_version (version, least_reader_version) VALUES (999, 200)")
        assert migrate(admin) == []
        assert OffsetsStore(url).latest("orders").batch_id == 0

    def test_a_later_migration_is_added_to_a_ledger_in_use(self, url, admin, monkeypatch):
        """Version N becomes N + 1 once, what is recorded stays, and the version says who may still use it."""
        publish(url, 0, {"0": 1})
        step = made_up("ALTER TABLE pgonce.writers ADD COLUMN made_up text DEFAULT 'new'", NEWEST + 1)
        with monkeypatch.context() as later:
            upgrade_pgonce(later, step)
            assert migrate(admin) == [step.version]
            assert migrate(admin) == []
            publish(url, 1, {"0": 2})
            assert OffsetsStore(url).latest("orders").batch_id == 1
        assert admin.execute("SELECT made_up, last_batch_id FROM pgonce.writers").fetchall() == [("new", 1)]
        with pytest.raises(LedgerError, match="PGONCE_TOO_OLD"):
            publish(url, 2, {"0": 3})

    def test_a_later_migration_that_fails_changes_nothing(self, url, admin, monkeypatch):
        """All missing steps are one transaction."""
        publish(url, 0, {"0": 1})
        upgrade_pgonce(monkeypatch, made_up("CREATE TABLE pgonce.made_up (); SELECT 1 / 0"))
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(admin)
        versions = admin.execute("SELECT version, to_regclass('pgonce.made_up') FROM pgonce.schema_version")
        assert versions.fetchall() == [(version, None) for version in VERSIONS]


class TestRole:
    def test_without_create_it_is_told_whom_to_ask(self, login):
        """A role that may not create the schema is pointed at `pgonce init --role`."""
        with pytest.raises(LedgerError, match="LEDGER_NOT_PERMITTED.*pgonce init --role") as refused:
            ensure_ledger(login.url)
        assert login.password not in str(refused.value)

    def test_a_role_without_grants_may_not_read(self, url, login):
        """A ledger that the role may not look into is not taken for a missing one."""
        ensure_ledger(url)
        with pytest.raises(LedgerError, match="LEDGER_NOT_PERMITTED"):
            OffsetsStore(login.url).queries()

    def test_a_superuser_does_not_run_what_an_ordinary_owner_has_made(self, url, login, admin, pgonce):
        """`pgonce init` refuses before a trigger of the ledger's owner could run with the superuser's rights."""
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
            sql.Identifier(admin.info.dbname), sql.Identifier(login.user)))  # fmt: skip
        init = ["init", "--role", login.user, "--url"]
        assert pgonce(*init, login.url).exit_code == ExitCode.OK
        with psycopg.connect(login.url, autocommit=True) as owner:
            owner.execute("CREATE OR REPLACE VIEW pgonce.health AS SELECT q.severity, q.state AS finding, q.query_id, "
                          "q.query_name, q.sink_name, current_user::text AS what, q.state_since AS since, q.help, true "
                          "AS is_state FROM pgonce.queries AS q")  # fmt: skip
        refused = pgonce(*init, url)
        assert "[LEDGER_OWNER]" in refused.stderr
        assert f"Log in as {login.user}" in refused.stderr

    def test_a_second_role_gets_nothing_of_the_first_ones_staging(self, url, admin, login, observer):
        """Granting for another role passes over the staging tables that a streaming role owns."""
        migrate(admin)
        admin.execute("; ".join(grants(login.user)).encode())
        with psycopg.connect(login.url, autocommit=True) as streaming:
            streaming.execute("CREATE UNLOGGED TABLE pgonce_staging.staged_test (a int)")
        admin.execute("; ".join(grants("pg_monitor")).encode())
        may = "SELECT has_table_privilege('pg_monitor', %s, 'SELECT')"
        assert observer.execute(may, ["pgonce_staging.staged_test"]).fetchone() == (False,)
        assert observer.execute(may, ["pgonce.writers"]).fetchone() == (True,)


def test_a_role_with_short_timeouts_prepares_the_ledger(url, admin):
    """They are for work that somebody waits for, and a batch takes as long as it takes."""
    limits = ["statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"]
    known = [name for name in limits if admin.execute("SELECT current_setting(%s, true)", [name]).fetchone() != (None,)]
    slow = "CREATE FUNCTION public.slow() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); END'"
    admin.execute(slow)
    admin.execute(
        "CREATE EVENT TRIGGER e ON ddl_command_end WHEN TAG IN ('CREATE SCHEMA') EXECUTE FUNCTION public.slow()"
    )
    ensure_ledger(url_with(url, options=" ".join(f"-c{name}=200" for name in known)))
    assert admin.execute("SELECT version FROM pgonce.schema_version ORDER BY 1").fetchall() == [(n,) for n in VERSIONS]


START = {"0": {"t": {"0": 10}}}
CALL = """SELECT pgonce.wait_for('orders', '{"t": {"0": 10}}', '30 s')"""


@pytest.fixture
def reader(url):
    """A session of somebody who waits; the query stands before the record, and commits it in half a second."""
    publish(url, 0, START)
    later = threading.Timer(0.5, lambda: publish(url, 1, {"0": {"t": {"0": 11}}}, start=START))
    with psycopg.connect(url) as connection:
        yield connection, later
    if later.ident:
        later.join()


def test_it_sees_new_commits_inside_a_transaction(reader):
    """Under READ COMMITTED, the wait ends inside a transaction, and the next statement sees the rows."""
    connection, later = reader
    connection.execute("SELECT end_offsets FROM pgonce.writers")
    later.start()
    assert connection.execute(CALL).fetchone() == (True,)
    assert connection.execute("SELECT end_offsets FROM pgonce.writers").fetchone() == ({"0": {"t": {"0": 11}}},)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_stays_is_refused(reader, level):
    """Where new commits cannot be seen, the call is refused at once, with a reason."""
    connection, _ = reader
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    with pytest.raises(psycopg.errors.InvalidTransactionState, match=f"(?s){level.lower()}.*READ COMMITTED"):
        connection.execute(CALL)


def test_a_wait_of_more_than_ten_minutes_is_refused(reader):
    """Ten minutes are the longest wait."""
    connection, _ = reader
    for timeout in ("'11 minutes'", "'-1 s'", "NULL"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="timeout"):
            connection.execute(f"SELECT pgonce.wait_for('orders', '{{}}', {timeout})")
        connection.rollback()


def test_other_forms_are_refused(reader):
    """What is not topic to partition to offset is refused, with an example."""
    connection, _ = reader
    ends = ("[1]", "-1", "1.5", '"1"', "null")
    for offsets in ("[]", "3", '{"t": 3}', '{"t": [{"0": 1}]}', *(f'{{"t": {{"0": {end}}}}}' for end in ends)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match='"topic"'):
            connection.execute("SELECT pgonce.wait_for('orders', %s::jsonb)", [offsets])
        connection.rollback()
