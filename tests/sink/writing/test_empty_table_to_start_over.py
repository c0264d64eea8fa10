"""
A query that starts over: its batch 0 replaces the table's rows in one transaction, once, or is refused.

Covers: offsets_store.ledger.writers, sink.writing.empty_table.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.batches import make_batch
from support.blocked import wait_for_queue
from support.committed_rows import ids, job, rows, settings, writing
from support.fixtures.driver import wait_until
from support.fixtures.postgres import url_with
from support.gate import gate
from support.tombstones import put_tombstone

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError, TargetError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.migrations import grants
from pgonce.offsets_store.offsets import Span
from pgonce.offsets_store.recovery.by_hand import retire_sink
from pgonce.offsets_store.recovery.forget import forget_query
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.write_batch import work_into


@pytest.fixture
def admin(url):
    """A connection that may do anything, with a table that has a key."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
        yield connection


def commit(
    url,
    query,
    batch_id,
    *of,
    over=None,
    sink_name=None,
    mode="append",
    table="events",
    remedies=None,
    patience=0,
    **batch,
):
    """Commit one batch of a query, which starts over in place of query ``over``."""
    remedies = remedies or Remedies(replaces=over, start_over=over is not None)
    work = work_into(sink_name, destination(table, mode, ("id",) if mode == "upsert" else (), None), rows(*of))
    planned = make_batch(batch_id, f"run of {query}", query_id=query, **batch)
    return commit_batch(settings(url, remedies=remedies, retry_timeout=patience), planned, work)


def refused(code, *arguments, **how):
    """What the commit says."""
    with pytest.raises(PgonceError) as error:
        commit(*arguments, **how)
    assert error.value.code == code
    return str(error.value)


def kafka(offset):
    """Offsets of one Kafka partition."""
    return {"0": {"t": {"0": offset}}}


class TestOtherRows:
    """Rows of others, which nothing would write again."""

    def test_of_a_batch_job(self, admin, url):
        """A job that is run again is skipped, because its key stays."""
        commit(url, "old", 0, 1)
        work = work_into(None, destination("events"), rows(7))
        commit_job(settings(url), Job("2026-11-20", uuid.uuid4()), work)
        said = refused("START_OVER_REFUSED", url, "new", 0, 1, over="old")
        assert "batch jobs have written to it (1 batchKeys)" in said
        assert "empty the table yourself" not in said
        assert ids(admin) == [1, 7]

    @pytest.mark.parametrize("only_newer", [False, True])
    def test_of_a_batch_job_that_is_in_its_commit(self, only_newer, admin, url):
        """It is not known before its rows are, and then these would be deleted, and its key would stay."""
        commit(url, "old", 0, 1, 2)
        how = {"mode": "upsert", "keys": ("id",), **({"order_by": "id", "only_newer": True} if only_newer else {})}
        with ThreadPoolExecutor(2) as pool:
            with gate(url, "events") as waiting:
                of_job = pool.submit(commit_job, settings(url), job(), writing(2, 7, **how))
                assert wait_until(lambda: admin.execute(waiting.encode()).fetchone() == (1,))
                new = pool.submit(commit, url, "new", 0, 100, over="old", patience=20)
                wait_for_queue(admin)
            assert of_job.result().verdict is JobVerdict.PUBLISHED
            with pytest.raises(TargetError, match=r"batch jobs have written to it \(1 batchKeys\)"):
                new.result()
        assert ids(admin) == [1, 2, 7]

    def test_of_a_query_that_was_retired(self, admin, url):
        """Its rows are meant to stay, until it is forgotten."""
        commit(url, "old", 0, 1)
        commit(url, "ended", 0, 7, remedies=Remedies(independent=True))
        retire_sink("ended", url, reason="its topic has ended")
        said = refused("START_OVER_REFUSED", url, "new", 0, 1, over="old")
        assert "forget these: `pgonce forget QUERY --sink public.events --reason ... --yes`." in said
        assert ids(admin) == [1, 7]
        forget_query("ended", url, reason="its rows may go")
        assert commit(url, "new", 0, 1, over="old") is Verdict.NEW
        assert ids(admin) == [1]

    def test_of_a_query_whose_place_was_taken(self, admin, url):
        """One of its dead letters may be replayed just now, and then its row is deleted too."""
        commit(url, "first", 0, 1, start=kafka(0), end=kafka(10))
        commit(url, "old", 0, 2, remedies=Remedies(replaces="first"), start=kafka(10), end=kafka(20))
        with psycopg.connect(url) as replaying:
            replaying.execute("SELECT FROM pgonce.writers WHERE query_id = 'first' FOR UPDATE")
            replaying.execute("INSERT INTO events VALUES (3)")
            done = []
            thread = threading.Thread(target=lambda: done.append(commit(url, "new", 0, 1, over="old", patience=20)))
            thread.start()
            thread.join(1)
            assert thread.is_alive()
        thread.join(20)
        assert done == [Verdict.NEW]
        assert ids(admin) == [1]


