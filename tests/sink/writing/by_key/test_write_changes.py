"""Writes and deletes of one batch: each change is counted, and what other sessions do meanwhile is not lost."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, PLAIN, WRITE, apply, changes, stored
from support.blocked import wait_for_blocked
from support.sent_rows import publish

import pgonce.sink.writing.by_key.upsert
from pgonce.sink.options.destination import DELETED_COLUMN

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"


pytestmark = pytest.mark.usefixtures("ledger")


@pytest.fixture(params=["ON CONFLICT", "MERGE"], autouse=True)
def _writes(request, monkeypatch):
    """By which statement the rows are written that do not delete, whatever their number is."""
    if request.param == "MERGE":
        monkeypatch.setattr(pgonce.sink.writing.by_key.upsert, "MERGED_ROWS", 0)


def test_each_change_is_counted_by_what_becomes_of_it(url, admin):
    """A delete that finds no row, too."""
    admin.execute(TABLE)
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (3, "c", 1, WRITE))
    given = [
        (1, "A", 2, WRITE), (2, None, 2, DELETE), (4, "d", 2, WRITE), (5, None, 2, DELETE),
        # Deleted and written again, and the other way round.
        (3, None, 2, DELETE), (3, "C", 3, WRITE), (6, "f", 2, WRITE), (6, None, 3, DELETE),
    ]  # fmt: skip
    counts = apply(url, *given)
    assert counts == {"written": 3, "deleted": 2, "not_found": 2, "superseded": 1}
    assert stored(admin) == [(1, "A", 2), (3, "C", 3), (4, "d", 2)]


@pytest.mark.parametrize("letters", [False, True])
def test_unique_values_that_move(letters, url, admin):
    """Each delete makes room before the writes."""
    admin.execute(f"{TABLE}; ALTER TABLE events ADD UNIQUE (name)")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (4, "d", 1, WRITE))
    swap = [(1, None, 2, DELETE), (1, "b", 3, WRITE), (2, None, 2, DELETE), (2, "a", 3, WRITE)]
    counts = apply(url, *swap, (3, "d", 2, WRITE), (4, None, 2, DELETE), dead_letters=letters)
    assert counts == {"written": 3, "deleted": 3}
    assert stored(admin) == [(1, "b", 3), (2, "a", 3), (3, "d", 2)]


@pytest.mark.parametrize("how", [{"mode": "apply", "delete_when": "gone"}, {"mode": "upsert", "keys": ["id"]}])
def test_a_refused_value_fails_the_transaction(how, url, admin):
    """Somebody who swallows the error cannot commit the rest; and the error says which row it was."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3), seq bigint, gone bool)")
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.StringDataRightTruncation) as error:
            publish(
                connection, "inline", PLAIN, [(1, "too long", 2, WRITE), (2, None, 2, DELETE)], order_by="seq", **how
            )
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    assert any("id = 1" in note for note in error.value.__notes__)


def test_a_row_that_another_session_writes_again_is_deleted(url, admin):
    """The delete waits for that session, and takes the new row."""
    admin.execute(TABLE)
    apply(url, (5, "a", 1, WRITE), (6, "a", 1, WRITE))
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("DELETE FROM events WHERE id = 5")
        other.execute("INSERT INTO events VALUES (5, 'other', 1)")
        applying = pool.submit(apply, url, (5, None, 2, DELETE), (6, "b", 2, WRITE))
        wait_for_blocked(admin, other)
        other.commit()
        assert applying.result() == {"written": 1, "deleted": 1}
    assert stored(admin) == [(6, "b", 2)]


def test_a_role_that_may_only_delete(url, admin, login):
    """A batch without writes needs no more privileges than that."""
    admin.execute(
        f"{TABLE}; INSERT INTO events VALUES (1); GRANT SELECT, UPDATE, DELETE ON events TO {login.user}".encode()
    )
    assert apply(login.url, (1, None, 2, DELETE), (4, None, 2, DELETE)) == {"deleted": 1, "not_found": 1}


def remembered(admin):
    """The deletes that are remembered: key and order."""
    return admin.execute("SELECT (key ->> 0)::int, order_value::int FROM pgonce.tombstones ORDER BY 1").fetchall()


NEWER = {"only_newer": True}


