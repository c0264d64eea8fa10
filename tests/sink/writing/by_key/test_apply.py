"""
What a batch of changes leaves in the table, and what becomes of each of its rows.

Covers: sink.writing.by_key.change_table, sink.writing.by_key.write_changes, sink.writing.by_key.keys,
sink.writing.by_key.statements, sink.writing.by_key.tombstones, sink.writing.by_key.trigger_outcome.
"""

from __future__ import annotations

import itertools
import random
import string

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, PLAIN, WRITE, apply, changes, stored
from support.sent_rows import publish

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"


@pytest.fixture
def events(admin):
    """A table with a primary key."""
    admin.execute(TABLE.encode())


def test_of_several_changes_of_a_key_the_last_counts(url, admin, events):
    """A key that was written and then deleted is gone; one that was deleted and then written is there."""
    apply(url, (1, "old", 0, WRITE), (2, "old", 0, WRITE))
    counts = apply(
        url, (1, "a", 1, WRITE), (1, None, 2, DELETE), (2, "b", 4, WRITE), (2, None, 3, DELETE), (3, None, 1, DELETE)
    )
    assert counts == {"written": 1, "deleted": 2, "superseded": 1, "not_found": 1}
    assert stored(admin) == [(2, "b", 4)]


def test_without_an_order_a_key_may_come_only_once(url, admin, events):
    """Nothing says which of two changes is the last."""
    with pytest.raises(TargetError, match=r"DOUBLED_KEYS.* 2 rows have id = 1\."):
        apply(url, (2, "b", 1, WRITE), (1, "a", 1, WRITE), (1, None, 2, DELETE), order_by=None)
    assert apply(url, (1, "a", 1, WRITE), (2, None, 2, DELETE), order_by=None) == {"written": 1, "not_found": 1}


@pytest.mark.parametrize("deletes", ["hard", "soft:gone_at"])
@pytest.mark.parametrize("rows", list(itertools.permutations([(1, "a", 1, WRITE), (1, None, 2, DELETE)])))
def test_without_an_order_it_does_not_matter_which_row_came_first(rows, deletes, url, admin, events):
    """Also where an earlier change of a key may have a value for a later one: tasks bring rows in any order."""
    admin.execute("ALTER TABLE events ADD COLUMN gone_at timestamptz")
    with pytest.raises(TargetError, match="DOUBLED_KEYS"):
        apply(url, *rows, order_by=None, keep_where="?", deletes=deletes)


def test_an_upsert_heeds_the_deletes_of_others(url, admin, events):
    """Tombstones belong to the table: a query that only upserts must not bring rows back either."""
    apply(url, (1, None, 5, DELETE), only_newer=True)
    struct = t.StructType(PLAIN.fields[:3])
    counts = publish(url, "inline", struct, [(1, "late", 4)], mode="upsert", order_by="seq", only_newer=True).counts
    assert (counts["passed_over"], stored(admin)) == (1, [])


@pytest.mark.parametrize("mode", ["upsert", "apply"])
def test_a_stored_row_that_is_newer_stays(mode, url, admin, events):
    """In whatever batch the older one comes."""
    struct = t.StructType(PLAIN.fields[: 3 if mode == "upsert" else 4])
    how = {"order_by": "seq", "only_newer": True, **({"delete_when": "gone"} if mode == "apply" else {})}
    for row in [(1, "newer", 5, WRITE), (1, "older", 4, WRITE)]:
        publish(url, "inline", struct, [row[: len(struct)]], mode=mode, **how)
    assert stored(admin) == [(1, "newer", 5)]


def test_deletes_may_be_ignored(url, admin, events):
    """A row stays as the last write left it, also where the delete comes later in the same batch."""
    counts = apply(url, (1, "a", 1, WRITE), (1, None, 2, DELETE), deletes="ignore")
    assert (counts, stored(admin)) == ({"written": 1, "ignored": 1}, [(1, "a", 1)])


