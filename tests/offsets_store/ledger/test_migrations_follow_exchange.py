"""
The recipe of docs/how-to/blue-green.md: a rebuilt table takes the place of another, and no row is lost or doubled.

Covers: offsets_store.ledger.migrations.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, ObjectNotInPrerequisiteState
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, changes
from support.batches import make_batch
from support.committed_rows import COLUMNS, commit_rows, ids, job, settings, writing
from support.dead_letters import put_aside
from support.fixtures.driver import wait_until
from support.page_reader import blocks_of
from support.patience import PATIENCE_SECONDS
from support.recoveries import noted
from support.tombstones import put_tombstone
from support.typed_rows import typed_rows
from support.with_rooms import work_into

from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.text import qualified_name
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.recovery.by_hand import retire_sink
from pgonce.recovery.forget import forget_query
from pgonce.sink.options.destination import destination

(RECIPE,) = (block.text for block in blocks_of("how-to/blue-green.md") if block.language == "sql")
INDEPENDENT = Remedies(independent=True)
commit = partial(commit_rows, table="sales")
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def admin(admin):
    """A connection that may do anything, with a table in use, and a new one that is like it."""
    admin.execute("CREATE TABLE sales (id bigint PRIMARY KEY, name text)")
    admin.execute("CREATE TABLE sales_new (LIKE sales INCLUDING ALL)")
    return admin


@pytest.fixture
def rebuilt(admin, url):
    """An old query has filled the table in use, and a new one the other; both stand at the same end."""
    for batch_id in range(2):
        commit(url, "old", batch_id, 10 * batch_id + 1)
        commit(url, "new", batch_id, 10 * batch_id + 2, table="sales_new")


def exchange(url):
    """Do what the page says, as psql does it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(RECIPE.encode())


def refused(url, match):
    """The recipe fails, with this in its text, and nothing has changed."""
    with psycopg.connect(url, autocommit=True) as observer:
        before = known(observer)
        with pytest.raises(ObjectNotInPrerequisiteState, match=match):
            exchange(url)
        assert known(observer) == before


def known(observer):
    """What the names mean, and what the ledger has of them."""
    names = observer.execute(
        "SELECT to_regclass('sales')::oid, to_regclass('sales_new')::oid, to_regclass('sales_old')"
    )
    writers = observer.execute("SELECT query_id, sink_name, targets, retired_at FROM pgonce.writers ORDER BY writer_id")
    return names.fetchall(), writers.fetchall(), noted(observer)


def code_of(*arguments, **how):
    """The code of the error with which a batch is refused."""
    with pytest.raises(PgonceError) as error:
        commit(*arguments, **how)
    return error.value.code


