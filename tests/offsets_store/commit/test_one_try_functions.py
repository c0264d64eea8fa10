"""
Work that runs SQL of the user: what it leaves in its session, and which tables it turns out to have written.

Covers: offsets_store.commit.one_try, offsets_store.commit.transaction_state, offsets_store.commit.one_transaction,
offsets_store.ledger.writers.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import appending, ids, job, rows, settings, verdict_or_code, writing
from support.with_rooms import work_into

from pgonce.offsets_store.commit import one_transaction
from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger import session as ledger_session
from pgonce.offsets_store.ledger.migrations import grants
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import checked_out, driver_connection
from pgonce.offsets_store.postgres.one_trip import Statement
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.usefixtures("events", "ledger")

TRIGGER = "CREATE TRIGGER marks BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION marks()"
PARTITIONED = (
    "ALTER TABLE events RENAME TO part; CREATE TABLE events (LIKE part) PARTITION BY RANGE (id); "
    "ALTER TABLE events ATTACH PARTITION part DEFAULT"
)


def function(*statements, tables=()):
    """A function of the user's that runs statements, and says that it has written these tables."""

    def publish(connection, *_):
        driver = driver_connection(connection)
        for statement in statements:
            driver.execute(statement)
        oids = {name: driver.execute("SELECT %s::regclass::oid::bigint", [name]).fetchone()[0] for name in tables}
        return Published(1, "function", targets=oids)

    return Work(lambda _: "orders", publish, sealed=True)


def by_function(batch_id=0, query="of the function", sink="orders", **more):
    """A batch of the function's query, which no other batch is taken for."""
    return make_batch(batch_id, f"run of {query}", sink_name=sink, query_id=query, **more)


