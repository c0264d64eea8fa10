"""
Two tables are exchanged: readers and writers of a name find the other table, and no row is lost or doubled.

Covers: pgonce.cli.recover, offsets_store.rebuild.described_table, offsets_store.rebuild.exchange,
offsets_store.rebuild.feeding.
"""

from __future__ import annotations

import re
import threading
import time

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import rows, settings
from support.dead_letters import put_aside
from support.recoveries import noted
from support.tombstones import put_tombstone

from pgonce.cli.doctor import look_again
from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.recovery.by_hand import accept_batch, retire_sink
from pgonce.offsets_store.recovery.forget import forget_query
from pgonce.offsets_store.status.read_stored import last_written
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.write_batch import work_into, write_batch_in_tx


@pytest.fixture
def admin(url):
    """A connection that may do anything, with a living table, and a new one that is like it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text CHECK (name <> ''))")
        connection.execute("CREATE INDEX events_by_name ON events (name)")
        connection.execute("CREATE TABLE events_new (LIKE events INCLUDING ALL)")
        yield connection


def commit(url, query, batch_id, *of, table="events", sink_name=None, remedies=None, run=None, **facts):
    """Commit one batch of a query into a table."""
    work = work_into(sink_name, destination(table), rows(*of))
    batch = make_batch(batch_id, run or f"run of {query}", query_id=query, **facts)
    return commit_batch(settings(url, remedies=remedies or Remedies(), retry_timeout=0), batch, work)


def of_function(url, query, batch_id, *of, table="events"):
    """Commit one batch of a function that writes its rows into a table, and nothing if there are none."""

    def publish(connection, batch, _):
        if not of:
            return Published(0, "function", targets={})
        return write_batch_in_tx(driver_connection(connection), destination(table), rows(*of), batch)

    batch = make_batch(batch_id, f"run of {query}", query_id=query, sink_name=query)
    return commit_batch(settings(url, retry_timeout=0), batch, Work(lambda _: query, publish, sealed=True))


def refused(code, *arguments, **how):
    """What the commit says."""
    with pytest.raises(PgonceError) as error:
        commit(*arguments, **how)
    assert error.value.code == code
    return str(error.value)


def in_table(admin, name):
    """The ids in a table."""
    return [row[0] for row in admin.execute(f"SELECT id FROM {name} ORDER BY id".encode()).fetchall()]


@pytest.fixture
def rebuilt(admin, url):
    """An old query has fed the living table, and a new one the other; both stand at the same end."""
    for batch_id in range(2):
        commit(url, "old", batch_id, 10 * batch_id + 1)
        commit(url, "new", batch_id, 10 * batch_id + 2, table="events_new")


@pytest.fixture
def swap(pgonce):
    """Give the command."""

    def give(*more, tables=("events", "events_new"), yes=True):
        return pgonce("swap", *tables, "--reason", "a mended join", *more, *(["--yes"] if yes else []))

    return give


class TestExchanged:
    def test_shown_first_then_done(self, rebuilt, swap, admin):
        """Without --yes it only tells; with it the names have changed places, and the ledger has the reason."""
        shown = swap(yes=False)
        assert (shown.exit_code, in_table(admin, "events"), noted(admin)) == (ExitCode.OK, [1, 11], [])
        assert "table=public.events" in shown.stdout
        done = swap()
        assert (done.exit_code, done.stderr) == (ExitCode.OK, "")
        assert (in_table(admin, "events"), in_table(admin, "events_new")) == ([2, 12], [1, 11])
        assert [(kind, batch, reason) for kind, batch, reason, _ in noted(admin)] == [("swap", 1, "a mended join")] * 2

    def test_each_query_goes_on_with_its_own_rows(self, rebuilt, swap, admin, url):
        """Whichever is started with the name that its table has now goes on; the others write nothing."""
        swap()
        for run in (None, "a later run"):
            for query, table in (("new", "events_new"), ("old", "events")):
                assert "SWAPPED" in refused("SWAPPED", url, query, 2, 99, table=table, run=run)
                adopted = Remedies(adopt_checkpoint=2)
                refused("SWAPPED", url, query, 2, 99, table=table, run=run, remedies=adopted)
        assert commit(url, "new", 2, 22, run="a later run") is Verdict.NEW
        assert commit(url, "old", 2, 21, table="events_new", run="a later run") is Verdict.NEW
        assert commit(url, "new", 3, 32, run="a later run") is Verdict.NEW
        assert (in_table(admin, "events"), in_table(admin, "events_new")) == ([2, 12, 22, 32], [1, 11, 21])

    def test_replays_stay_replays(self, rebuilt, swap, admin, url):
        """A batch that was published before the swap is proven to be that one after it."""
        swap()
        assert commit(url, "new", 1, 12, run="a later run") is Verdict.REPLAY
        assert commit(url, "new", 2, 22, run="a later run") is Verdict.NEW
        assert in_table(admin, "events") == [2, 12, 22]

    def test_sinks_with_names_of_their_own(self, admin, url, swap):
        """The name does not tell which table is meant; what was recorded of the table does."""
        commit(url, "old", 0, 1, sink_name="mine")
        commit(url, "new", 0, 2, sink_name="mine", table="events_new", remedies=Remedies(independent=True))
        assert swap().exit_code == ExitCode.OK
        for run in (None, "a later run"):
            refused("TARGET_CHANGED", url, "old", 1, 99, sink_name="mine", run=run)
            refused("TARGET_CHANGED", url, "new", 1, 99, sink_name="mine", table="events_new", run=run)
        assert commit(url, "new", 1, 12, sink_name="mine") is Verdict.NEW
        assert in_table(admin, "events") == [2, 12]

    def test_a_function_that_has_written_nothing_since_is_still_refused(self, admin, url, swap):
        """Its first batch after the swap has no rows, so only the next one shows which table it writes to."""
        for name, table in (("mine", "events"), ("other", "events_new")):
            of_function(url, name, 0, 1, table=table)
        assert swap().exit_code == ExitCode.OK
        of_function(url, "mine", 1)
        with pytest.raises(PgonceError, match="TARGET_CHANGED"):
            of_function(url, "mine", 2, 77)
        of_function(url, "mine", 2, 77, table="events_new")
        of_function(url, "mine", 3, 78, table="events_new")
        assert (in_table(admin, "events"), in_table(admin, "events_new")) == ([1], [1, 77, 78])

    def test_remembered_deletes_go_with_their_table(self, rebuilt, swap, admin):
        """By its oid; and by the name that it has now, if a dump is restored later on."""
        for table, key in (("events", "[1]"), ("events_new", "[2]")):
            put_tombstone(admin, table, key, "9")
        swap()
        found = admin.execute(
            "SELECT target::regclass::text, target_name, key FROM pgonce.tombstone_sets "
            "JOIN pgonce.tombstones USING (tombstone_set_id) ORDER BY key"
        ).fetchall()
        assert found == [("events_new", "public.events_new", [1]), ("events", "public.events", [2])]

    def test_a_new_query_of_the_name_meets_the_right_rival(self, rebuilt, swap, url):
        """Who starts again from the beginning into the living name is compared with the query that feeds it now."""
        swap()
        assert "query new" in refused("FOREIGN", url, "third", 0, 5)
        over = Remedies(replaces="old", start_over=True)
        refused("FOREIGN", url, "third", 0, 5, remedies=over)

    def test_a_retired_query_goes_with_its_rows(self, rebuilt, swap, admin, url):
        """They do not keep the other table from starting over, and its letters go with it."""
        commit(url, "ended", 0, 7, remedies=Remedies(independent=True))
        put_aside(admin, {"id": 8}, query_id="ended", sink_name="public.events", target="public.events")
        retire_sink("ended", url, reason="its topic has ended")
        assert swap().exit_code == ExitCode.OK
        found = "SELECT w.sink_name, w.targets, l.sink_name, l.target FROM pgonce.writers AS w "
        found += "JOIN pgonce.dead_letters AS l USING (query_id)"
        ((sink, targets, *of_letter),) = admin.execute(found).fetchall()
        assert [sink, *targets, *of_letter] == ["public.events_new"] * 4
        over = Remedies(replaces="new", start_over=True)
        assert commit(url, "newer", 0, 2, remedies=over) is Verdict.NEW
        assert in_table(admin, "events_new") == [1, 7, 11]

    def test_a_retired_query_that_has_fed_both_tables(self, rebuilt, swap, admin, url):
        """Its two sinks cannot change their names one after the other, so they keep them, and nothing fails."""
        for table in ("events", "events_new"):
            commit(url, "ended", 0, 7, table=table, remedies=Remedies(independent=True))
            retire_sink("ended", url, sink=f"public.{table}")
        assert swap().exit_code == ExitCode.OK
        kept = "SELECT bool_and(targets ? sink_name) FROM pgonce.writers WHERE query_id = 'ended'"
        assert admin.execute(kept).fetchone() == (True,)

    def test_back(self, rebuilt, swap, admin, url):
        """As long as nothing happened since, it can be undone, and a command that is given twice undoes nothing."""
        swap()
        assert "[SWAP_AGAIN]" in swap().stderr
        assert swap("--back").exit_code == ExitCode.OK
        assert in_table(admin, "events") == [1, 11]
        assert commit(url, "old", 2, 21) is Verdict.NEW
        assert commit(url, "new", 2, 22, table="events_new") is Verdict.NEW
        assert "[SWAP_AGAIN]" in swap("--back").stderr

    def test_back_needs_both_tables_of_the_swap(self, rebuilt, swap, admin):
        """A table that was not part of it takes no place without proof that it has caught up."""
        swap()
        admin.execute("CREATE TABLE third (LIKE events INCLUDING ALL)")
        assert "[SWAP_AGAIN]" in swap("--back", tables=("events", "third")).stderr
        assert "[SWAP_UNPROVEN]" in swap(tables=("events", "third")).stderr

    def test_the_next_look_is_at_the_table_that_is_written(self, rebuilt, swap, admin, url):
        """`doctor` and `check` look at it by the name that it has now, before a batch has used that name."""
        swap()
        admin.execute("ALTER TABLE events DROP COLUMN name")
        (looked,) = look_again(url, last_written(url, "new"), of_this_role=False)
        assert (looked.table, looked.code) == ("public.events", "COLUMN_UNKNOWN")
        (looked,) = look_again(url, last_written(url, "old"), of_this_role=False)
        assert (looked.table, looked.code) == ("public.events_new", None)

    def test_back_after_more_batches(self, rebuilt, swap, admin, url):
        """Then it is a swap like any other, for which the table that comes back must have caught up."""
        swap()
        commit(url, "new", 2, 22)
        assert "[SWAP_AGAIN]" in swap("--back").stderr
        assert "[SWAP_BEHIND]" in swap().stderr
        commit(url, "old", 2, 21, table="events_new")
        assert swap().exit_code == ExitCode.OK
        assert in_table(admin, "events") == [1, 11, 21]


class TestWhatFollowsTheName:
    def test_grants_and_comments(self, rebuilt, swap, admin, login):
        """They must be alike, and the error says how to make them so; then all that a name stands for is as it was."""
        role = login.user
        for statement in (
            f"GRANT SELECT ON events TO {role} WITH GRANT OPTION",
            "GRANT SELECT ON events TO PUBLIC",
            f"GRANT UPDATE (name) ON events TO {role}",
            f"GRANT DELETE ON events_new TO {role}",
            f"GRANT SELECT ON events_new TO {role}",
            f"GRANT INSERT ON events TO {role}; GRANT INSERT ON events_new TO {role} WITH GRANT OPTION",
            "COMMENT ON TABLE events IS 'living'",
            "COMMENT ON COLUMN events.name IS 'it''s the name'",
            "COMMENT ON COLUMN events_new.id IS 'an id'",
        ):
            admin.execute(statement.encode())
        refused = swap().stderr
        assert "[SWAP_DIFFERS]" in refused
        make_alike(admin, refused)
        before = {name: known(admin, name) for name in ("events", "events_new")}
        assert before["events"][:-2] == before["events_new"][:-2]
        assert swap().exit_code == ExitCode.OK
        assert {name: known(admin, name) for name in before} == before
        assert swap("--back").exit_code == ExitCode.OK
        assert {name: known(admin, name) for name in before} == before

    def test_constraints_whose_names_cross(self, rebuilt, swap, admin):
        """Each of two checks has the name that the other has in the other table."""
        for table, low, high in (("events", "a", "b"), ("events_new", "b", "a")):
            checks = f"ADD CONSTRAINT {low} CHECK (id > 0), ADD CONSTRAINT {high} CHECK (id < 99)"
            admin.execute(f"ALTER TABLE {table} {checks}".encode())
        before = {name: known(admin, name) for name in ("events", "events_new")}
        assert swap().exit_code == ExitCode.OK
        assert {name: known(admin, name) for name in before} == before

    @pytest.mark.parametrize("kind", ["bigserial", "bigint GENERATED ALWAYS AS IDENTITY"])
    def test_sequences_of_their_own(self, admin, url, swap, kind, login):
        """Each table goes on with its own sequence, which has the name that belongs to the table's name."""
        for table in ("events", "events_new"):
            admin.execute(f"DROP TABLE {table}; CREATE TABLE {table} (id bigint, name text, n {kind})".encode())
        admin.execute(f"GRANT USAGE ON SEQUENCE events_n_seq TO {login.user}".encode())
        commit(url, "old", 0, 1, 2, 3)
        commit(url, "new", 0, 4, table="events_new")
        make_alike(admin, swap().stderr)
        assert swap().exit_code == ExitCode.OK
        admin.execute("INSERT INTO events (id) VALUES (5)")
        assert admin.execute("SELECT n FROM events ORDER BY n").fetchall() == [(1,), (2,)]
        assert admin.execute("SELECT pg_get_serial_sequence('events', 'n')").fetchone() == ("public.events_n_seq",)
        can = "SELECT has_sequence_privilege(%s, 'events_n_seq', 'USAGE')"
        assert admin.execute(can, [login.user]).fetchone() == (True,)
        admin.execute("DROP TABLE events_new")

    def test_a_sequence_that_both_use(self, admin, url, swap):
        """LIKE copies the default, not the sequence: it belongs to the new table then, and outlives the old one."""
        admin.execute("DROP TABLE events, events_new")
        admin.execute("CREATE TABLE events (id bigint, name text, n bigserial)")
        admin.execute("CREATE TABLE events_new (LIKE events INCLUDING ALL)")
        commit(url, "old", 0, 1)
        commit(url, "new", 0, 4, table="events_new")
        for back in ((), ("--back",), ()):
            found = swap(*back)
            assert (found.stderr, found.exit_code) == ("", ExitCode.OK)
            assert admin.execute("SELECT pg_get_serial_sequence('events', 'n')").fetchone() == ("public.events_n_seq",)
        admin.execute("DROP TABLE events_new")
        admin.execute("INSERT INTO events (id) VALUES (5)")
        assert admin.execute("SELECT n FROM events ORDER BY n").fetchall() == [(2,), (3,)]