class TestReplaced:
    @pytest.mark.parametrize("mode", ["append", "upsert", "complete"])
    def test_batch_0_replaces_the_rows_and_retires_the_old_query(self, admin, url, mode):
        """The new rows are there, the old ones are gone, the old query is refused, and the ledger says who did it."""
        commit(url, "old", 0, 1, 2, mode=mode)
        commit(url, "old", 1, 3, 4, mode=mode)
        assert commit(url, "new", 0, 1, 5, over="old", mode=mode) is Verdict.NEW
        assert ids(admin) == [1, 5]
        refused("FENCED", url, "old", 2, 9, mode=mode)
        noted = "SELECT kind, batch_id, details ->> 'replaced', made_by = session_user FROM pgonce.interventions"
        assert admin.execute(noted).fetchall() == [("start-over", 0, "old", True)]
        assert admin.execute("SELECT (details ->> 'rows')::int > 0 FROM pgonce.interventions").fetchone() == (True,)

    def test_only_batch_0_does_and_only_once(self, admin, url):
        """A replay of batch 0, and each later batch, leave the rows alone, though the setting is still there."""
        commit(url, "old", 0, 1)
        commit(url, "new", 0, 5, over="old")
        replayed = make_batch(0, "a later run", query_id="new")
        work = work_into(None, destination("events", "append", (), None), rows(5))
        over = settings(url, remedies=Remedies(replaces="old", start_over=True))
        assert commit_batch(over, replayed, work) is Verdict.REPLAY
        assert commit(url, "new", 1, 6, over="old") is Verdict.NEW
        assert ids(admin) == [5, 6]

    def test_a_setting_that_was_left_in_place_empties_nothing_twice(self, admin, url):
        """The checkpoint is lost later: the query that is named was replaced before, and the error names another."""
        commit(url, "old", 0, 1)
        commit(url, "new", 0, 5, over="old")
        assert "replaces=new" in refused("FOREIGN", url, "newer", 0, 7, over="old")
        assert ids(admin) == [5]
        admin.execute("UPDATE pgonce.writers SET retired_at = now() WHERE query_id = 'new'")
        refused("FOREIGN", url, "newer", 0, 7, over="old")
        assert commit(url, "newer", 0, 7, over="new") is Verdict.NEW
        assert ids(admin) == [7]

    def test_a_name_that_was_left_in_place_empties_nothing_twice(self, admin, url):
        """The newer query has the name of the one that it replaced, so the name means both: refused, and both shown."""
        commit(url, "the first", 0, 1, query_name="orders")
        assert commit(url, "the second", 0, 5, over="orders", query_name="orders") is Verdict.NEW
        said = refused("QUERY_AMBIGUOUS", url, "the third", 0, 7, over="orders", query_name="orders")
        assert "the first (orders, replaced by the second)" in said
        assert "the second (orders, last batch at" in said
        assert ids(admin) == [5]
        assert admin.execute("SELECT replaces FROM pgonce.writers WHERE replaces <> ''").fetchall() == [("the first",)]

    @pytest.mark.parametrize("named", ["orders", "6f9d", "6f9d-old"])
    def test_a_name_or_the_beginning_of_an_id_is_enough(self, admin, url, named):
        """The old query is fenced, and the ledger keeps its whole id."""
        commit(url, "6f9d-old", 0, 1, query_name="orders")
        assert commit(url, "new", 0, 5, over=named) is Verdict.NEW
        assert ids(admin) == [5]
        refused("FENCED", url, "6f9d-old", 1, 9)
        assert admin.execute("SELECT replaces FROM pgonce.writers WHERE query_id = 'new'").fetchone() == ("6f9d-old",)
        noted = "SELECT details ->> 'replaced' FROM pgonce.interventions"
        assert admin.execute(noted).fetchall() == [("6f9d-old",)]

    def test_what_is_only_like_an_id_names_nobody(self, admin, url):
        """Fewer than four characters, a part from the middle, a pattern: refused, and nothing is deleted."""
        commit(url, "6f9d-old", 0, 1)
        for named in ("6f9", "9d-old", "%", "6f9_"):
            assert "replaces=6f9d-old" in refused("FOREIGN", url, "new", 0, 5, over=named)
            assert ids(admin) == [1]

    def test_a_query_that_was_forgotten_can_be_named(self, admin, url):
        """Its rows are still there, and nobody else's."""
        commit(url, "old", 0, 1)
        admin.execute("UPDATE pgonce.writers SET retired_at = now()")
        assert commit(url, "new", 0, 5, over="old") is Verdict.NEW
        assert ids(admin) == [5]

    def test_rows_with_positions_begin_again_at_the_first(self, admin, url):
        """What was stored by position is gone with its rows, so no row of the new query is dropped."""
        span = Span({"0": {"t": {"0": 0}}}, {"0": {"t": {"0": 10}}})
        commit(url, "old", 0, 1, 2, span=span)
        assert commit(url, "new", 0, 1, 2, 3, over="old", span=span) is Verdict.NEW
        assert ids(admin) == [1, 2, 3]
        assert admin.execute("SELECT positions FROM pgonce.batches").fetchall() == [(span.next,)] * 2

    def test_remembered_deletes_go_with_the_rows(self, admin, url):
        """They would keep out rows of the new query, which begins with older ones; those of other tables stay."""
        admin.execute("CREATE TABLE others ()")
        commit(url, "old", 0, 1)
        for table in ("events", "others"):
            put_tombstone(admin, table, "[5]", "9")
        commit(url, "new", 0, 5, over="old")
        assert admin.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == [("public.others",)]

    def test_remembered_deletes_of_other_partitions_stay(self, admin, url):
        """A partition's are kept with those of all, so it cannot start over while there are any."""
        admin.execute("CREATE TABLE parent (LIKE events) PARTITION BY RANGE (id)")
        admin.execute("ALTER TABLE parent ATTACH PARTITION events DEFAULT")
        commit(url, "old", 0, 1)
        put_tombstone(admin, "parent", "[5]", "9")
        with pytest.raises(TargetError, match="together with those from all partitions of public.parent"):
            commit(url, "new", 0, 5, over="old")
        admin.execute("UPDATE pgonce.tombstone_sets SET expires_at = now()")
        commit(url, "new", 0, 5, over="old")
        assert ids(admin) == [5]

    def test_a_refused_batch_takes_the_deletion_back(self, admin, url):
        """If the new rows are refused by Postgres, the old ones are still there, and the old query goes on."""
        commit(url, "old", 0, 1)
        with pytest.raises(PgonceError):
            commit(url, "new", 0, 5, 5, over="old")
        assert ids(admin) == [1]
        assert commit(url, "old", 1, 2) is Verdict.NEW


