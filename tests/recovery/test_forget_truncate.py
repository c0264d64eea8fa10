"""
``pgonce forget --truncate``: a query's tables are emptied in the transaction that forgets it, or nothing is changed.

Covers: pgonce.recovery.forget, pgonce.cli.recover.
"""

from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import ids, rows, settings
from support.fixtures.driver import wait_until
from support.fixtures.postgres import url_with
from support.patience import PATIENCE_SECONDS
from support.recoveries import noted
from support.tombstones import put_tombstone
from support.with_rooms import work_into

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.recovery.by_hand import retire_sink
from pgonce.recovery.forget import forget_query
from pgonce.sink.options.destination import destination

INDEPENDENT = Remedies(independent=True)
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def admin(url):
    """A connection that may do anything, with a table into which a query has written."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
        commit(url, "old", 0, 1, 2)
        yield connection


def commit(url, query, batch_id, *of, table="events", sink_name=None, remedies=None):
    """Commit one batch of a query."""
    work = work_into(sink_name, destination(table), rows(*of))
    batch = make_batch(batch_id, f"run of {query}", query_id=query)
    return commit_batch(settings(url, remedies=remedies or Remedies(), retry_timeout=0), batch, work)


def forget(url, query="old", **how):
    """Empty the tables of a query, and forget it."""
    return forget_query(query, url, reason="full refresh", truncate=True, quiet_seconds=0, **how)


def refused(url, *arguments, **how):
    """What the command says; it has changed nothing, and shows the same without doing it."""
    with psycopg.connect(url, autocommit=True) as observer:
        before = noted(observer)
        for dry_run in (True, False):
            with pytest.raises(PgonceError) as error:
                forget(url, *arguments, dry_run=dry_run, **how)
            assert error.value.code == "NOT_EMPTIED"
        assert noted(observer) == before
    return str(error.value)


class TestEmptied:
    def test_a_new_query_loads_the_table_again(self, admin, url):
        """It is no rival's; the old one is fenced, and the ledger has who emptied which table, and why."""
        forget(url)
        assert ids(admin) == []
        assert commit(url, "new", 0, 1, 5) is Verdict.NEW
        with pytest.raises(PgonceError, match="FENCED"):
            commit(url, "old", 1, 9)
        assert ids(admin) == [1, 5]
        ((kind, batch_id, reason, details),) = noted(admin)
        assert (kind, batch_id, reason, details) == ("forget", 0, "full refresh", {"emptied": ["public.events"]})

    def test_the_command_shows_it_first(self, admin, url, pgonce):
        """Without --yes no row is touched."""
        arguments = ("forget", "old", "--truncate", "--reason", "r", "--quiet-for", "0", "--url", url)
        shown = pgonce(*arguments)
        assert "public.events" in shown.stdout
        assert ids(admin) == [1, 2]
        assert pgonce(*arguments, "--yes").exit_code == ExitCode.OK
        assert ids(admin) == []

    def test_deletes_that_are_remembered_go_with_the_rows(self, admin, url):
        """They would keep out rows of the new query, which begins with older ones; those of other tables stay."""
        admin.execute("CREATE TABLE others ()")
        for table in ("events", "others"):
            put_tombstone(admin, table, "[5]", "9")
        forget(url)
        assert admin.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == [("public.others",)]

    def test_a_table_that_was_renamed(self, admin, url):
        """It is found by its oid, unless another table has its name now, which may have its rows."""
        admin.execute("ALTER TABLE events RENAME TO earlier; CREATE TABLE events (LIKE earlier)")
        before = ids(admin, "earlier")
        with pytest.raises(PgonceError, match="NOT_EMPTIED.*is called public.earlier"):
            forget(url)
        assert ids(admin, "earlier") == before != []
        admin.execute("DROP TABLE events")
        forget(url)
        assert ids(admin, "earlier") == []

    def test_a_partitioned_table_is_emptied_with_tombstones_of_its_parts(self, admin, url):
        """With what is remembered of its partitions."""
        admin.execute("CREATE TABLE whole (id bigint, name text) PARTITION BY RANGE (id)")
        admin.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (100)")
        commit(url, "of whole", 0, 1, table="whole")
        put_tombstone(admin, "part", "[5]", "9")
        forget(url, "of whole")
        assert ids(admin, "whole") == []
        assert admin.execute("SELECT count(*) FROM pgonce.tombstone_sets").fetchone() == (0,)

    def test_a_table_that_inherits_keeps_its_rows(self, admin, url):
        """They are another table's, which another query may feed."""
        admin.execute("CREATE TABLE inherits () INHERITS (events)")
        admin.execute("INSERT INTO inherits VALUES (7)")
        forget(url)
        assert ids(admin) == [7]

    def test_a_trigger_runs_under_the_users_search_path(self, admin, url):
        """What it looks for is found where the user has it."""
        admin.execute("CREATE TABLE emptyings ()")
        body = "'BEGIN INSERT INTO emptyings DEFAULT VALUES; RETURN NULL; END'"
        admin.execute(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS {body}".encode())
        admin.execute("CREATE TRIGGER note AFTER TRUNCATE ON events EXECUTE FUNCTION note()")
        forget(url)
        assert admin.execute("SELECT count(*) FROM emptyings").fetchone() == (1,)


class TestRefused:
    def test_rows_of_another_query(self, admin, url):
        """Nothing would write them again; if it was retired, it counts until it is forgotten."""
        commit(url, "beside", 0, 7, remedies=INDEPENDENT)
        assert "beside" in refused(url)
        retire_sink("beside", url)
        assert "beside" in refused(url)
        forget_query("beside", url, reason="its rows may go", quiet_seconds=0)
        forget(url)
        assert ids(admin) == []

    def test_rows_of_a_query_that_knows_the_table_by_another_name(self, admin, url):
        """The table was renamed in between."""
        admin.execute("ALTER TABLE events RENAME TO orders")
        commit(url, "beside", 0, 7, table="orders", remedies=INDEPENDENT)
        assert "beside" in refused(url)

    def test_rows_of_another_sink_of_the_query(self, admin, url):
        """If one sink alone is named."""
        commit(url, "old", 0, 7, sink_name="mine", remedies=INDEPENDENT)
        assert "mine" in refused(url, sink="public.events")
        assert ids(admin) == [1, 2, 7]
        forget(url)
        assert ids(admin) == []

    def test_a_partition_that_another_query_feeds(self, admin, url):
        """A writer of a part of the table, or of a table that it is a part of, has rows in it."""
        admin.execute("CREATE TABLE whole (id bigint, name text) PARTITION BY RANGE (id)")
        admin.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (100)")
        commit(url, "of whole", 0, 1, table="whole")
        commit(url, "of part", 0, 2, table="part", remedies=INDEPENDENT)
        assert "of part" in refused(url, "of whole")
        assert "of whole" in refused(url, "of part")
        assert ids(admin, "whole") == [1, 2]

    def test_rows_of_a_batch_job(self, admin, url):
        """A job that is run again is skipped, because its key stays."""
        commit_job(settings(url), Job("monday", uuid.uuid4()), work_into(None, destination("events"), rows(7)))
        assert "(1 batchKeys)" in refused(url)
        assert ids(admin) == [1, 2, 7]

    def test_rows_of_a_batch_job_that_is_in_its_commit(self, admin, url):
        """Its key is not to be seen before the lock on the table has been waited for."""
        with psycopg.connect(url) as busy:
            busy.execute("INSERT INTO events VALUES (7)")
            busy.execute(
                "INSERT INTO pgonce.batch_jobs (sink_name, batch_key, attempt) "
                "VALUES ('public.events', 'k', gen_random_uuid())"
            )
            said = []

            def try_it():
                with pytest.raises(PgonceError) as error:
                    forget(url_with(url, options="-cdefault_transaction_isolation=repeatable\\ read"))
                said.append(error.value.code)

            trying = threading.Thread(target=try_it)
            trying.start()
            assert wait_until(lambda: admin.execute(WAITING).fetchone() == (1,), PATIENCE_SECONDS)
            busy.commit()
            trying.join()
        assert said == ["NOT_EMPTIED"]
        assert ids(admin) == [1, 2, 7]
        assert noted(admin) == []

    def test_deletes_from_other_partitions(self, admin, url):
        """A partition's are kept with those of all, which would have to stay."""
        admin.execute("CREATE TABLE parent (LIKE events) PARTITION BY RANGE (id)")
        admin.execute("ALTER TABLE parent ATTACH PARTITION events DEFAULT")
        put_tombstone(admin, "parent", "[5]", "9")
        assert "all partitions of public.parent" in refused(url)
        admin.execute("UPDATE pgonce.tombstone_sets SET expires_at = now()")
        forget(url)

    def test_tables_that_are_not_known(self, admin, url):
        """It has recorded none, or what it has recorded is gone."""
        admin.execute("ALTER TABLE events RENAME TO earlier; DROP TABLE earlier")
        assert "public.events was dropped" in refused(url)
        admin.execute("UPDATE pgonce.writers SET targets = NULL")
        assert "not recorded" in refused(url)

    def test_a_ledger_that_was_restored(self, admin, url):
        """Its oids may be those of other tables, and who else feeds the table, as through a partition, is not found."""
        admin.execute("CREATE TABLE unrelated ()")
        admin.execute(
            "UPDATE pgonce.home SET written_in = 0; UPDATE pgonce.writers SET targets = "
            "jsonb_build_object('public.events', 'unrelated'::regclass::oid::bigint)"
        )
        assert "restored" in refused(url)
        assert ids(admin) == [1, 2]

    def test_a_role_that_may_not(self, admin, url, login):
        """It is told who may."""
        admin.execute(f"GRANT USAGE ON SCHEMA pgonce TO {login.user}".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {login.user}".encode())
        with pytest.raises(PgonceError, match="NOT_EMPTIED.*denied.* role that may TRUNCATE"):
            forget(login.url)
        assert (ids(admin), noted(admin)) == ([1, 2], [])

    @pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "NO ACTION DEFERRABLE INITIALLY DEFERRED"])
    def test_a_table_that_others_refer_to_is_not_emptied(self, admin, url, action):
        """Rows of another table refer to these; the query goes on as if nothing had been tried."""
        admin.execute(f"CREATE TABLE lines (event bigint REFERENCES events ON DELETE {action})".encode())
        admin.execute("INSERT INTO lines VALUES (1)")
        with pytest.raises(PgonceError, match="NOT_EMPTIED.*foreign key"):
            forget(url)
        assert (ids(admin), noted(admin)) == ([1, 2], [])
        assert commit(url, "old", 1, 3) is Verdict.NEW