def make_alike(admin, refused):
    """Run the statements that a refused swap shows."""
    found = re.findall(r"(?:GRANT|REVOKE|COMMENT ON) .*?(?=; GRANT|; REVOKE|; COMMENT|; its|\. Queries)", refused)
    assert found
    for statement in found:
        admin.execute(statement.encode())


def known(admin, table):
    """What is known by a table's name: privileges, comments, and the names of its indexes and constraints."""
    admin.execute(
        "CREATE OR REPLACE FUNCTION privileges(acl aclitem[]) RETURNS text LANGUAGE sql AS "
        "'SELECT string_agg(privilege::text, '','' ORDER BY privilege::text) FROM aclexplode(acl) AS privilege'"
    )
    return admin.execute(
        "SELECT privileges(coalesce(relacl, acldefault('r', relowner))), obj_description(c.oid), "
        "array_agg(privileges(attacl) ORDER BY attnum), "
        "array_agg(col_description(c.oid, attnum) ORDER BY attnum), "
        "(SELECT array_agg(conname || pg_get_constraintdef(oid) ORDER BY conname) FROM pg_constraint "
        " WHERE conrelid = c.oid), "
        "(SELECT array_agg(indexrelid::regclass::text ORDER BY 1) FROM pg_index WHERE indrelid = c.oid) "
        "FROM pg_class AS c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0 WHERE c.oid = %s::regclass "
        "GROUP BY c.oid",
        [table],
    ).fetchone()


