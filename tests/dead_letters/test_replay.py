"""
Rows that were put aside and mended get into their table as a batch's rows do, once, and their letters go with it.

Covers: pgonce.dead_letters.replay_rules.
"""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import types as t
from support.dead_letters import STRUCT, a_past, by_key, letters, put_aside, replayed
from support.fixtures.postgres import url_with
from support.ledger_history import OTHER
from support.recoveries import noted
from support.tombstones import put_tombstone

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import grants
from pgonce.sink.options.destination import destination

SEQ = t.StructType([*STRUCT.fields, t.StructField("seq", t.LongType())])
CHANGES = t.StructType([*SEQ.fields, t.StructField("gone", t.BooleanType())])


@pytest.fixture
def admin(url, admin):
    """A connection that may do anything; a query has published a batch, and there is its table."""
    a_past(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5) CHECK (name <> 'bad'))")
    return admin


def in_table(admin, columns="id, name"):
    """The rows of the table."""
    return admin.execute(f"SELECT {columns} FROM events ORDER BY id".encode()).fetchall()


def test_deferred_triggers_run_under_the_users_settings(url, admin):
    """They run at COMMIT, and find names and the time zone as after a batch."""
    admin.execute(
        "CREATE TABLE noted (zone text); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO noted VALUES (current_setting('TimeZone')); RETURN NULL; END$$; "
        "CREATE CONSTRAINT TRIGGER noting AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION note()"
    )
    put_aside(admin, {"id": 1, "name": "n"})
    replayed(url_with(url, options="-cTimeZone=Asia/Tokyo"))
    assert admin.execute("SELECT zone FROM noted").fetchall() == [("Asia/Tokyo",)]


def test_what_a_trigger_has_set_is_not_left_to_the_next_replay(url, admin):
    """The session is of a pool in `pgonce serve`."""
    admin.execute(
        "CREATE SCHEMA audit CREATE TABLE events (id bigint, name text); "
        "CREATE FUNCTION sets() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN SET search_path = audit, public; RETURN NULL; END$$; "
        "CREATE TRIGGER sets AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION sets()"
    )
    for number in (1, 2):
        put_aside(admin, {"id": number, "name": "n"}, destination("events"))
        replayed(url)
    assert in_table(admin, "id") == [(1,), (2,)]


def kept(group):
    """The letters that stay, what is said of each, and whether its row is refused."""
    words = ("newer", "no row with its key", "deletes=ignore", "22001", "23514", "23505", "23503", "no table")
    return [
        (one.letter.dead_letter_id, next(word for word in words if word in one.why), one.is_refused)
        for one in group.kept
    ]


def refused(code, url, **how):
    """What the replay says."""
    with pytest.raises(PgonceError, match=rf"\[{code}\]") as error:
        replayed(url, **how)
    return str(error.value)


class TestReplayed:
    def test_written_taken_out_and_noted(self, url, admin):
        """The rows are in the table, the letters are gone, and the ledger has who, why, which and how many."""
        ids = [put_aside(admin, {"id": number, "name": f"n{number}"}) for number in (1, 2)]
        (group,) = replayed(url, reason=" mended ")
        assert [letter.dead_letter_id for letter in group.letters] == ids
        assert (in_table(admin), letters(admin)) == ([(1, "n1"), (2, "n2")], [])
        details = {"dead_letters": 2, "ids": ids, "targets": {"public.events": 2}}
        assert noted(admin) == [("replay-dead-letters", None, "mended", details)]
        assert replayed(url) == []
        assert len(noted(admin)) == 1

    def test_only_those_that_are_named(self, url, admin):
        """By id or by code; an id that is not there, or of another query, is refused."""
        a_past(url, query_id=OTHER, query_name="others", sink_name="public.others")
        one = put_aside(admin, {"id": 1, "name": "n1"})
        two = put_aside(admin, {"id": 2, "name": "n2"}, code="23514")
        others = put_aside(admin, {"id": 3, "name": "n3"}, query_id=OTHER, sink_name="public.others")
        assert str(others) in refused("DEAD_LETTER_NOT_FOUND", url, ids=[one, others])
        replayed(url, ids=[one])
        assert in_table(admin) == [(1, "n1")]
        replayed(url, code="23514")
        assert (in_table(admin), letters(admin)) == ([(1, "n1"), (2, "n2")], [others])
        assert two not in letters(admin)

    def test_several_tables_in_one_transaction(self, url, admin):
        """Each row goes into the table that it was for; one that is refused keeps its letter, and no other row out."""
        admin.execute('CREATE SCHEMA app; CREATE TABLE app."Odd Name" (id integer, name text NOT NULL)')
        odd = destination('app."Odd Name"')
        put_aside(admin, {"id": 1, "name": "n1"})
        bad = put_aside(admin, {"id": 2, "name": None}, odd)
        odd_one, other = replayed(url)
        assert [(one.letter.dead_letter_id, "column name" in one.why) for one in odd_one.kept] == [(bad, True)]
        assert (kept(other), in_table(admin), letters(admin)) == ([], [(1, "n1")], [bad])
        mend(admin, bad, "name", "n2")
        replayed(url)
        assert admin.execute('SELECT id, name FROM app."Odd Name"').fetchall() == [(2, "n2")]
        assert letters(admin) == []