@pytest.mark.usefixtures("rebuilt")
class TestExchanged:
    def test_the_new_query_goes_on_in_its_place(self, admin, url):
        """Its last batch, run again, is skipped as the same one; the next one goes into its own table."""
        exchange(url)
        assert (ids(admin, "sales"), ids(admin, "sales_old")) == ([2, 12], [1, 11])
        assert commit(url, "new", 1, 12, run="a later run") is Verdict.REPLAY
        assert commit(url, "new", 2, 22, run="a later run") is Verdict.NEW
        assert commit(url, "new", 3, 32, run="a later run") is Verdict.NEW
        assert (ids(admin, "sales"), ids(admin, "sales_old")) == ([2, 12, 22, 32], [1, 11])
        assert admin.execute("SELECT count(*) FROM pgonce.target_changes").fetchone() == (0,)

    def test_the_old_query_is_fenced(self, admin, url):
        """Under its own name, whatever its options say; under the other name nobody knows it."""
        exchange(url)
        for batch_id in (0, 1, 2):
            for remedies in (None, INDEPENDENT, Remedies(adopt_checkpoint=batch_id)):
                assert code_of(url, "old", batch_id, 99, run="a later run", remedies=remedies) == "FENCED"
        assert code_of(url, "old", 2, 99, table="sales_old") == "UNKNOWN"
        assert (ids(admin, "sales"), ids(admin, "sales_old")) == ([2, 12], [1, 11])

    def test_who_decided_it_and_why(self, admin, url):
        """The ledger keeps both."""
        exchange(url)
        found = [(kind, batch, reason) for kind, batch, reason, _ in noted(admin)]
        assert sorted(found) == [("forget", 1, "factor repaired"), ("swap", 1, "factor repaired")]

    def test_a_third_query_meets_the_one_that_fills_the_table_now(self, url):
        """And so does one that is to take its place."""
        exchange(url)
        assert code_of(url, "third", 0, 5) == "FOREIGN"
        at_end = {"start": {"0": {"t": {"0": 20}}}, "end": {"0": {"t": {"0": 30}}}}
        assert commit(url, "third", 0, 5, remedies=Remedies(replaces="new"), **at_end) is Verdict.NEW

    def test_the_next_look_is_at_the_table_that_is_written(self, admin, url, pgonce):
        """`pgonce check` looks at it by the name that it has now, before a batch has used that name."""
        exchange(url)
        admin.execute("ALTER TABLE sales DROP COLUMN name")
        asked = pgonce("check", "--json", "--query", "new")
        (looked,) = (one["says"] for one in json.loads(asked.stdout) if one["name"] == "table")
        assert looked.startswith("public.sales: COLUMN_UNKNOWN, ")

    def test_a_query_that_took_the_place_of_another(self, admin, url):
        """The one that was replaced is known under the new name too, and is refused there."""
        at_end = {"start": {"0": {"t": {"0": 20}}}, "end": {"0": {"t": {"0": 30}}}}
        commit(url, "newer", 0, 22, table="sales_new", remedies=Remedies(replaces="new"), **at_end)
        exchange(url)
        assert code_of(url, "new", 2, 99) == "FENCED"
        again = {"start": {"0": {"t": {"0": 30}}}, "end": {"0": {"t": {"0": 40}}}}
        assert commit(url, "newer", 1, 32, **again) is Verdict.NEW
        assert ids(admin, "sales") == [2, 12, 22, 32]

    def test_dead_letters_name_their_table(self, admin, url):
        """Those of the new query can be replayed, and those of the old one name the table that is put aside."""
        for query, table in (("old", "sales"), ("new", "sales_new")):
            put_aside(admin, {"id": 8}, query_id=query, sink_name=f"public.{table}", target=f"public.{table}")
        exchange(url)
        found = "SELECT query_id, sink_name, target FROM pgonce.dead_letters ORDER BY query_id"
        assert admin.execute(found).fetchall() == [
            ("new", "public.sales", "public.sales"),
            ("old", "public.sales", "public.sales_old"),
        ]

    def test_a_batch_job_is_skipped_where_its_rows_are(self, admin, url):
        """Its key goes with the table, although both tables have the same key."""
        for table, number in (("sales", 5), ("sales_new", 6)):
            commit_job(settings(url), job("monday"), writing(number, table=table))
        commit_job(settings(url), job("tuesday"), writing(7, table="sales"))
        exchange(url)
        commit_job(settings(url), job("monday"), writing(8, table="sales"))
        commit_job(settings(url), job("tuesday"), writing(9, table="sales"))
        assert (ids(admin, "sales"), ids(admin, "sales_old")) == ([2, 6, 9, 12], [1, 5, 7, 11])

    def test_remembered_deletes_have_the_new_names(self, admin, url):
        """By these they are found again if a dump is restored later on."""
        for table, key in (("sales", "[1]"), ("sales_new", "[2]")):
            put_tombstone(admin, table, key, "9")
        exchange(url)
        found = "SELECT target::regclass::text, target_name FROM pgonce.tombstone_sets ORDER BY 1"
        assert admin.execute(found).fetchall() == [("sales", "public.sales"), ("sales_old", "public.sales_old")]


