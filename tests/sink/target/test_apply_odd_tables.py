"""
Tables, types and settings that make changes harder to apply.

Covers: sink.target.apply, sink.target.change_table.
"""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger


@pytest.fixture(autouse=True)
def ledger(url):
    """Each test has a ledger, which holds the tombstones."""
    ensure_ledger(url)


def stored(admin):
    """The table's rows."""
    return admin.execute("SELECT * FROM events ORDER BY 1").fetchall()


def test_the_column_that_says_what_to_do_may_be_the_one_that_is_set(url, admin):
    """The frame brings a column ``gone``, which says which rows delete, and the table has it for soft deletes."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, gone bool)")
    apply(url, (1, "a", 1, WRITE), deletes="soft:gone")
    apply(url, (1, None, 2, DELETE), (2, "b", 1, WRITE), (2, None, 2, DELETE), deletes="soft:gone")
    assert stored(admin) == [(1, "a", 1, True), (2, "b", 1, True)]
    apply(url, (1, "c", 3, WRITE), deletes="soft:gone")
    assert stored(admin)[0] == (1, "c", 3, False)


def test_a_key_that_comes_back_is_not_deleted_whatever_columns_may_change(url, admin):
    """The column of soft deletes is set back though updateColumns does not name it."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, gone_at timestamptz(3))")
    how = {"deletes": "soft:gone_at", "update_columns": ["name"]}
    apply(url, (1, "a", 1, WRITE), **how)
    apply(url, (1, None, 2, DELETE), **how)
    assert stored(admin)[0][3] is not None
    apply(url, (1, "b", 3, WRITE), **how)
    assert stored(admin) == [(1, "b", 1, None)]


def test_an_order_that_the_column_cannot_hold_is_refused_in_a_delete_too(url, admin):
    """Otherwise it would be remembered, and every later batch would fail by it."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq int)")
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        apply(url, (1, None, 2**40, DELETE), only_newer=True)


def test_a_delete_that_a_trigger_leaves_out_is_refused(url, admin):
    """Also one that has the order of the stored row."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint); "
        "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        "CREATE TRIGGER kept BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION kept()"
    )
    apply(url, (1, "a", 5, WRITE), only_newer=True)
    assert apply(url, (1, None, 4, DELETE), only_newer=True) == {"passed_over": 1}
    for order in (5, 6):
        with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
            apply(url, (1, None, order, DELETE), only_newer=True)


def test_texts_are_ordered_by_the_collation_of_their_column(url, admin):
    """Also where a text may stand for a value that was not read: the order is always read."""
    collations = "SELECT FROM pg_collation WHERE collname = 'en-x-icu'"
    if not admin.execute(collations).fetchone():
        pytest.skip("the server has no ICU")
    admin.execute('CREATE TABLE events (id bigint PRIMARY KEY, name text, seq text COLLATE "en-x-icu")')
    struct = changes(id=t.LongType(), name=t.StringType(), seq=t.StringType())
    apply(url, (1, "first", "a", WRITE), (1, "last", "B", WRITE), struct=struct, keep_where="?")
    assert stored(admin) == [(1, "last", "B")]
    apply(url, (1, None, "C", DELETE), struct=struct, only_newer=True)
    assert apply(url, (1, "late", "b", WRITE), struct=struct, only_newer=True) == {"passed_over": 1}