class TestRefusedAgain:
    def test_what_a_deferred_constraint_refuses_has_the_same_code(self, url, admin):
        """It is checked before the letters go, and refused in the same words."""
        admin.execute("ALTER TABLE events ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
        _, second = (put_aside(admin, {"id": number, "name": "same"}) for number in (1, 2))
        (group,) = replayed(url)
        assert [(one.letter.dead_letter_id, one.why[:18]) for one in group.kept] == [(second, "[UNIQUE_VIOLATION]")]
        assert (in_table(admin), letters(admin)) == ([(1, "same")], [second])

    def test_where_every_row_is_refused_nothing_is_noted(self, url, admin):
        ids = [put_aside(admin, {"id": number, "name": "too long"}) for number in (1, 2)]
        (group,) = replayed(url)
        assert (group.replayed, in_table(admin), letters(admin), noted(admin)) == ((), [], ids, [])

    def test_no_letter_is_deleted_for_rows_that_a_crash_could_lose(self, url, admin):
        put_aside(admin, {"id": 1, "name": "n1"})
        refused("SYNCHRONOUS_COMMIT_OFF", url_with(url, options="-csynchronous_commit=off"))
        assert len(letters(admin)) == 1


def mend(admin, letter, column, value):
    """What docs/dead-letters.md tells people to do."""
    admin.execute(
        "UPDATE pgonce.dead_letters SET row_data = jsonb_set(row_data, %s, %s) WHERE dead_letter_id = %s",
        [[column], Jsonb(value), letter],
    )


class TestByKey:
    @pytest.fixture(autouse=True)
    def with_seq(self, admin):
        admin.execute("ALTER TABLE events ADD seq bigint")

    def put(self, admin, where, days_ago=0.0, **row):
        """A letter whose row has a key and a sequence."""
        return put_aside(admin, {"id": 1, "name": "old", "seq": 5, **row}, where, SEQ, days_ago=days_ago)

    def test_refused_where_it_could_undo_something(self, url, admin):
        """Without onlyNewer nothing tells what happened to the key since."""
        for where, says in (
            (by_key(), "onlyNewer"),
            (by_key(on_conflict="ignore"), "onConflict=ignore"),
            (by_key("apply", delete_when="name"), "onlyNewer"),
            (destination("public.events", "complete"), "replaces all rows"),
        ):
            letter = self.put(admin, where)
            said = refused("REPLAY_IMPOSSIBLE", url)
            assert says in said
            assert f"Dead letter {letter} " in said
            assert "--discard" in said
            assert letters(admin) == [letter]
            refused("REPLAY_IMPOSSIBLE", url, dry_run=True)
            admin.execute("DELETE FROM pgonce.dead_letters")

    @pytest.mark.parametrize("seq", [9, 5])
    def test_what_is_not_older_stays(self, url, admin, seq):
        """With onlyNewer, a row is written if it is newer than the stored one; if it is not, its letter stays."""
        where = by_key(only_newer=True)
        admin.execute("INSERT INTO events VALUES (1, 'new', %s)", [seq])
        older = self.put(admin, where)
        done = self.put(admin, where, id=2)
        (group,) = replayed(url)
        assert in_table(admin, "id, name, seq") == [(1, "new", seq), (2, "old", 5)]
        assert (group.counts["written"], group.counts["passed_over"]) == (1, 1)
        assert letters(admin) == [older]
        assert [letter.dead_letter_id for letter in group.replayed] == [done]
        assert kept(group) == [(older, "newer", False)]
        assert [details["ids"] for *_, details in noted(admin)] == [[done]]
        (again,) = replayed(url)
        assert (kept(again), again.replayed, len(noted(admin))) == ([(older, "newer", False)], (), 1)

    def test_what_was_deleted_since_stays_away(self, url, admin):
        """A delete that is remembered is newer than the row."""
        self.put(admin, by_key(only_newer=True))
        put_tombstone(admin, "events", "[1]", "9")
        (group,) = replayed(url)
        assert (in_table(admin), group.counts["passed_over"]) == ([], 1)
        assert len(letters(admin)) == 1

    def test_a_replay_is_refused_once_deletes_of_its_time_may_be_forgotten(self, url, admin):
        """Once deletes of that time may be forgotten, the replay is refused; a moment before it is not."""
        late = self.put(admin, by_key(only_newer=True, tombstone_days=2), days_ago=2)
        assert "tombstoneDays" in refused("REPLAY_IMPOSSIBLE", url)
        in_time = self.put(admin, by_key(only_newer=True, tombstone_days=2), days_ago=1.9)
        said = refused("REPLAY_IMPOSSIBLE", url)
        assert f"Dead letter {late} " in said
        replayed(url, ids=[in_time])
        assert letters(admin) == [late]

    def test_deletes_that_are_ignored_keep_their_letters(self, url, admin):
        """They would never delete anything."""
        where = by_key("apply", only_newer=True, delete_when="gone", deletes="ignore")
        gone = put_aside(admin, {"id": 1, "name": None, "seq": 5, "gone": True}, where, CHANGES)
        put_aside(admin, {"id": 1, "name": "n", "seq": 4, "gone": False}, where, CHANGES)
        replayed(url)
        assert (in_table(admin), letters(admin)) == ([(1, "n")], [gone])


class TestBesideOthers:
    def test_a_row_without_a_destination(self, url, admin):
        """A row whose route was unknown says so, with its id; --id leaves it out."""
        row = {"id": 1, "name": "n1", "kind": "refunds"}
        unknown = put_aside(admin, row, None, code="ROUTE_UNKNOWN", column_name="kind")
        known = put_aside(admin, {"id": 2, "name": "n2"})
        said = refused("REPLAY_IMPOSSIBLE", url)
        assert f"Dead letter {unknown} (ROUTE_UNKNOWN, for nowhere; kind is 'refunds')" in said
        replayed(url, ids=[known])
        assert letters(admin) == [unknown]

    def test_two_replays_at_once_write_each_letter_once(self, url, admin):
        """Each letter is replayed once, from every process."""
        for number in range(20):
            put_aside(admin, {"id": number, "name": "n"})
        done = []
        both = [threading.Thread(target=lambda: done.append(replayed(url))) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert sorted(len(groups) for groups in done) == [0, 1]
        assert len(in_table(admin)) == 20

    def test_a_lock_that_somebody_holds(self, url, admin):
        """It waits no longer than it is told, and says for whom."""
        put_aside(admin, {"id": 1, "name": "n1"})
        with psycopg.connect(url, application_name="an editor") as editor:
            editor.execute("UPDATE pgonce.dead_letters SET message = 'x'")
            assert "an editor" in refused("LOCKED", url, settings=CommitSettings(url, lock_timeout=0.5))
        assert len(letters(admin)) == 1

    def test_a_role_that_may_not(self, url, admin, login):
        """A streaming role is told where it stands what it would need, and with that it may."""
        put_aside(admin, {"id": 1, "name": "n1"})
        admin.execute("; ".join(grants(login.user)).encode())
        admin.execute(f"GRANT INSERT, SELECT ON events TO {login.user}".encode())
        assert "`security`" in refused("LEDGER_NOT_PERMITTED", login.url)
        assert (in_table(admin), len(letters(admin))) == ([], 1)
        admin.execute(f"GRANT UPDATE, DELETE ON pgonce.dead_letters TO {login.user}".encode())
        replayed(login.url)
        assert (in_table(admin), letters(admin)) == ([(1, "n1")], [])


def tried_and_done(url):
    """The groups of a replay, which are those of its dry run."""
    tried = [(kept(group), group.replayed) for group in replayed(url, dry_run=True)]
    done = replayed(url)
    assert [(kept(group), group.replayed) for group in done] == tried
    return done


class TestTried:
    """A dry run shows of each letter whether its row will be written."""

    def test_each_letter_has_its_reason(self, url, admin):
        """Several are refused, and the others are written together; a dry run changes nothing, and finds the same."""
        rows = [(1, "n1"), (2, "too long"), (3, "n3"), (4, "bad"), (1, "again"), (5, "n5")]
        ids = [put_aside(admin, {"id": key, "name": name}) for key, name in rows]
        (group,) = replayed(url, dry_run=True)
        assert (in_table(admin), letters(admin), noted(admin)) == ([], ids, [])
        (group,) = tried_and_done(url)
        assert kept(group) == [(ids[1], "22001", True), (ids[3], "23514", True), (ids[4], "23505", True)]
        codes = ("VALUE_NOT_STORABLE", "CHECK_VIOLATION", "UNIQUE_VIOLATION")
        for one, code, says in zip(group.kept, codes, ("id = 2", "id = 4", ")=(1)"), strict=True):
            assert (one.why.startswith(f"[{code}] "), says in one.why) == (True, True), one.why
        assert [letter.dead_letter_id for letter in group.replayed] == [ids[0], ids[2], ids[5]]
        assert in_table(admin) == [(1, "n1"), (3, "n3"), (5, "n5")]
        assert letters(admin) == [ids[1], ids[3], ids[4]]
        assert noted(admin)[-1][3]["ids"] == [ids[0], ids[2], ids[5]]

    def test_what_changes_nothing_and_what_is_refused(self, url, admin):
        """Both are told apart."""
        admin.execute("ALTER TABLE events ADD seq bigint; INSERT INTO events VALUES (1, 'new', 9)")
        where = by_key(only_newer=True)
        rows = [(1, "old", 1), (2, "n2", 1), (3, "too long", 1)]
        ids = [put_aside(admin, dict(zip(("id", "name", "seq"), row, strict=True)), where, SEQ) for row in rows]
        (group,) = tried_and_done(url)
        assert sorted(kept(group)) == [(ids[0], "newer", False), (ids[2], "22001", True)]
        assert (in_table(admin), letters(admin)) == ([(1, "new"), (2, "n2")], [ids[0], ids[2]])

    @pytest.mark.parametrize("fits", [False, True])
    def test_what_only_commit_would_refuse(self, url, admin, fits):
        """Deferred constraints are checked once all rows are there, and for each letter if one breaks them."""
        admin.execute("CREATE TABLE lines (id bigint REFERENCES events DEFERRABLE INITIALLY DEFERRED, name text)")
        lines = destination("public.lines")
        orders = destination("public.zz_orders")
        admin.execute("ALTER TABLE events RENAME TO zz_orders")
        line = put_aside(admin, {"id": 1, "name": "child"}, lines)
        if fits:
            put_aside(admin, {"id": 1, "name": "n1"}, orders)
        groups = tried_and_done(url)
        assert [kept(group) for group in groups] == ([[], []] if fits else [[(line, "23503", True)]])
        assert admin.execute("SELECT count(*) FROM lines").fetchone() == (int(fits),)

    def test_what_refers_to_each_other_beside_a_row_that_is_refused(self, url, admin):
        """Deferred constraints of two tables are checked once both have their rows, also if another row is refused."""
        admin.execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, name text);"
            "ALTER TABLE events ADD FOREIGN KEY (id) REFERENCES notes DEFERRABLE INITIALLY DEFERRED;"
            "ALTER TABLE notes ADD FOREIGN KEY (id) REFERENCES events DEFERRABLE INITIALLY DEFERRED"
        )
        put_aside(admin, {"id": 1, "name": "n1"})
        put_aside(admin, {"id": 1, "name": "n1"}, destination("public.notes"))
        bad = put_aside(admin, {"id": 2, "name": "too long"})
        groups = tried_and_done(url)
        assert [one for group in groups for one in kept(group)] == [(bad, "22001", True)]
        assert (in_table(admin), letters(admin)) == ([(1, "n1")], [bad])

    def test_a_missing_table_is_a_reason_too(self, url, admin):
        """The letters of another one are tried all the same."""
        gone = put_aside(admin, {"id": 1, "name": "n1"}, destination("public.gone"))
        put_aside(admin, {"id": 1, "name": "n1"})
        one, other = tried_and_done(url)
        assert (kept(one), kept(other)) == ([], [(gone, "no table", True)])
        assert (in_table(admin), letters(admin)) == ([(1, "n1")], [gone])

    def test_it_locks_nothing_of_the_ledger(self, url, admin, login):
        """A role that may write the rows and read the letters may try."""
        one = put_aside(admin, {"id": 1, "name": "too long"})
        admin.execute(f"GRANT SELECT ON pgonce.dead_letters, pgonce.writers TO {login.user}")
        admin.execute("; ".join(grants(login.user)).encode())
        (group,) = replayed(login.url, dry_run=True)
        assert "TARGET_NOT_PERMITTED" in group.kept[0].why
        admin.execute(f"GRANT INSERT, SELECT ON events TO {login.user}")
        (group,) = replayed(login.url, dry_run=True)
        assert kept(group) == [(one, "22001", True)]