class TestSessions:
    """The next batch may get the same session, whosever it is."""

    @pytest.mark.parametrize(
        "left",
        [
            "CREATE SCHEMA audit CREATE TABLE events (id bigint, name text); SET search_path TO audit, public",
            "SET default_transaction_read_only = on",
            "SET session_replication_role = replica",
            "CREATE TEMP TABLE events (id bigint, name text)",
        ],
        ids=["search_path", "read_only", "replication_role", "temporary_table"],
    )
    def test_settings_and_tables_end_with_the_batch(self, left, url, admin):
        """SET without LOCAL is committed; a search_path would lead the rows of the next batch into another table."""
        admin.execute(
            "CREATE FUNCTION marked() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name = 1; RETURN NEW; END'"
        )
        admin.execute("CREATE TRIGGER marks BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION marked()")
        commit_batch(settings(url), by_function(), function(left))
        assert commit_batch(settings(url), make_batch(), appending(1)) is Verdict.NEW
        assert admin.execute("SELECT id, name FROM public.events").fetchall() == [(1, "1")]

    def test_its_role_as_well(self, url, admin, login):
        """RESET ALL leaves the role as it is."""
        admin.execute("; ".join(grants(login.user)).encode())
        commit_batch(settings(url), by_function(), function(f"SET ROLE {login.user}"))
        with checked_out(url) as connection:
            asked = driver_connection(connection).execute("SELECT current_user = session_user")
            assert asked.fetchone() == (True,)

    def test_a_session_of_a_pooler_is_left_alone(self, admin, pgbouncer, database):
        """It is other clients' as well, and what is set there for these would be gone."""
        pooled = pgbouncer(default_pool_size="1").url(database)
        with psycopg.connect(pooled, autocommit=True) as another:
            another.execute("SET work_mem = '5MB'")
            for batch_id in range(2):
                commit_batch(settings(pooled), make_batch(batch_id), appending(batch_id))
            assert another.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert ids(admin) == [0, 1]

    @pytest.mark.parametrize("of_job", [False, True], ids=["stream", "job"])
    @pytest.mark.parametrize(
        ("ddl", "mode"),
        [
            ("ALTER TABLE events ADD COLUMN x int DEFAULT sets(1)", "append"),
            ("ALTER TABLE events ADD CHECK (sets(id::int) >= 0)", "append"),
            ("ALTER TABLE events ADD COLUMN x int GENERATED ALWAYS AS (sets(id::int)) STORED", "append"),
            ("CREATE DOMAIN d AS text CHECK (sets(length(value)) > 0); ALTER TABLE events ALTER name TYPE d", "append"),
            ("CREATE INDEX ON events (sets(id::int))", "append"),
            (TRIGGER.format("events"), "append"),
            (f"{PARTITIONED}; {TRIGGER.format('part')}", "append"),
            (
                "CREATE EVENT TRIGGER e ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION fires()",
                "upsert",
            ),
        ],
        ids=["default", "check", "generated", "domain", "index", "trigger", "of a partition", "event trigger"],
    )
    def test_what_other_sql_of_the_database_has_set(self, ddl, mode, of_job, url, admin):
        """Whatever ran in a batch, the next one begins with what its session was given when it was opened."""
        sets = (
            "PERFORM set_config('search_path', 'audit, public', false), "
            "set_config('default_transaction_read_only', 'on', false)"
        )
        admin.execute(
            "ALTER TABLE events ADD PRIMARY KEY (id); "
            "CREATE SCHEMA audit CREATE TABLE events (id bigint PRIMARY KEY, name text); "
            f"CREATE FUNCTION sets(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN {sets}; RETURN i; END $$; "
            f"CREATE FUNCTION marks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {sets}; RETURN NEW; END $$; "
            f"CREATE FUNCTION fires() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {sets}; END $$"
        )
        with psycopg.connect(url, autocommit=True) as made:
            made.execute(ddl)
        for batch_id in range(3):
            if of_job:
                commit_job(settings(url), job(f"job {batch_id}"), writing(batch_id, mode=mode))
            else:
                work = work_into("sink", destination("events", mode), rows(batch_id))
                commit_batch(settings(url), make_batch(batch_id), work)
        assert ids(admin) == [0, 1, 2]

    def test_what_event_triggers_have_set_while_the_ledger_is_prepared(self, url, admin):
        """The first batch of a process may also create the ledger."""
        admin.execute(
            "DROP SCHEMA pgonce, pgonce_staging CASCADE; CREATE SCHEMA audit CREATE TABLE events (id bigint, name text)"
        )
        self.sets_at(admin, "ddl_command_end")
        assert commit_batch(settings(url), make_batch(), work_into(None, destination("events"), rows(1))) is Verdict.NEW
        assert ids(admin, "public.events") == [1]

    def test_what_changes_tables_by_hand_has_a_session_of_its_own(self, url, admin):
        """Its event triggers do not reach the batches of the same process."""
        admin.execute("CREATE SCHEMA audit CREATE TABLE events (id bigint, name text)")
        commit_batch(settings(url), make_batch(0), appending(0))
        self.sets_at(admin, "ddl_command_end")
        with ledger_session.writing(url) as connection:
            driver_connection(connection).execute("ALTER TABLE public.events ADD COLUMN more text")
        commit_batch(settings(url), make_batch(1), work_into(None, destination("events"), rows(1)))
        assert ids(admin, "public.events") == [0, 1]

    def test_what_is_set_at_the_login(self, url, admin):
        """It is what the session was given, so each batch has it."""
        if admin.info.server_version < 170000:
            pytest.skip("Postgres has such triggers from version 17 on.")
        admin.execute("CREATE SCHEMA audit CREATE TABLE events (id bigint, name text)")
        self.sets_at(admin, "login")
        for batch_id in range(3):
            commit_batch(settings(url), make_batch(batch_id), work_into("sink", destination("events"), rows(batch_id)))
        assert ids(admin, "audit.events") == [0, 1, 2]

    @staticmethod
    def sets_at(admin, event):
        """Make an event trigger that leads unqualified names into another schema."""
        admin.execute(
            "CREATE FUNCTION public.fires() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_catalog.set_config('search_path', 'audit, public', false); END $$; "
            f"CREATE EVENT TRIGGER e ON {event} EXECUTE FUNCTION public.fires()"
        )

    def test_a_lock_and_a_cursor(self, url, admin):
        """Others do not wait for a batch that is done."""
        commit_batch(
            settings(url),
            by_function(),
            function("SELECT pg_advisory_lock(7)", "DECLARE all_of_it CURSOR WITH HOLD FOR SELECT 1", "LISTEN them"),
        )
        assert admin.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)

    def test_a_session_that_is_lost_meanwhile(self, url, admin, monkeypatch):
        """The batch is committed whatever becomes of its session, and the next one gets another."""
        ends = Statement("SELECT pg_terminate_backend(pg_backend_pid())")
        monkeypatch.setattr(one_transaction, "_FORGET", (ends,))
        for batch_id in range(2):
            writes = function(f"INSERT INTO events VALUES ({batch_id}, 'one')")
            assert commit_batch(settings(url), by_function(batch_id), writes) is Verdict.NEW
        assert ids(admin) == [0, 1]