def test_batches_that_wait_meanwhile(admin, url, rebuilt):
    """They have looked their tables up before the exchange, and wait for their writers' rows: none of them writes."""

    def late(query, table):
        return code_of(url, query, 2, 99, table=table, run="a later run")

    with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor(2) as pool:
        connection.execute(RECIPE.replace("COMMIT;", "").encode())
        codes = pool.map(late, ("old", "new"), ("sales", "sales_new"))
        assert wait_until(lambda: admin.execute(WAITING).fetchone() == (2,), PATIENCE_SECONDS)
        connection.execute("COMMIT")
        # To a process that has not published under the old name itself, the second is UNKNOWN.
        assert list(codes) == ["FENCED", "LEDGER_GONE"]
    assert (ids(admin, "sales"), ids(admin, "sales_old")) == ([2, 12], [1, 11])


def test_remembered_deletes_hold_back_older_changes(admin, url):
    """A row that the new query has deleted before the exchange does not come back after it."""
    admin.execute("ALTER TABLE sales_new ADD seq bigint")
    struct = changes(**COLUMNS, seq=t.LongType())

    def change(batch_id, table, *of):
        types = {field.name: field.dataType for field in struct.fields}
        how = {"mode": "apply", "keys": ["id"], "delete_when": "gone", "order_by": "seq", "only_newer": True}
        work = work_into(None, destination(table, **how), typed_rows(types, of))
        return commit_batch(settings(url), make_batch(batch_id, "a run", query_id="new"), work)

    change(0, "sales_new", (1, "one", 1, WRITE), (2, "two", 1, WRITE))
    change(1, "sales_new", (1, None, 5, DELETE))
    exchange(url)
    assert change(2, "sales", (1, "late", 4, WRITE), (2, "newer", 4, WRITE)) is Verdict.NEW
    assert admin.execute("SELECT id, name FROM sales").fetchall() == [(2, "newer")]
    change(3, "sales", (1, "back", 6, WRITE))
    assert ids(admin, "sales") == [1, 2]


def test_a_first_batch_that_runs_again_under_the_old_name(admin, url):
    """It is in the table that has another name now, also if there is a new one for the next rebuild."""
    commit(url, "old", 0, 1)
    commit(url, "new", 0, 2, table="sales_new")
    exchange(url)
    admin.execute("CREATE TABLE sales_new (LIKE sales INCLUDING ALL)")
    assert code_of(url, "new", 0, 2, table="sales_new", run="a later run") == "FOREIGN"
    assert commit(url, "new", 0, 2, run="a later run") is Verdict.REPLAY


def test_sinks_with_names_of_their_own(admin, url):
    """What was recorded of its table tells which one is meant; the old query is fenced under its name."""
    commit(url, "old", 0, 1, sink_name="mine")
    commit(url, "new", 0, 2, sink_name="mine", table="sales_new", remedies=INDEPENDENT)
    exchange(url)
    assert code_of(url, "old", 1, 99, sink_name="mine", run="a later run") == "FENCED"
    assert commit(url, "new", 1, 12, sink_name="mine") is Verdict.NEW
    assert ids(admin, "sales") == [2, 12]


def test_the_ledger_quotes_odd_names_as_python_does(admin, url):
    """The ledger writes them as Python does."""
    admin.execute('CREATE SCHEMA "a.b"; CREATE TABLE "a.b"."Odd ""one" (); CREATE TABLE "user" (); CREATE TABLE "é" ()')
    ensure_ledger(url)
    for schema, name in (("a.b", 'Odd "one'), ("public", "user"), ("public", "é"), ("public", "sales")):
        relation = f"quote_ident({schema!r}) || '.' || quote_ident(%s)"
        found = admin.execute(f"SELECT pgonce.qualified_name(({relation})::regclass)".encode(), [name]).fetchone()
        assert found == (qualified_name(schema, name),)