@pytest.mark.parametrize("how", [{}, {"deletes": "soft:marked"}, {"keep_where": "?"}])
def test_a_version_that_deletes_and_inserts_has_replaced_the_row(how, url, admin):
    """The change feeds of Spark and Delta may tell an update so, in any order."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, marked bool)")
    struct = t.StructType([*PLAIN.fields[:3], t.StructField("pgonce_deleted", t.BooleanType())])
    rows = [(1, "b", 1, WRITE), (1, None, 1, DELETE), (2, None, 1, DELETE), (2, "b", 1, WRITE)]
    publish(url, "inline", struct, rows, mode="apply", change_feed="spark", order_by="seq", **how)
    assert [row[:3] for row in stored(admin)] == [(1, "b", 1), (2, "b", 1)]


def test_a_column_that_is_only_for_the_order_is_not_written(url, admin):
    """The table need not have it, as it need not have the column that says which rows delete."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    apply(url, (1, "b", 2, WRITE), (1, "a", 1, WRITE), (2, "c", 1, WRITE), (2, None, 2, DELETE))
    assert stored(admin) == [(1, "b")]


def test_a_column_of_the_table_that_says_what_to_do_is_written(url, admin):
    """If the table has it, it is a column like any other."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, gone bool)")
    apply(url, (1, "a", 1, WRITE))
    assert stored(admin) == [(1, "a", 1, False)]


def test_keys_are_equal_as_the_table_has_them(url, admin):
    """A delete finds the row by the table's own idea of equal keys: a char(n) without its spaces."""
    admin.execute("CREATE TABLE events (id bigint, name char(5) PRIMARY KEY, seq bigint)")
    apply(url, (1, "a", 1, WRITE), (2, "b  ", 1, WRITE))
    assert apply(url, (1, "a  ", 2, DELETE), (2, "b", 2, DELETE)) == {"deleted": 2}


def test_citext_keys_are_applied(url_with):
    """An extension's own equality finds the row."""
    url = url_with("citext")
    ensure_ledger(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE events (id bigint, name ext.citext PRIMARY KEY, seq bigint)")
    apply(url, (1, "a", 1, WRITE))
    assert apply(url, (1, "A", 2, DELETE)) == {"deleted": 1}
    with pytest.raises(TargetError, match="KEY_UNTRACEABLE"):
        apply(url, (1, "A", 2, DELETE), only_newer=True)


def test_a_delete_whose_key_is_too_long_to_be_remembered_is_refused(url, admin):
    """Postgres would say only that a row of some index is too large."""
    admin.execute("CREATE TABLE events (id bigint, name text PRIMARY KEY, seq bigint)")
    long = "".join(random.Random(1).choices(string.ascii_letters, k=4000))
    assert apply(url, (1, long, 1, DELETE)) == {"not_found": 1}
    with pytest.raises(TargetError, match="KEY_UNTRACEABLE"):
        apply(url, (1, long, 1, DELETE), only_newer=True)


def test_a_key_without_overlaps_is_refused(url, admin):
    """It is called unique, but a row of the same key may have a period within that of the change."""
    if admin.info.server_version < 180000:
        return
    admin.execute(
        "CREATE TABLE events (id int4range, name text, seq bigint, at daterange, PRIMARY KEY (id, at WITHOUT OVERLAPS))"
    )
    struct = changes(id=t.StringType(), name=t.StringType(), seq=t.LongType(), at=t.StringType())
    for keys in ((), ["id", "at"]):
        with pytest.raises(TargetError, match=r"NO_UNIQUE_KEY.*WITHOUT OVERLAPS"):
            apply(url, ("[1,2)", "a", 1, "[2024-01-01,2024-02-01)", DELETE), struct=struct, keys=keys)


def test_a_key_without_a_unique_index_is_refused(url, admin):
    """A delete would otherwise remove any number of rows."""
    admin.execute("CREATE TABLE events (id bigint, name text, seq bigint); CREATE INDEX ON events (id)")
    with pytest.raises(TargetError, match="NO_UNIQUE_KEY"):
        apply(url, (1, "a", 1, DELETE), keys=["id"])
    with pytest.raises(TargetError, match="NO_KEYS"):
        apply(url, (1, "a", 1, DELETE))


def test_a_trigger_that_changes_keys_is_refused(url, admin, events):
    """What the table then holds is not what the batch says; one that leaves keys alone may do what it likes."""
    admin.execute(
        "CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.name := upper(NEW.name); IF NEW.id = 7 THEN NEW.id := 8; END IF; RETURN NEW; END $$; "
        "CREATE TRIGGER other BEFORE INSERT OR UPDATE ON events FOR EACH ROW EXECUTE FUNCTION other()"
    )
    apply(url, (1, "a", 1, WRITE))
    assert stored(admin) == [(1, "A", 1)]
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (7, "a", 1, WRITE))