OBSTACLES = {
    "a view": "CREATE VIEW v AS SELECT id FROM {}",
    "a materialized view": "CREATE MATERIALIZED VIEW v AS SELECT id FROM {}",
    "a function's body": "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT max(id) FROM {}; END",
    "a function of its rows": "CREATE FUNCTION f() RETURNS SETOF {} LANGUAGE sql AS 'SELECT 1::bigint, NULL::text'",
    "a column of its rows": "CREATE TABLE other (e {}[])",
    "a foreign key to it": "CREATE TABLE child (id bigint REFERENCES {} (id))",
    "a foreign key of it": "CREATE TABLE p (id bigint PRIMARY KEY); ALTER TABLE {} ADD FOREIGN KEY (id) "
    "REFERENCES p NOT VALID",
    "a foreign key to itself": "ALTER TABLE {0} ADD FOREIGN KEY (id) REFERENCES {0} (id) NOT VALID",
    "a publication": "CREATE PUBLICATION p FOR TABLE {}",
    "a publication of all tables": "CREATE PUBLICATION p FOR ALL TABLES",
    "a policy": "CREATE POLICY p ON {} USING (true)",
    "row-level security": "ALTER TABLE {} ENABLE ROW LEVEL SECURITY",
    "a trigger": "CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
    "CREATE TRIGGER t BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION g()",
    "a rule": "CREATE RULE r AS ON DELETE TO {} DO INSTEAD NOTHING",
    "a child": "CREATE TABLE child () INHERITS ({})",
    "a parent": "CREATE TABLE parent (id bigint NOT NULL); ALTER TABLE {} INHERIT parent",
    "a partition": "CREATE TABLE whole (LIKE {0}) PARTITION BY RANGE (id); "
    "ALTER TABLE whole ATTACH PARTITION {0} DEFAULT",
    "an unlogged table": "ALTER TABLE {} SET UNLOGGED",
    "another schema": "CREATE SCHEMA away; ALTER TABLE {} SET SCHEMA away",
}