@pytest.mark.usefixtures("rebuilt")
class TestRefused:
    def test_before_the_tables_are_renamed(self, admin, url):
        """The ledger would name a table that the next batch does not find."""
        with pytest.raises(ObjectNotInPrerequisiteState, match="Rename both tables first"):
            admin.execute("SELECT pgonce.follow_exchange('sales_new', 'sales', 'r')")

    def test_a_name_that_still_means_a_table(self, admin, url):
        """The new query, started with its old options, would write into the table that was put aside."""
        both_ways = RECIPE.replace("SELECT", "ALTER TABLE sales_old RENAME TO sales_new; SELECT")
        with pytest.raises(ObjectNotInPrerequisiteState, match=r"public\.sales_new\b"):
            admin.execute(both_ways.replace("'sales_old'", "'sales_new'").encode())
        admin.execute("ROLLBACK")
        assert ids(admin, "sales") == [1, 11]

    def test_a_table_that_no_query_fills(self, admin, url):
        """Nothing is known of it that would have to follow."""
        forget_query("new", url, reason="r", quiet_seconds=0)
        refused(url, "No query of pgonce")

    @pytest.mark.parametrize(
        "has_begun",
        [
            "SELECT FROM pgonce.writers WHERE query_id = 'old' FOR UPDATE",
            "SELECT FROM pgonce.writers WHERE query_id = 'new' FOR UPDATE",
            "SELECT pg_advisory_xact_lock(hashtextextended('public.sales', 0))",
            "INSERT INTO pgonce.batch_jobs (sink_name, batch_key, attempt) VALUES ('s', 'k', gen_random_uuid())",
        ],
        ids=["of the old query", "of the new query", "the first of a query", "a batch job"],
    )
    def test_a_batch_that_is_under_way(self, url, has_begun):
        """Its writer's row is locked; of a first batch, or of a job, the row is not even to be seen yet."""
        with psycopg.connect(url) as busy:
            busy.execute(has_begun)
            refused(url, "writes to one of them")
            busy.rollback()
        exchange(url)

    @pytest.mark.parametrize("query", ["old", "new"])
    def test_a_query_that_a_listener_hears(self, admin, url, query):
        """Between two batches it holds no lock; it is stopped once its listener has heard it end."""
        admin.execute("INSERT INTO pgonce.heartbeats (query_id, run_id, listener) VALUES (%s, 'r', 'l')", [query])
        refused(url, "runs")
        admin.execute("UPDATE pgonce.heartbeats SET ended_at = now()")
        exchange(url)

    def test_a_table_that_is_behind(self, url):
        """Also behind a query that was retired: its rows are still there, until it is forgotten."""
        commit(url, "old", 2, 21)
        refused(url, r"t-0\b.* 30\b.* 20\b")
        retire_sink("old", url)
        refused(url, "caught up")
        commit(url, "new", 2, 22, table="sales_new")
        exchange(url)

    def test_rows_that_were_copied_by_sql(self, admin, url):
        """A query whose topic the new one does not read stands in the way until it is forgotten."""
        legacy = {"start": {"0": {"legacy": {"0": 0}}}, "end": {"0": {"legacy": {"0": 100}}}}
        commit(url, "ended", 0, 7, remedies=INDEPENDENT, **legacy)
        refused(url, "legacy-0")
        forget_query("ended", url, reason="its rows were copied", quiet_seconds=0)
        exchange(url)

    def test_queries_that_feed_more_than_one_table(self, admin, url):
        """One that feeds both, and one whose transaction spans several tables."""
        admin.execute("""UPDATE pgonce.writers SET targets = targets || '{"public.more": 1}' WHERE query_id = 'old'""")
        refused(url, "several tables")
        admin.execute("UPDATE pgonce.writers SET query_id = 'new' WHERE query_id = 'old'")
        refused(url, "both of them")

    def test_a_query_that_was_retired_and_fed_another_table_too(self, admin, url):
        """It would count as forgotten, and `forget --truncate` of the other table's query would take its rows."""
        legacy = {"start": {"0": {"legacy": {"0": 0}}}, "end": {"0": {"legacy": {"0": 0}}}}
        commit(url, "ended", 0, 7, remedies=INDEPENDENT, **legacy)
        admin.execute(
            """UPDATE pgonce.writers SET targets = targets || '{"public.more": 1}' WHERE query_id = 'ended'"""
        )
        retire_sink("ended", url)
        refused(url, "several tables")
        forget_query("ended", url, reason="its rows may go", quiet_seconds=0)
        exchange(url)

    @pytest.mark.parametrize("second", ["sales", "customers"])
    def test_another_second_argument(self, admin, url, second):
        """The query of a third table would be forgotten, and keys of batch jobs would stay behind."""
        admin.execute("CREATE TABLE customers (LIKE sales)")
        nowhere = {"start": {"0": {"c": {"0": 0}}}, "end": {"0": {"c": {"0": 0}}}}
        commit(url, "third", 0, 1, table="customers", **nowhere)
        wrong = RECIPE.replace("'sales_old'", f"'{second}'")
        with psycopg.connect(url) as connection, pytest.raises(ObjectNotInPrerequisiteState, match="second argument"):
            connection.execute(wrong.encode())

    def test_one_partition_read_by_two_sources(self, url):
        """The old query's rows of one source go further than those of the new query, although the other's do not."""
        begins = {source: {"t": {"0": 0}} for source in "01"}
        for query, table, reached in (("two", "sales", (100, 50)), ("both", "sales_new", (60, 60))):
            ends = {source: {"t": {"0": end}} for source, end in zip("01", reached, strict=True)}
            commit(url, query, 0, 70, table=table, remedies=INDEPENDENT, start=begins, end=ends)
        forget_query("old", url, reason="r", quiet_seconds=0)
        forget_query("new", url, reason="r", quiet_seconds=0)
        refused(url, r"t-0\b.* 100\b.* 60\b")

    def test_keys_of_jobs_that_an_earlier_table_has(self, admin, url):
        """Put aside under the same name each month, a table would bring the same keys again."""
        commit_job(settings(url), job("monday"), writing(5, table="sales"))
        exchange(url)
        admin.execute("DROP TABLE sales_old; CREATE TABLE sales_new (LIKE sales INCLUDING ALL)")
        commit_job(settings(url), job("monday"), writing(6, table="sales"))
        for batch_id in range(2):
            commit(url, "newest", batch_id, 10 * batch_id + 3, table="sales_new")
        refused(url, "earlier table public.sales_old")

    @pytest.mark.parametrize("table", ["sales", "sales_new"])
    def test_a_partition_cannot_take_the_place_of_a_table(self, admin, url, table):
        """Deletes are remembered with those of the table above it, and queries feed it through that one."""
        admin.execute(f"CREATE TABLE whole (LIKE {table}) PARTITION BY RANGE (id)".encode())
        admin.execute(f"ALTER TABLE whole ATTACH PARTITION {table} DEFAULT".encode())
        refused(url, "partition")

    def test_batch_jobs_with_a_name_of_their_own(self, url):
        """Nothing says which table the name means later on."""
        commit_job(settings(url), job("monday"), writing(5, table="sales", sink_name="mine"))
        refused(url, "sinkName")

    def test_a_ledger_that_was_restored(self, admin, url):
        """Its oids are those of another database until they are looked up again."""
        admin.execute("UPDATE pgonce.home SET written_in = 0")
        refused(url, "restored")

    def test_an_exchange_without_a_reason_is_refused(self, url):
        """As for each decision that a person makes."""
        with psycopg.connect(url, autocommit=True) as connection, pytest.raises(ObjectNotInPrerequisiteState):
            connection.execute(RECIPE.replace("factor repaired", " ").encode())

    def test_a_transaction_that_does_not_see_the_others(self, url):
        """A query that has published since it began would be left behind."""
        other = RECIPE.replace("READ COMMITTED", "REPEATABLE READ").encode()
        with (
            psycopg.connect(url, autocommit=True) as connection,
            pytest.raises(ObjectNotInPrerequisiteState, match="meanwhile"),
        ):
            connection.execute(other)

    def test_a_role_that_only_streams(self, admin, url, login):
        """It is the owner of the ledger who may say this."""
        admin.execute(f"GRANT USAGE ON SCHEMA pgonce TO {login.user}".encode())
        with psycopg.connect(login.url) as connection, pytest.raises(InsufficientPrivilege, match="follow_exchange"):
            connection.execute("SELECT pgonce.follow_exchange('pgonce.writers', 'pgonce.batches', 'r')")