def test_tombstones_are_there_for_as_many_days_as_the_option_says(url, admin, events):
    """They are there for as many days as the user said."""
    apply(url, (1, None, 5, DELETE), only_newer=True, tombstone_days=3)
    days = (
        "SELECT extract(day FROM t.expires_at - deleted_at)::int, target_name, s.expires_at >= t.expires_at "
        "FROM pgonce.tombstones AS t JOIN pgonce.tombstone_sets AS s USING (tombstone_set_id)"
    )
    assert admin.execute(days).fetchall() == [(3, "public.events", True)]
    admin.execute("UPDATE pgonce.tombstones SET expires_at = now() - interval '1 day'")
    apply(url, (2, None, 5, DELETE), only_newer=True)
    assert admin.execute("SELECT key FROM pgonce.tombstones").fetchall() == [([2],)]


TEXT, LONG = t.StringType(), t.LongType()
SNAPSHOT = changes("pgonce_deleted", id=LONG, name=TEXT, seq=LONG, pgonce_operation=TEXT)
FEED = {"struct": SNAPSHOT, "delete_when": None, "change_feed": "debezium", "only_newer": True}


@pytest.mark.parametrize("keep", [None, "?"])
@pytest.mark.parametrize("newer", ["with its order", "without one", "with a trigger"])
def test_a_row_of_a_snapshot_without_an_order_is_written_only_where_nothing_is(keep, newer, url, admin, events):
    """Debezium's incremental snapshots have no lsn: a stored row is newer, and so is a remembered delete."""
    if newer == "with a trigger":
        admin.execute(
            "CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
            "CREATE TRIGGER same BEFORE INSERT OR UPDATE ON events FOR EACH ROW EXECUTE FUNCTION same()"
        )
    how = {**FEED, "keep_where": keep}
    apply(url, (1, "live", 5, "c", False), (2, None, 6, "d", True), **how)
    if newer == "without one":
        admin.execute("UPDATE events SET seq = NULL")
    rows = [(1, "stale", None, "r", False), (2, "gone", None, "r", False), (3, "new", None, "r", False)]
    assert apply(url, *rows, **how) == {"written": 1, "passed_over": 2}
    found = admin.execute("SELECT id, name FROM events ORDER BY id").fetchall()
    assert found == [(1, "live"), (3, "new")]
    # What the log has of the row counts, before the snapshot and after it, in one batch as in another.
    rows = [(3, "later", 7, "u", False), (4, "logged", 8, "c", False), (4, "read", None, "r", False)]
    assert apply(url, *rows, **how) == {"written": 2, "superseded": 1}
    found = admin.execute("SELECT id, name FROM events WHERE id > 2 ORDER BY id").fetchall()
    assert found == [(3, "later"), (4, "logged")]


@pytest.mark.parametrize("letters", [False, True])
def test_every_other_row_without_an_order_is_refused(letters, url, admin, events):
    """Nothing says that it is old."""
    rows = [(1, "a", None, "u", False), (2, "b", None, "r", False)]
    if letters:
        assert apply(url, *rows, dead_letters=True, **FEED) == {"written": 1, "dead_letters": 1}
        assert admin.execute("SELECT code FROM pgonce.dead_letters").fetchall() == [("NULL_ORDER",)]
    else:
        with pytest.raises(TargetError, match="NULL_ORDER"):
            apply(url, *rows, **FEED)