DIFFERENCES = {
    "a column that is missing": "ALTER TABLE events_new DROP name",
    "another type": "ALTER TABLE events_new ALTER id TYPE int",
    "another modifier": "ALTER TABLE events_new ALTER name TYPE varchar(9)",
    "another collation": 'ALTER TABLE events_new ALTER name TYPE text COLLATE "C"',
    "no null": "ALTER TABLE events_new ALTER name SET NOT NULL",
    "a default": "ALTER TABLE events_new ALTER name SET DEFAULT 'x'",
    "a new column that needs a value": "ALTER TABLE events_new ADD more int; UPDATE events_new SET more = 1; "
    "ALTER TABLE events_new ALTER more SET NOT NULL",
    "another order": "ALTER TABLE events_new RENAME id TO x; ALTER TABLE events_new ADD id bigint; "
    "UPDATE events_new SET id = x; ALTER TABLE events_new DROP x, ADD PRIMARY KEY (id)",
    "no key": "ALTER TABLE events_new DROP CONSTRAINT events_new_pkey",
    "no index": "DROP INDEX events_new_name_idx",
    "an index that is not valid": "UPDATE pg_index SET indisvalid = false "
    "WHERE indexrelid = 'events_new_name_idx'::regclass",
    "no check": "ALTER TABLE events_new DROP CONSTRAINT events_name_check",
    "one more check": "ALTER TABLE events_new ADD CHECK (id < 1000)",
    "one more key": "ALTER TABLE events_new ADD UNIQUE (name)",
    "an exclusion by another operator": "ALTER TABLE events ADD r int4range, ADD EXCLUDE USING gist (r WITH &&); "
    "ALTER TABLE events_new ADD r int4range, ADD EXCLUDE USING gist (r WITH -|-)",
    "another replica identity": "ALTER TABLE events_new REPLICA IDENTITY FULL",
}
# One of each kind; `make test-all` has the others.
DIFFER_IN_SHORT = ("another type", "no key", "no index", "one more check", "an exclusion by another operator")


