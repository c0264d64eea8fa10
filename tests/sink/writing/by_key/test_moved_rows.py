"""
A change that moves a row to another key leaves no row behind, and is one change: it is done, or put aside, as a whole.

Covers: sink.writing.by_key.moved_rows.
"""

from __future__ import annotations

import json

import pytest
from pyspark.sql import types as t
from support.applied_changes import apply, changes
from support.dead_letters import a_past, replayed

from pgonce.offsets_store.errors import TargetError

STRUCT = changes(
    "pgonce_deleted",
    id=t.LongType(), region=t.StringType(), name=t.StringType(), seq=t.LongType(), pgonce_before=t.StringType(),
)  # fmt: skip
KEYS = ["id", "region"]


@pytest.fixture(autouse=True)
def places(admin):
    """A table that is partitioned by a column of its key."""
    admin.execute(
        "CREATE TABLE places (id bigint, region text, name text, seq bigint, gone_at timestamptz, "
        "PRIMARY KEY (id, region)) PARTITION BY LIST (region); "
        "CREATE TABLE places_eu PARTITION OF places FOR VALUES IN ('eu'); "
        "CREATE TABLE places_us PARTITION OF places FOR VALUES IN ('us', 'mx')"
    )


def write(number, region, name, seq):
    """A change that leaves the key as it is."""
    return (number, region, name, seq, None, False)


def delete(number, region, seq):
    """A delete."""
    return (number, region, None, seq, None, True)


def move(number, old_region, region, name, seq, record_key=("id",)):
    """An update that changes the region; the frame has the key of the record."""
    before = {"row": {"id": number, "region": old_region}, "key": dict.fromkeys(record_key or (), number)}
    return (number, region, name, seq, json.dumps(before), False)


def put(url, *rows, **options):
    """Write these rows."""
    how = {"table": "places", "struct": STRUCT, "delete_when": None, "change_feed": "debezium", "keys": KEYS, **options}
    return apply(url, *rows, **how)


def stored(admin, columns="id, region, name, seq"):
    """The rows of the table."""
    return admin.execute(f"SELECT {columns} FROM places ORDER BY 1, 2".encode()).fetchall()


@pytest.mark.parametrize("only_newer", [False, True])
def test_the_old_row_goes(only_newer, url, admin):
    """It is counted as deleted, and the moved row as written."""
    put(url, write(1, "eu", "a", 1), write(2, "eu", "b", 2), only_newer=only_newer)
    counts = put(url, move(1, "eu", "us", "a2", 3), write(2, "eu", "b2", 4), only_newer=only_newer)
    assert counts == {"written": 2, "deleted": 1, "moved": 1}
    assert stored(admin) == [(1, "us", "a2", 3), (2, "eu", "b2", 4)]


@pytest.mark.parametrize("transport", ["inline", "staged"])
@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([move(1, "eu", "us", "b", 2), move(1, "us", "mx", "c", 3)], [(1, "mx", "c", 3)]),
        ([move(1, "eu", "us", "b", 2), move(1, "us", "eu", "c", 3)], [(1, "eu", "c", 3)]),
        ([move(1, "eu", "us", "b", 2), delete(1, "us", 3), write(1, "eu", "c", 4)], [(1, "eu", "c", 4)]),
        ([write(1, "us", "x", 2), delete(1, "us", 3), move(1, "eu", "us", "b", 4)], [(1, "us", "b", 4)]),
        ([move(1, "us", "mx", "c", 3), move(1, "eu", "us", "b", 2)], [(1, "mx", "c", 3)]),
    ],
    ids=["a chain", "there and back", "the old key is used again", "the new key was used before", "in no order"],
)
def test_moves_among_other_changes_of_their_keys(rows, left, transport, url, admin):
    """What is left is what the changes would leave one by one."""
    put(url, write(1, "eu", "a", 1))
    put(url, *rows, transport=transport)
    assert stored(admin) == left


def test_rows_that_exchange_their_keys(url, admin):
    """Each of them goes by a third key, because the source has a unique key too."""
    put(url, write(1, "eu", "a", 1), write(1, "us", "b", 2))
    put(url, move(1, "eu", "mx", "a", 3), move(1, "us", "eu", "b", 4), move(1, "mx", "us", "a", 5))
    assert stored(admin) == [(1, "eu", "b", 4), (1, "us", "a", 5)]


def test_the_old_key_of_a_row_that_moved_is_remembered(url, admin):
    """An older change of it comes later, and does not bring the row back."""
    put(url, move(1, "eu", "us", "b", 2), only_newer=True)
    assert put(url, write(1, "eu", "a", 1), only_newer=True) == {"passed_over": 1}
    assert stored(admin) == [(1, "us", "b", 2)]


@pytest.mark.parametrize("only_newer", [False, True])
@pytest.mark.parametrize("record_key", [None, ("uuid",), ("id", "uuid")])
def test_a_move_is_refused_where_the_old_key_may_be_another_rows(record_key, only_newer, url, admin):
    """The record's key shows that the source's key is among the keys, or does not. Two rows may exchange their keys."""
    put(url, write(1, "eu", "a", 1), only_newer=only_newer)
    with pytest.raises(TargetError, match=r"\[KEY_CHANGED\]"):
        put(url, move(1, "eu", "us", "b", 2, record_key), only_newer=only_newer)
    assert stored(admin) == [(1, "eu", "a", 1)]