class TestRivals:
    """Which tables a function writes is known once it has written them."""

    writes = function("INSERT INTO events VALUES (1, 'one')", tables=["public.events"])

    @pytest.mark.parametrize("is_function", [False, True])
    def test_a_table_that_another_query_feeds(self, is_function, url, admin):
        """Both read the same partitions, so the rows would be there twice; the other one may be a function, too."""
        first = (by_function(query="another"), self.writes) if is_function else (make_batch(), appending(1))
        commit_batch(settings(url), *first)
        with pytest.raises(PgonceError, match="FOREIGN"):
            commit_batch(settings(url), by_function(), self.writes)
        assert ids(admin) == [1]

    def test_a_function_that_wrote_nothing_at_first(self, url, admin):
        """Its first batch was empty, and so the first one that writes is judged as the first."""
        commit_batch(settings(url), make_batch(), appending(1))
        assert commit_batch(settings(url), by_function(), function()) is Verdict.NEW
        with pytest.raises(PgonceError, match=r"FOREIGN.*batch 1\b"):
            commit_batch(settings(url), by_function(1), self.writes)
        assert ids(admin) == [1]
        says = settings(url, remedies=Remedies(independent=True))
        assert commit_batch(says, by_function(1), self.writes) is Verdict.NEW
        # Then it is known as one that feeds the table.
        assert commit_batch(settings(url), by_function(2), self.writes) is Verdict.NEW

    def test_functions_that_begin_at_the_same_moment(self, url, admin):
        """Both have written before either is recorded; the second one waits for the first, and is refused."""
        both_wrote = threading.Barrier(2, timeout=30)

        def outcome(sink):
            tries = itertools.count()

            def writes(connection, *asked):
                published = self.writes.publish(connection, *asked)
                if next(tries) == 0:
                    both_wrote.wait()
                return published

            work = Work(lambda _: sink, writes, sealed=True)
            return verdict_or_code(settings(url, lock_timeout=10), by_function(query=sink, sink=sink), work)

        with ThreadPoolExecutor(2) as sessions:
            assert set(sessions.map(outcome, ("one", "other"))) == {"NEW", "FOREIGN"}
        assert ids(admin) == [1]

    def test_a_query_that_reads_other_rows_is_no_rival(self, url, admin):
        """A query that reads other partitions, or says that its rows are others, is no rival."""
        commit_batch(settings(url), make_batch(), appending(1))
        says = settings(url, remedies=Remedies(independent=True))
        assert commit_batch(says, by_function(), self.writes) is Verdict.NEW
        elsewhere = {"start": {"0": {"other": {"0": 0}}}, "end": {"0": {"other": {"0": 5}}}}
        reads_another = by_function(query="another", **elsewhere)
        assert commit_batch(settings(url), reads_another, self.writes) is Verdict.NEW
        assert ids(admin) == [1, 1, 1]

    def test_an_error_that_was_swallowed_is_the_users(self, url, admin):
        """The error is not the ledger's, and nothing is compared after it."""

        def swallows(connection, *_):
            with suppress(psycopg.Error):
                driver_connection(connection).execute("SELECT 1 / 0")
            return Published(1, "function")

        with pytest.raises(PgonceError, match="STATEMENT_FAILED"):
            commit_batch(settings(url), by_function(), Work(lambda _: "orders", swallows, sealed=True))

    def test_a_commit_that_postgres_answers_with_another_tag_is_none(self, url, admin, monkeypatch):
        """As it answers a COMMIT of a transaction that has failed: with ROLLBACK, and without an error."""
        monkeypatch.setattr(one_transaction, "_COMMIT", Statement("ROLLBACK", is_prepared=False))
        with pytest.raises(PgonceError, match="STATEMENT_FAILED"):
            commit_batch(settings(url), make_batch(), appending(1))
        assert ids(admin) == []

    def test_a_function_cannot_commit_rows_without_their_record(self, url, admin):
        """The ledger's deferred constraint refuses a COMMIT of the user's, because the batch is not recorded yet."""
        commits = function("INSERT INTO events VALUES (1, 'one')", "COMMIT", tables=["public.events"])
        with pytest.raises(PgonceError):
            commit_batch(settings(url), by_function(), commits)
        assert ids(admin) == []

    def test_the_users_settings_are_back_afterwards(self, url, admin):
        """Deferred triggers of the user's tables run at COMMIT, under the user's search_path."""
        admin.execute("CREATE SCHEMA audit CREATE TABLE audit.seen (id bigint)")
        admin.execute(
            "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END'"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER notes AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION noted()"
        )
        writes = function(
            "SET LOCAL search_path TO public, audit", "INSERT INTO events VALUES (1, 'one')", tables=["public.events"]
        )
        assert commit_batch(settings(url), by_function(), writes) is Verdict.NEW
        assert admin.execute("SELECT id FROM audit.seen").fetchall() == [(1,)]