class TestRefused:
    @pytest.mark.parametrize("table", ["events", "events_new"])
    @pytest.mark.parametrize("what", OBSTACLES)
    def test_what_would_stay_with_the_old_table(self, rebuilt, swap, admin, what, table):
        """It would not follow the name; nothing is changed, and it is named."""
        admin.execute(OBSTACLES[what].format(table).encode())
        tables = [
            f"away.{name}" if what == "another schema" and name == table else name for name in ("events", "events_new")
        ]
        found = swap(tables=tables)
        assert "[SWAP_REFUSED]" in found.stderr
        assert found.exit_code == ExitCode.NEEDS_PERSON
        assert noted(admin) == []

    def test_owners(self, rebuilt, swap, admin, login):
        """The new table belongs to another role; the text has the statement that changes that."""
        admin.execute(f"ALTER TABLE events_new OWNER TO {login.user}".encode())
        try:
            assert "ALTER TABLE public.events_new OWNER TO" in swap().stderr
        finally:
            admin.execute(f"REASSIGN OWNED BY {login.user} TO CURRENT_USER".encode())

    @pytest.mark.parametrize(
        "what",
        [what if what in DIFFER_IN_SHORT else pytest.param(what, marks=pytest.mark.thorough) for what in DIFFERENCES],
    )
    def test_tables_that_differ(self, rebuilt, swap, admin, what):
        """Readers or writers of the living table could fail: it needs a word of its own."""
        admin.execute(DIFFERENCES[what].encode())
        assert "[SWAP_DIFFERS]" in swap().stderr
        found = swap("--despite-differences")
        assert (found.stderr, found.exit_code) == ("", ExitCode.OK)
        assert in_table(admin, "events") == [2, 12]

    def test_a_new_column_at_the_end(self, rebuilt, swap, admin):
        """That is what a rebuild is for: nobody who names the columns notices; nor does an index refuse anything."""
        admin.execute("ALTER TABLE events_new ADD more int; CREATE INDEX ON events_new (more)")
        assert swap().exit_code == ExitCode.OK

    def test_a_new_table_that_is_behind(self, rebuilt, swap, admin, url):
        """The text says by how much; no word lets it through."""
        commit(url, "old", 2, 21)
        found = swap("--caught-up")
        assert "[SWAP_BEHIND]" in found.stderr
        assert "t-0 is stored up to 30" in found.stderr
        commit(url, "new", 2, 22, table="events_new")
        commit(url, "new", 3, 32, table="events_new")
        assert swap().exit_code == ExitCode.OK

    def test_rows_of_a_query_that_was_retired(self, rebuilt, swap, url):
        """They are in the living table still, and the new one must have them as well."""
        commit(url, "old", 2, 21)
        retire_sink("old", url, reason="its topic has ended")
        assert "[SWAP_BEHIND]" in swap("--caught-up").stderr
        commit(url, "new", 2, 22, table="events_new")
        assert swap().exit_code == ExitCode.OK

    def test_rows_that_were_copied_by_sql(self, rebuilt, swap, url):
        """A retired query whose topic the new one does not read stands in the way until it is forgotten."""
        legacy = {"start": {"0": {"legacy": {"0": 0}}}, "end": {"0": {"legacy": {"0": 100}}}}
        commit(url, "ended", 0, 7, remedies=Remedies(independent=True), **legacy)
        retire_sink("ended", url, reason="its topic has ended")
        found = swap("--caught-up")
        assert "[SWAP_BEHIND]" in found.stderr
        assert "`pgonce forget QUERY --sink public.events --reason ... --yes`" in found.stderr
        forget_query("ended", url, reason="its rows were copied")
        assert swap().exit_code == ExitCode.OK

    @pytest.mark.parametrize("gone", ["old", "new"])
    def test_ends_that_cannot_be_compared(self, rebuilt, swap, admin, gone, url):
        """If nothing is known of one of the tables, nothing is proven, and a person must say that it is well."""
        forget_query(gone, url, reason="no more of it", quiet_seconds=0)
        assert "[SWAP_UNPROVEN]" in swap().stderr
        assert swap("--caught-up").exit_code == ExitCode.OK

    def test_tables_that_pgonce_does_not_feed(self, admin, store, swap):
        """There is nobody for whom the ledger could keep what was done."""
        assert "no query of pgonce feeds either" in swap("--caught-up").stderr

    def test_queries_that_feed_more_than_one_table(self, rebuilt, swap, admin):
        """One that feeds both, and a function whose transaction spans several tables."""
        admin.execute("""UPDATE pgonce.writers SET targets = targets || '{"public.more": 1}' WHERE query_id = 'old'""")
        assert "several tables" in swap().stderr
        admin.execute("UPDATE pgonce.writers SET query_id = 'new' WHERE query_id = 'old'")
        assert "feeds both" in swap().stderr

    def test_names_that_mean_nothing(self, rebuilt, swap):
        """No such table, no name at all, twice the same one."""
        for name, code in (
            ("absent", "SWAP_NO_TABLE"),
            ("a.b.c.d", "SWAP_NO_TABLE"),
            ("public.events", "SWAP_REFUSED"),
        ):
            assert f"[{code}]" in swap(tables=("events", name)).stderr

    def test_somebody_elses_tables(self, rebuilt, pgonce, admin, login, monkeypatch):
        """A role that owns neither table is told so."""
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {login.user}".encode())
        admin.execute(f"GRANT ALL ON SCHEMA pgonce TO {login.user}".encode())
        admin.execute(f"GRANT ALL ON events, events_new TO {login.user}".encode())
        found = pgonce("swap", "events", "events_new", "--reason", "r", "--yes", "--url", login.url)
        assert "[SWAP_REFUSED]" in found.stderr
        assert "neither postgres, the owner of public.events, nor" in found.stderr
        assert in_table(admin, "events") == [1, 11]

    def test_a_writer_in_the_middle_of_a_batch(self, rebuilt, swap, admin, url):
        """It is waited for, with a bound; then the tables are exchanged, or nothing is."""
        with psycopg.connect(url) as busy:
            busy.execute("SELECT FROM pgonce.writers WHERE query_id = 'new' FOR UPDATE")
            swapping = threading.Thread(target=lambda: results.append(swap()))
            results = []
            swapping.start()
            time.sleep(0.5)
            assert results == []
            busy.commit()
            swapping.join()
        assert results[0].exit_code == ExitCode.OK

    def test_a_reader_that_holds_a_table(self, rebuilt, swap, admin, url):
        """The wait for it is bounded, because all others wait behind it; the text names its session."""
        with psycopg.connect(url) as reader:
            reader.execute("SELECT FROM events")
            found = swap("--lock-timeout", "1")
            assert "[SWAP_LOCKED]" in found.stderr
            assert f"pid {reader.info.backend_pid}" in found.stderr
        assert in_table(admin, "events") == [1, 11]