def test_only_what_is_newer_is_written_and_deleted(url, admin):
    """Stored rows that are newer stay, as do those of deletes that are newer; each change is counted."""
    admin.execute(f"{TABLE}; INSERT INTO events VALUES (9, 'without order', NULL), (10, 'without order', NULL)")
    before = [(1, "a", 5, WRITE), (2, "b", 5, WRITE), (3, "c", 5, WRITE), (4, "d", 5, WRITE), (5, None, 5, DELETE)]
    assert apply(url, *before, (6, None, 5, DELETE), **NEWER) == {"written": 4, "not_found": 2}
    given = [
        # Older than the row, the same, newer.
        (1, "A", 4, WRITE), (2, "B", 5, WRITE), (3, "C", 6, WRITE), (4, None, 4, DELETE), (9, "i", 0, WRITE),
        # Older than the delete, and not older.
        (5, "e", 4, WRITE), (6, "f", 5, WRITE),
        (7, "g", 1, WRITE), (8, None, 3, DELETE), (10, None, 0, DELETE),
    ]  # fmt: skip
    counts = apply(url, *given, **NEWER)
    assert counts == {"written": 5, "passed_over": 3, "not_found": 1, "deleted": 1}
    assert stored(admin) == [
        (1, "a", 5), (2, "B", 5), (3, "C", 6), (4, "d", 5), (6, "f", 5), (7, "g", 1), (9, "i", 0)
    ]  # fmt: skip
    assert remembered(admin) == [(5, 5), (6, 5), (8, 3), (10, 0)]
    assert apply(url, (2, None, 5, DELETE), (3, None, 5, DELETE), (8, "late", 2, WRITE), **NEWER) == {
        "deleted": 1, "passed_over": 2,
    }  # fmt: skip
    assert remembered(admin) == [(2, 5), (5, 5), (6, 5), (8, 3), (10, 0)]


@pytest.mark.parametrize(
    ("theirs", "ours", "counts", "left", "stones"),
    [
        ("UPDATE events SET seq = 9", WRITE, {"passed_over": 1}, [(5, "old", 9)], []),
        ("UPDATE events SET seq = 9", DELETE, {"passed_over": 1}, [(5, "old", 9)], []),
        ("UPDATE events SET seq = 7", WRITE, {"written": 1}, [(5, "ours", 7)], []),
        ("UPDATE events SET seq = 7", DELETE, {"deleted": 1}, [], [(5, 7)]),
        ("DELETE FROM events", WRITE, {"written": 1}, [(5, "ours", 7)], []),
        ("DELETE FROM events", DELETE, {"not_found": 1}, [], [(5, 7)]),
        ("UPDATE events SET id = 50", WRITE, {"written": 1}, [(5, "ours", 7), (50, "old", 1)], []),
        ("UPDATE events SET id = 50", DELETE, {"not_found": 1}, [(50, "old", 1)], [(5, 7)]),
        *(
            (f"DELETE FROM events; INSERT INTO events VALUES (5, 'again', {seq})", ours, counts, left, stones)
            for seq, ours, counts, left, stones in (
                (9, WRITE, {"passed_over": 1}, [(5, "again", 9)], []),
                (9, DELETE, {"passed_over": 1}, [(5, "again", 9)], []),
                (7, WRITE, {"written": 1}, [(5, "ours", 7)], []),
                (7, DELETE, {"deleted": 1}, [], [(5, 7)]),
            )
        ),
    ],
)
def test_what_another_session_does_to_a_row_meanwhile(theirs, ours, counts, left, stones, url, admin):
    """Some application changes the row while the batch waits for it: compared is what it leaves, not what was there."""
    admin.execute(TABLE)
    apply(url, (5, "old", 1, WRITE), **NEWER)
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(theirs.encode())
        others = [(6, "new", 1, WRITE), (7, None, 1, DELETE)]
        applying = pool.submit(apply, url, (5, None if ours else "ours", 7, ours), *others, **NEWER)
        wait_for_blocked(admin, other)
        other.commit()
        found = Counter(applying.result())
    assert found == Counter(counts) + Counter(written=1, not_found=1)
    assert stored(admin) == sorted([*left, (6, "new", 1)])
    assert remembered(admin) == [*stones, (7, 1)]