@pytest.mark.parametrize(
    "before", [{"row": {"id": 1}}, {"row": {"id": 1, "region": None}}, {"row": None, "key": {"id": 1}}]
)
@pytest.mark.parametrize("only_newer", [False, True])
def test_an_update_that_hides_its_old_key_is_refused(before, only_newer, url, admin):
    """The row before it lacks a key, or is not there though the record's key lacks one."""
    row = (1, "us", "b", 2, json.dumps(before), False)
    with pytest.raises(TargetError, match=r"\[KEY_CHANGED\]"):
        put(url, row, only_newer=only_newer)
    # The source's key is the table's: each change of it comes as a delete and an insert.
    put(url, (1, "us", "b", 2, json.dumps({"row": None, "key": {"id": 1, "region": "us"}}), False))
    assert stored(admin) == [(1, "us", "b", 2)]


@pytest.mark.parametrize("only_newer", [False, True])
def test_a_refused_move_leaves_the_old_row(only_newer, url, admin):
    """It has one letter, whose replay moves the row."""
    admin.execute("ALTER TABLE places ADD CHECK (name <> 'bad')")
    put(url, write(1, "eu", "a", 1), only_newer=only_newer)
    how = {"dead_letters": True, "only_newer": only_newer}
    assert put(url, move(1, "eu", "us", "bad", 2), write(2, "eu", "b", 3), **how) == {"written": 1, "dead_letters": 1}
    assert stored(admin) == [(1, "eu", "a", 1), (2, "eu", "b", 3)]
    admin.execute('UPDATE pgonce.dead_letters SET row_data = row_data || \'{"name": "good"}\'')
    if only_newer:
        a_past(url, query_id="q1", sink_name="public.events")
        (group,) = replayed(url, "q1")
        assert group.kept == ()
        assert stored(admin) == [(1, "us", "good", 2), (2, "eu", "b", 3)]


@pytest.mark.parametrize("deletes", ["hard", "soft:gone_at", "ignore"])
@pytest.mark.parametrize("only_newer", [False, True])
def test_a_move_without_one_of_its_values_is_put_aside(only_newer, deletes, url, admin):
    """What is stored under the old key or the new one may be an older state, or another row's."""
    how = {"keep_where": "?", "only_newer": only_newer, "deletes": deletes}
    put(url, write(1, "eu", "long", 1), write(1, "us", "other", 1), **how)
    with pytest.raises(TargetError, match="VALUE_NOT_READ"):
        put(url, move(1, "eu", "us", "?", 3), **how)
    counts = put(url, move(1, "eu", "us", "?", 3), write(1, "mx", "good", 4), dead_letters=True, **how)
    assert counts == {"written": 1, "dead_letters": 1}
    assert stored(admin) == [(1, "eu", "long", 1), (1, "mx", "good", 4), (1, "us", "other", 1)]


@pytest.mark.parametrize("only_newer", [False, True])
def test_a_soft_delete_marks_the_old_row(only_newer, url, admin):
    """In its turn before the moved row is written, so that both may have one value that is unique among the living."""
    admin.execute(
        "DROP TABLE places; CREATE TABLE places (id bigint, region text, name text, seq bigint, gone_at timestamptz, "
        "PRIMARY KEY (id, region)); CREATE UNIQUE INDEX ON places (name) WHERE gone_at IS NULL"
    )
    how = {"deletes": "soft:gone_at", "only_newer": only_newer}
    put(url, write(1, "eu", "a", 1), **how)
    assert put(url, move(1, "eu", "us", "a", 2), **how) == {"written": 1, "deleted": 1, "moved": 1}
    assert stored(admin, "region, gone_at IS NOT NULL") == [("eu", True), ("us", False)]


def test_deletes_that_are_ignored_leave_the_old_row(url, admin):
    """A move is a write then."""
    put(url, write(1, "eu", "a", 1))
    assert put(url, move(1, "eu", "us", "a", 2), deletes="ignore") == {"written": 1}
    assert stored(admin, "region, seq") == [("eu", 1), ("us", 2)]


def test_a_move_is_refused_where_deletes_change_other_rows(url, admin):
    """The source changes what refers to the row, and a delete would remove it."""
    put(url, write(1, "eu", "a", 1))
    admin.execute(
        "CREATE TABLE visits (id bigint, region text, FOREIGN KEY (id, region) REFERENCES places ON DELETE CASCADE); "
        "INSERT INTO visits VALUES (1, 'eu')"
    )
    with pytest.raises(TargetError, match=r"\[DELETE_ACTION\]"):
        put(url, move(1, "eu", "us", "a", 2))
    assert admin.execute("TABLE visits").fetchall() == [(1, "eu")]


def test_a_unique_value_moves_with_its_row(url, admin):
    """Also to a row that another change of the batch gives it to."""
    admin.execute("ALTER TABLE places ADD UNIQUE (name, region)")
    put(url, write(1, "eu", "a", 1), write(2, "us", "b", 2), write(3, "us", "c", 3))
    put(url, write(3, "us", "d", 4), move(1, "eu", "us", "c", 5), write(9, "eu", "a", 6))
    assert stored(admin, "id, region, name") == [(1, "us", "c"), (2, "us", "b"), (3, "us", "d"), (9, "eu", "a")]


def test_a_key_changes_with_no_order(url, admin):
    """As long as no other change of the batch has the old key or the new one."""
    put(url, write(1, "eu", "a", 1), order_by=None)
    with pytest.raises(TargetError, match="DOUBLED_KEYS"):
        put(url, move(1, "eu", "us", "b", 2), write(1, "eu", "c", 3), order_by=None)
    put(url, move(1, "eu", "us", "b", 2), write(2, "eu", "c", 3), order_by=None)
    assert stored(admin) == [(1, "us", "b", 2), (2, "eu", "c", 3)]
