"""
What a batch of changes leaves in the table, and what becomes of each of its rows.

Covers: sink.writing.by_key.change_table, sink.writing.by_key.write_changes, sink.writing.by_key.keys,
sink.writing.by_key.tombstones, sink.writing.by_key.trigger_outcome, sink.writing.by_key.write_changes.
"""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, PLAIN, WRITE, apply
from support.sent_rows import publish

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"


def stored(admin):
    """The table's rows."""
    return admin.execute("SELECT * FROM events ORDER BY id").fetchall()


@pytest.fixture
def events(admin):
    """A table with a primary key."""
    admin.execute(TABLE.encode())


@pytest.fixture(autouse=True)
def ledger(url):
    """Each test has a ledger, which holds the tombstones."""
    ensure_ledger(url)


def test_each_row_does_what_it_says(url, admin, events):
    """Rows are inserted, updated and deleted in one batch, whichever way they came."""
    assert apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), transport="staged") == {"written": 2}
    counts = apply(url, (1, "A", 2, WRITE), (2, None, 2, DELETE), (3, "c", 1, WRITE), transport="both")
    assert counts == {"written": 2, "deleted": 1}
    assert stored(admin) == [(1, "A", 2), (3, "c", 1)]


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
    with pytest.raises(TargetError, match=r"DOUBLED_KEYS.*For example, 2 rows have id = 1\."):
        apply(url, (2, "b", 1, WRITE), (1, "a", 1, WRITE), (1, None, 2, DELETE), order_by=None)
    assert apply(url, (1, "a", 1, WRITE), (2, None, 2, DELETE), order_by=None) == {"written": 1, "not_found": 1}


def test_only_the_newer_wins(url, admin, events):
    """A stored row gives way to one that is not older, and the others are counted."""
    admin.execute("INSERT INTO events VALUES (9, 'without order', NULL)")
    newer = {"only_newer": True, "transport": "both"}
    assert apply(url, (1, "a", 5, WRITE), (2, "b", 5, WRITE), (9, "c", 0, WRITE), **newer) == {"written": 3}
    counts = apply(url, (1, "older", 4, WRITE), (2, "equal", 5, WRITE), (9, None, 1, DELETE), **newer)
    assert counts == {"written": 1, "passed_over": 1, "deleted": 1}
    assert apply(url, (1, None, 4, DELETE), (2, None, 5, DELETE), **newer) == {"passed_over": 1, "deleted": 1}
    assert stored(admin) == [(1, "a", 5)]


def test_a_delete_is_remembered(url, admin, events):
    """An older change that comes late does not bring the row back; a newer one does, and so does an equal one."""
    apply(url, (1, "a", 1, WRITE), only_newer=True)
    assert apply(url, (1, None, 5, DELETE), (2, None, 5, DELETE), only_newer=True) == {"deleted": 1, "not_found": 1}
    late = apply(url, (1, "late", 4, WRITE), (2, "late", 4, WRITE), (1, None, 3, DELETE), only_newer=True)
    assert late == {"passed_over": 3}
    assert stored(admin) == []
    assert apply(url, (1, "new", 5, WRITE), (2, "new", 6, WRITE), only_newer=True) == {"written": 2}
    assert stored(admin) == [(1, "new", 5), (2, "new", 6)]


def test_an_upsert_heeds_the_deletes_of_others(url, admin, events):
    """Tombstones belong to the table: a query that only upserts must not bring rows back either."""
    apply(url, (1, None, 5, DELETE), only_newer=True)
    struct = t.StructType(PLAIN.fields[:3])
    counts = publish(url, "inline", struct, [(1, "late", 4)], mode="upsert", order_by="seq", only_newer=True).counts
    assert (counts["passed_over"], stored(admin)) == (1, [])


def test_a_null_order_is_refused_where_only_the_newer_wins(url, events):
    """Nothing says whether such a row is newer."""
    with pytest.raises(TargetError, match="NULL_ORDER"):
        apply(url, (1, "a", None, WRITE), only_newer=True)


def test_deletes_may_be_ignored(url, admin, events):
    """A row stays as the last write left it, also where the delete comes later in the same batch."""
    counts = apply(url, (1, "a", 1, WRITE), (1, None, 2, DELETE), deletes="ignore")
    assert (counts, stored(admin)) == ({"written": 1, "ignored": 1}, [(1, "a", 1)])


