"""A row that was put aside may be of an earlier batch than a change of its key that has the same orderBy."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.bad_rows import before_insert
from support.dead_letters import STRUCT, a_past, by_key, put_aside, replayed
from support.tombstones import put_tombstone

BY_COLUMN = by_key("apply", only_newer=True, delete_when="gone")
OF_DELTA = by_key("apply", only_newer=True, change_feed="delta")
VERSIONS = by_key("apply", only_newer=True, change_feed="delta", order_by="_commit_version")


@pytest.fixture
def admin(url, admin):
    """A connection that may do anything; a query has published a batch, and there is its table."""
    a_past(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, _commit_version bigint)")
    return admin


def put(admin, where, *, gone=False, key=1, seq=5, name="old"):
    """A letter with this key and order."""
    order, deleted = t.StructField(where.order_by, t.LongType()), t.StructField(where.changes.deleted, t.BooleanType())
    row = {"id": key, "name": name, order.name: seq, deleted.name: gone}
    return put_aside(admin, row, where, t.StructType([*STRUCT.fields, order, deleted]))


def left(admin):
    """The names in the table, and how many letters there are."""
    (letters,) = admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone()
    return [name for (name,) in admin.execute("SELECT name FROM events").fetchall()], letters


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("where", [BY_COLUMN, VERSIONS])
def test_the_stored_row_stays(url, admin, where, gone):
    """A delete does not remove it either, and that is no fault of the table's BEFORE trigger."""
    before_insert(admin, "")
    admin.execute("INSERT INTO events VALUES (1, 'new', 5, 5)")
    put(admin, where, gone=gone)
    replayed(url)
    assert left(admin) == (["new"], 1)


@pytest.mark.parametrize("seq", [5, 9])
def test_of_two_letters_the_later_one_counts(url, admin, seq):
    """Also if all letters are cut into halves, because another one, of the same order or a later one, has no effect."""
    admin.execute("INSERT INTO events VALUES (2, 'new', 9, 9)")
    put(admin, BY_COLUMN, name="first")
    put(admin, BY_COLUMN, name="second")
    put(admin, BY_COLUMN, key=2, seq=seq)
    replayed(url)
    names, letters = left(admin)
    assert (sorted(names), letters > 0) == (["new", "second"], True)


@pytest.mark.parametrize(
    ("where", "names"), [(BY_COLUMN, []), (OF_DELTA, []), (VERSIONS, ["old"])], ids=["column", "delta", "versions"]
)
def test_what_was_deleted_is_not_brought_back(url, admin, where, names):
    """In one version of a table, the insert is the later one: the delete and the row are of one batch."""
    put(admin, where, gone=False)
    put_tombstone(admin, "events", "[1]", "5", where.order_by)
    replayed(url)
    assert left(admin) == (names, 1 - len(names))