class TestRefused:
    def test_a_query_that_is_not_named(self, admin, url):
        """A wrong id, and the new query's own, empty nothing; the error says which query feeds the sink."""
        commit(url, "old", 0, 1)
        for named in ("typo", "new"):
            assert "replaces=old" in refused("FOREIGN", url, "new", 0, 5, over=named)
        assert ids(admin) == [1]

    def test_a_sink_that_nobody_feeds(self, admin, url):
        """Nothing is known to be replaced: the setting is one for another sink."""
        assert "leave startOver" in refused("FOREIGN", url, "new", 0, 5, over="old")

    def test_batches_after_the_first(self, admin, url):
        """A query with a past never starts over."""
        commit(url, "old", 0, 1)
        refused("UNKNOWN", url, "new", 4, 5, over="old")

    def test_a_table_that_two_queries_feed(self, admin, url):
        """Whether under the same sink's name, or under another, and even if they read other places."""
        commit(url, "old", 0, 1)
        commit(url, "beside", 0, 2, remedies=Remedies(independent=True))
        assert "beside" in refused("FOREIGN", url, "new", 0, 5, over="old")
        admin.execute("UPDATE pgonce.writers SET sink_name = 'mine' WHERE query_id = 'beside'")
        assert "beside" in refused("START_OVER_REFUSED", url, "new", 0, 5, over="old")
        assert ids(admin) == [1, 2]

    def test_a_partition_that_another_query_feeds(self, admin, url):
        """A writer of a part of the table, or of a table that it is a part of, is one of its writers."""
        admin.execute("CREATE TABLE whole (id bigint, name text) PARTITION BY RANGE (id)")
        admin.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (100)")
        commit(url, "old", 0, 1, table="whole")
        commit(url, "of part", 0, 2, table="part", remedies=Remedies(independent=True))
        assert "of part" in refused("START_OVER_REFUSED", url, "new", 0, 5, over="old", table="whole")
        assert "old" in refused("START_OVER_REFUSED", url, "new", 0, 5, over="of part", table="part")

    @pytest.mark.parametrize("how", ["start over", "complete"])
    def test_a_table_that_inherits_keeps_its_rows(self, admin, url, how):
        """They are another table's, which another query may feed."""
        admin.execute("CREATE TABLE whole (id bigint, name text)")
        admin.execute("CREATE TABLE inherits () INHERITS (whole)")
        commit(url, "of inherits", 0, 7, table="inherits")
        commit(url, "old", 0, 1, table="whole", mode="complete" if how == "complete" else "append")
        if how == "complete":
            commit(url, "old", 1, 2, table="whole", mode="complete")
        else:
            commit(url, "new", 0, 2, over="old", table="whole")
        found = admin.execute("SELECT tableoid::regclass::text, id FROM whole ORDER BY id").fetchall()
        assert found == [("whole", 2), ("inherits", 7)]

    def test_a_table_that_the_named_query_has_not_written_to(self, admin, url):
        """Under a sink's name of the user's own, the old query may have fed another table."""
        admin.execute("CREATE TABLE others (id bigint, name text)")
        commit(url, "old", 0, 1, sink_name="mine", table="others")
        admin.execute("INSERT INTO events VALUES (3, 'not of pgonce')")
        refused("START_OVER_REFUSED", url, "new", 0, 5, over="old", sink_name="mine")
        assert ids(admin) == [3]

    @pytest.mark.parametrize(
        ("of", "action"),
        [("events", "CASCADE"), ("events", "SET NULL"), ("events", "SET DEFAULT"), ("its partition", "CASCADE")],
    )
    def test_children_that_would_go_too(self, admin, url, action, of):
        """Rows of another table would be deleted or changed with those of this one."""
        admin.execute("CREATE TABLE whole (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id)")
        admin.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (100)")
        table, referenced = ("events", "events") if of == "events" else ("whole", "part")
        commit(url, "old", 0, 1, table=table)
        admin.execute(
            f"CREATE TABLE lines (event bigint DEFAULT 1 REFERENCES {referenced} ON DELETE {action})".encode()
        )
        admin.execute("INSERT INTO lines VALUES (1)")
        assert "lines" in refused("START_OVER_REFUSED", url, "new", 0, 1, over="old", table=table)
        assert admin.execute("SELECT event FROM lines").fetchall() == [(1,)]

    def test_children_that_stay(self, admin, url):
        """Postgres refuses to leave them alone, unless the check is deferred and their parents come again."""
        commit(url, "old", 0, 1)
        admin.execute("CREATE TABLE lines (event bigint REFERENCES events)")
        admin.execute("INSERT INTO lines VALUES (1)")
        assert "lines" in refused("FOREIGN_KEY_VIOLATION", url, "new", 0, 1, over="old")
        admin.execute("ALTER TABLE lines ALTER CONSTRAINT lines_event_fkey DEFERRABLE INITIALLY DEFERRED")
        assert commit(url, "new", 0, 1, over="old") is Verdict.NEW

    def test_children_in_the_table_itself(self, admin, url):
        """They go with their parents, whatever the foreign key says."""
        admin.execute("ALTER TABLE events ADD parent bigint REFERENCES events ON DELETE CASCADE")
        commit(url, "old", 0, 1)
        assert commit(url, "new", 0, 5, over="old") is Verdict.NEW
        assert ids(admin) == [5]

    def test_rows_that_a_trigger_keeps(self, admin, url):
        """They would stay with the new ones; a trigger that keeps none does not matter."""
        commit(url, "old", 0, 1)
        for answer, keeps in (("OLD", False), ("NULL", True)):
            body = f"AS 'BEGIN RETURN {answer}; END'"
            admin.execute(f"CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql {body}".encode())
            admin.execute("CREATE OR REPLACE TRIGGER keep BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION keep()")
            if keeps:
                assert "trigger" in refused("START_OVER_REFUSED", url, "newer", 0, 5, over="new")
            else:
                assert commit(url, "new", 0, 1, over="old") is Verdict.NEW
        assert ids(admin) == [1]

    def test_rows_that_are_hidden(self, admin, url, login):
        """Row-level security would leave those that the role does not see."""
        commit(url, "old", 0, 1)
        for grant in grants(login.user):
            admin.execute(grant.encode())
        admin.execute(f"GRANT ALL ON events TO {login.user}".encode())
        admin.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
        assert "row-level security" in refused("START_OVER_REFUSED", login.url, "new", 0, 5, over="old")
        assert ids(admin) == [1]

    def test_other_isolation_levels(self, admin, url):
        """A snapshot from before the locks would leave what was committed meanwhile."""
        commit(url, "old", 0, 1)
        stricter = url_with(url, options="-cdefault_transaction_isolation=repeatable\\ read")
        assert "isolation" in refused("START_OVER_REFUSED", stricter, "new", 0, 5, over="old")


def test_the_old_query_in_the_middle_of_a_batch_is_waited_for(admin, url):
    """What it publishes until then is deleted with the rest, and its next batch is refused."""
    commit(url, "old", 0, 1)
    with psycopg.connect(url) as busy:
        busy.execute("SELECT FROM pgonce.writers FOR UPDATE")
        busy.execute("INSERT INTO events VALUES (2)")
        starting = threading.Thread(target=lambda: results.append(commit_patiently(url)))
        results = []
        starting.start()
        time.sleep(0.5)
        assert results == []
        busy.commit()
        starting.join()
    assert results == [Verdict.NEW]
    assert ids(admin) == [5]


def commit_patiently(url):
    """Batch 0 of a query that starts over, with time to wait."""
    over = settings(url, remedies=Remedies(replaces="old", start_over=True), lock_timeout=5, retry_timeout=10)
    work = work_into(None, destination("events", "append", (), None), rows(5))
    return commit_batch(over, make_batch(0, "run of new", query_id="new"), work)