@pytest.mark.parametrize(("column", "dead", "alive"), [("boolean", True, False), ("timestamptz", "a time", None)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_soft_delete_marks_the_row(at_once, column, dead, alive, url, admin):
    """It has the values of the last write, whether that came before or in the same batch; a later write revives it."""
    admin.execute(
        f"CREATE TABLE events (id bigint PRIMARY KEY, name text NOT NULL, seq bigint, gone_at {column})".encode()
    )
    changes = [(1, "a", 1, WRITE), (1, "b", 2, WRITE), (1, None, 3, DELETE), (2, None, 1, DELETE)]
    for batch in [changes] if at_once else [[change] for change in changes]:
        apply(url, *batch, deletes="soft:gone_at")
    ((*row, mark),) = stored(admin)
    assert (row, dead if mark else mark) == ([1, "b", 2], dead)
    apply(url, (1, "c", 4, WRITE), deletes="soft:gone_at")
    assert stored(admin) == [(1, "c", 4, alive)]


def test_a_soft_delete_is_not_undone_by_an_older_change(url, admin):
    """It sets the order of the row; a key that was never seen leaves a tombstone."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text NOT NULL, seq bigint, gone bool)")
    how = {"deletes": "soft:gone_too", "only_newer": True}
    admin.execute("ALTER TABLE events RENAME gone TO gone_too")
    apply(url, (1, "a", 1, WRITE), **how)
    assert apply(url, (1, None, 5, DELETE), (2, None, 5, DELETE), **how) == {"deleted": 1, "not_found": 1}
    assert apply(url, (1, "late", 4, WRITE), (2, "late", 4, WRITE), **how) == {"passed_over": 2}
    assert stored(admin) == [(1, "a", 5, True)]


def test_only_some_columns_may_change(url, admin, events):
    """New rows get all columns, stored ones only those that are named, and the order where it counts."""
    how = {"update_columns": ["name"], "only_newer": True}
    apply(url, (1, "a", 1, WRITE), **how)
    apply(url, (1, "b", 2, WRITE), **how)
    assert stored(admin) == [(1, "b", 2)]
    apply(url, (1, "c", 3, WRITE), update_columns=["seq"])
    assert stored(admin) == [(1, "b", 3)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_value_that_was_not_read_stays(at_once, url, admin, events):
    """The stored value stays, or that of an earlier change in the batch, also if it was null."""
    changes = [
        (1, "long text", 1, WRITE), (1, "?", 2, WRITE),
        (2, "long text", 1, WRITE), (2, None, 2, DELETE), (2, "other", 3, WRITE), (2, "?", 4, WRITE),
        (4, "a", 1, WRITE), (4, None, 2, WRITE), (4, "?", 3, WRITE),
    ]  # fmt: skip
    for batch in [changes] if at_once else [[change] for change in changes]:
        apply(url, *batch, keep_where="?")
    assert stored(admin) == [(1, "long text", 2), (2, "other", 4), (4, None, 3)]


def test_what_is_older_than_the_stored_row_says_nothing_of_a_newer_one(url, admin, events):
    """A change that comes again does not fill in what a newer one could not read, and a delete takes nothing away."""
    how = {"only_newer": True, "keep_where": "?"}
    apply(url, (1, "stored", 5, WRITE), (2, "stored", 5, WRITE), (3, None, 5, DELETE), **how)
    again = [(1, "older", 4, WRITE), (2, None, 4, DELETE), (3, "older", 4, WRITE)]
    rows = [(1, "?", 6, WRITE), (2, "?", 6, WRITE), (3, "?", 6, WRITE)]
    counts = apply(url, *again, *rows, dead_letters=True, **how)
    assert counts == {"written": 2, "passed_over": 3, "dead_letters": 1}
    assert stored(admin) == [(1, "stored", 6), (2, "stored", 6)]


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


def test_a_partitioned_table_takes_changes(url, admin):
    """Deletes find rows in any partition."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint) PARTITION BY RANGE (id); "
        "CREATE TABLE few PARTITION OF events FOR VALUES FROM (0) TO (10); "
        "CREATE TABLE many PARTITION OF events FOR VALUES FROM (10) TO (100)"
    )
    apply(url, (1, "a", 1, WRITE), (50, "b", 1, WRITE), only_newer=True)
    counts = apply(url, (1, None, 2, DELETE), (50, None, 2, DELETE), (51, "c", 1, WRITE), only_newer=True)
    assert (counts, stored(admin)) == ({"deleted": 2, "written": 1}, [(51, "c", 1)])


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


def test_only_newer_needs_read_committed(url, events):
    """An older snapshot would not see a delete that was committed while it waited."""
    isolated = psycopg.conninfo.make_conninfo(url, options="-cdefault_transaction_isolation=repeatable\\ read")
    with pytest.raises(TargetError, match="SNAPSHOT_TOO_OLD"):
        apply(isolated, (1, "a", 1, WRITE), only_newer=True)


def test_old_tombstones_go(url, admin, events):
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