@pytest.mark.parametrize(("seq", "left"), [(9, (5, "theirs", 9)), (7, (5, "ours", 7)), (1, (5, "ours", 7))])
def test_a_key_that_another_session_inserts_meanwhile(seq, left, url, admin):
    """The two rows are compared."""
    admin.execute(TABLE)
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("INSERT INTO events VALUES (5, 'theirs', %s)", [seq])
        applying = pool.submit(apply, url, (5, "ours", 7, WRITE), (6, None, 7, DELETE), **NEWER)
        wait_for_blocked(admin, other)
        other.commit()
        assert Counter(applying.result()) == Counter({"passed_over" if seq > 7 else "written": 1, "not_found": 1})
    assert stored(admin) == [left]
    assert remembered(admin) == [(6, 7)]


def test_a_delete_of_another_batch_is_seen_once_it_is_committed(url, admin):
    """A batch that waits for its turn reads tombstones afterwards: the older row does not come back."""
    admin.execute(TABLE)
    apply(url, (1, "a", 1, WRITE), **NEWER)
    with psycopg.connect(url) as first, ThreadPoolExecutor(1) as pool:
        assert apply(first, (1, None, 5, DELETE), **NEWER) == {"deleted": 1}
        second = pool.submit(apply, url, (1, "late", 4, WRITE), (2, None, 4, DELETE), **NEWER)
        wait_for_blocked(admin, first)
        first.commit()
        assert second.result() == {"passed_over": 1, "not_found": 1}
    assert stored(admin) == []
    assert remembered(admin) == [(1, 5), (2, 4)]


def test_unique_values_that_move_among_newer_rows(url, admin):
    """A delete that comes later in the batch makes room all the same."""
    admin.execute(f"{TABLE}; ALTER TABLE events ADD UNIQUE (name)")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), **NEWER)
    assert apply(url, (1, "b", 2, WRITE), (2, None, 2, DELETE), **NEWER) == {"written": 1, "deleted": 1}
    assert (stored(admin), remembered(admin)) == ([(1, "b", 2)], [(2, 2)])


@pytest.mark.parametrize("feed", ["spark", "delta"])
def test_a_version_that_replaces_a_row_where_only_the_newer_counts(feed, url, admin):
    """Its delete and its insert have one order; the insert is the later one, in whatever order they come."""
    admin.execute(TABLE)
    struct = changes(id=t.LongType(), name=t.StringType(), seq=t.LongType(), delete_column=DELETED_COLUMN)
    how = {"struct": struct, "delete_when": None, "change_feed": feed, **NEWER}
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (3, "c", 3, WRITE), **how)
    rows = [(1, "A", 2, WRITE), (1, None, 2, DELETE), (2, None, 2, DELETE), (2, "B", 2, WRITE), (3, None, 2, DELETE)]
    assert apply(url, *rows, **how)["written"] == 2
    assert stored(admin) == [(1, "A", 2), (2, "B", 2), (3, "c", 3)]


def test_sessions_that_write_the_same_keys_at_once(url, admin):
    """Three queries and an application write in no order: of each key the greatest order is left, or its delete."""
    admin.execute(TABLE)
    seed = random.randrange(10**9)
    draw = random.Random(seed)
    orders = list(range(1, 1501))
    draw.shuffle(orders)
    # The application takes no turns and leaves no tombstones, so it has the keys from 15 on, which are never deleted.
    given = [(draw.randrange(30), f"name {seq}", seq, WRITE) for seq in orders]
    given = [(key, name, seq, DELETE if key < 15 and seq % 3 == 0 else WRITE) for key, name, seq, _ in given]
    batches = [given[start : start + 12] for start in range(0, 1200, 12)]

    def query(number):
        for batch in batches[number::3]:
            apply(url, *batch, **NEWER)

    def application(rows):
        upsert = (
            "INSERT INTO events VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name, "
            "seq = excluded.seq WHERE events.seq <= excluded.seq"
        )
        with psycopg.connect(url, autocommit=True) as connection:
            for row in rows:
                connection.execute(upsert, row[:3])

    others = [row for row in given[1200:] if row[0] >= 15]
    with ThreadPoolExecutor(4) as pool:
        for writing in [*(pool.submit(query, number) for number in range(3)), pool.submit(application, others)]:
            writing.result()
    last = {}
    for row in sorted([*given[:1200], *others], key=lambda row: row[2]):
        last[row[0]] = row
    assert stored(admin) == sorted(row[:3] for row in last.values() if row[3] is WRITE), f"seed {seed}"