def test_a_commit_that_waits_meanwhile_is_refused(rebuilt, swap, admin, url):
    """It has looked its table up before the swap, and waits for its writer's row: it finds the other name there."""
    with psycopg.connect(url) as holder:
        holder.execute("SELECT FROM pgonce.writers FOR UPDATE")
        results = []

        def late(query, table):
            try:
                work = work_into(None, destination(table), rows(99))
                batch = make_batch(2, "a later run", query_id=query)
                commit_batch(settings(url, lock_timeout=10, retry_timeout=0), batch, work)
            except PgonceError as error:
                results.append(error.code)

        waiting = [threading.Thread(target=late, args=of) for of in (("new", "events_new"), ("old", "events"))]
        swapping = threading.Thread(target=swap)
        swapping.start()
        time.sleep(0.5)
        for thread in waiting:
            thread.start()
        time.sleep(0.5)
        holder.rollback()
        for thread in (swapping, *waiting):
            thread.join()
    if in_table(admin, "events") == [2, 12]:
        assert results == ["SWAPPED"] * 2
    everything = in_table(admin, "events") + in_table(admin, "events_new")
    assert everything.count(99) == 2 - len(results)


class TestBegan:
    """The new table's query must have read what the living one's has read, from where that began."""

    def test_it_began_later(self, admin, url, swap):
        """Only its last ten records are in the new table: refused, until somebody says that this is meant."""
        for batch_id in range(5):
            commit(url, "old", batch_id, batch_id)
        last = {"start": {"0": {"t": {"0": 40}}}, "end": {"0": {"t": {"0": 50}}}}
        commit(url, "new", 0, 4, table="events_new", **last)
        said = swap()
        assert said.exit_code == ExitCode.NEEDS_PERSON
        assert "SWAP_UNPROVEN" in said.stderr
        assert "t-0 is stored from 0 on, but in the new table only from 40 on" in " ".join(said.stderr.split())
        assert in_table(admin, "events") == [0, 1, 2, 3, 4]
        assert swap("--caught-up").exit_code == ExitCode.OK
        assert in_table(admin, "events") == [4]

    def test_it_went_on_for_another_query(self, admin, url, swap):
        """A query that took another's place has its rows, too: the first of them began where the living one's did."""
        commit(url, "old", 0, 1)
        commit(url, "new", 0, 1, table="events_new")
        next_ten = {"start": {"0": {"t": {"0": 10}}}, "end": {"0": {"t": {"0": 20}}}}
        for query, table in (("old", "events"), ("new", "events_new")):
            replaces = Remedies(replaces=query)
            commit(url, f"{query}er", 0, 2, table=table, remedies=replaces, **next_ten)
        assert swap().exit_code == ExitCode.OK

    def test_a_batch_was_accepted_over_a_gap(self, admin, url, swap):
        """The ends are the same, but what was between is not in the new table."""
        for batch_id in range(4):
            commit(url, "old", batch_id, batch_id)
        commit(url, "new", 0, 0, table="events_new")
        refused("GAP", url, "new", 3, 3, table="events_new")
        accept_batch("new", 3, url, reason="what lies between is gone")
        assert commit(url, "new", 3, 3, table="events_new") is Verdict.ACCEPTED
        said = swap()
        assert "SWAP_UNPROVEN" in said.stderr
        assert "batch 3 of its query was accepted by hand" in " ".join(said.stderr.split())
        assert swap("--caught-up").exit_code == ExitCode.OK

    def test_a_batch_was_accepted_that_needed_no_acceptance(self, rebuilt, url, swap):
        """The checkpoint was mended meanwhile, and nothing was left out."""
        accept_batch("new", 5, url, reason="to be on the safe side")
        for query, table in (("new", "events_new"), ("old", "events")):
            assert commit(url, query, 2, 22, table=table) is Verdict.NEW
        assert swap().exit_code == ExitCode.OK

    def test_its_first_record_was_pruned(self, rebuilt, admin, swap):
        """What nothing tells any more is not guessed."""
        admin.execute(
            "DELETE FROM pgonce.batches WHERE batch_id = 0 AND writer_id IN "
            "(SELECT writer_id FROM pgonce.writers WHERE query_id = 'new')"
        )
        said = swap()
        assert said.exit_code == ExitCode.NEEDS_PERSON
        assert "no record any more of where the query that fills the new table began" in " ".join(said.stderr.split())
