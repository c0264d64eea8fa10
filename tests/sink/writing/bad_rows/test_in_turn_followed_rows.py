"""
Rows that are refused in their turn and tried again: none of them is lost, and none comes before a newer one.

Covers: sink.writing.bad_rows.in_turn, sink.writing.bad_rows.one_round, sink.writing.bad_rows.turns.
"""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from psycopg.errors import UniqueViolation
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes
from support.batches import make_batch
from support.sent_rows import publish, sent
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.options.destination import destination

NODES = changes(id=t.LongType(), parent=t.LongType(), v=t.StringType(), seq=t.LongType())
ROWS = t.StructType(NODES.fields[:4])
TREE = (
    "CREATE TABLE events (id bigint PRIMARY KEY, parent bigint REFERENCES events, "
    "v text CHECK (v <> 'bad'), seq bigint, del bool DEFAULT false)"
)
VALUES = "CREATE TABLE events (id bigint PRIMARY KEY, parent bigint UNIQUE, v text, seq bigint, del bool DEFAULT false)"


def stored(admin):
    """The keys and texts of the table's rows."""
    return admin.execute("SELECT id, v FROM events ORDER BY 1").fetchall()


def letters(admin):
    """The keys and texts of the rows that were put aside, and why."""
    found = "SELECT (row_data ->> 'id')::int, row_data ->> 'v', code FROM pgonce.dead_letters ORDER BY 1, 2"
    return admin.execute(found).fetchall()


class TestSoftDeletes:
    """A delete that only marks its row takes nothing away, so it replaces no change before it."""

    def test_a_bad_write_before_it_is_put_aside(self, url, admin):
        """There is no row to mark."""
        admin.execute(TREE)
        rows = [(9, None, "bad", 1, WRITE), (20, None, "parent", 2, WRITE), (9, None, None, 3, DELETE)]
        counts = apply(url, *rows, struct=NODES, deletes="soft:del", dead_letters=True)
        assert counts == {"written": 1, "not_found": 1, "dead_letters": 1}
        assert letters(admin) == [(9, "bad", "23514")]

    def test_a_write_that_comes_too_early_is_put_aside(self, url, admin):
        """Its parent comes later, and so does the delete of its key; another row is an orphan."""
        admin.execute(TREE)
        rows = [
            (9, 20, "early", 1, WRITE), (20, None, "parent", 2, WRITE), (9, None, None, 3, DELETE),
            (7, 777, "orphan", 4, WRITE),
        ]  # fmt: skip
        apply(url, *rows, struct=NODES, deletes="soft:del", dead_letters=True)
        assert stored(admin) == [(20, "parent")]
        assert letters(admin) == [(7, "orphan", "23503"), (9, "early", "23503")]

    def test_without_dead_letters_it_stops_the_batch(self, url, admin):
        """The order of two of the changes is not known."""
        admin.execute(f"{VALUES}; INSERT INTO events VALUES (9, 9, 'x', 0)")
        rows = [(1, 9, "early", 1, WRITE), (9, 5, "moved", 1, WRITE), (1, None, None, 3, DELETE)]
        with pytest.raises(UniqueViolation):
            apply(url, *rows, struct=NODES, deletes="soft:del")
        assert stored(admin) == [(9, "x")]


def test_where_stored_rows_stay_the_first_of_a_key_is_put_aside(url, admin):
    """A later one is written in its place, and does not replace it."""
    admin.execute(TREE)
    rows = [(9, 20, "first", 1), (7, 777, "orphan", 2), (20, None, "parent", 3), (9, None, "second", 4)]
    how = {"order_by": "seq", "on_conflict": "ignore", "dead_letters": True}
    publish(url, "inline", ROWS, rows, "upsert", **how)
    assert stored(admin) == [(9, "second"), (20, "parent")]
    assert letters(admin) == [(7, "orphan", "23503"), (9, "first", "23503")]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("mode", ["upsert", "apply"])
def test_of_letters_that_tie_the_last_one_counts(mode, moves, url, admin):
    """Also where a value moves, so that they are written in their turn."""
    admin.execute(f"{VALUES}; INSERT INTO events VALUES (1, 1, 'a', 0), (2, 2, 'b', 0)")
    rows = [(9, 9, "first", 5), (9, 10, "second", 5)]
    rows += [(1, 2, "c", 2), (2, 3, "d", 1)] if moves else []
    how = {"delete_when": "gone"} if mode == "apply" else {}
    struct, rows = (NODES, [(*row, WRITE) for row in rows]) if mode == "apply" else (ROWS, rows)
    into = replace(destination("events", mode, (), "seq", only_newer=True, **how), of_letters=True)
    with psycopg.connect(url) as connection:
        write_batch_in_tx(connection, into, sent(url, "inline", struct, rows), batch=make_batch())
    assert stored(admin)[-1] == (9, "second")


def test_rows_of_both_kinds_come_to_an_end(url, admin):
    """Some are refused while they are written, others when a part is: neither hides the other."""
    admin.execute(TREE)
    rows = [(n, 7_777 if n % 5 == 1 else None, "bad" if n % 7 == 3 else "v", n) for n in range(200)]
    publish(url, "inline", ROWS, rows, "append", dead_letters=True)
    bad = {n for n in range(200) if n % 5 == 1 or n % 7 == 3}
    assert {key for key, *_ in letters(admin)} == bad
    assert {key for key, _ in stored(admin)} == set(range(200)) - bad


def test_a_long_chain_that_comes_backwards(url, admin):
    """Each child comes before its parent, and a bad row among them: they are tried again from the last one on."""
    admin.execute(TREE)
    rows = [(n, n + 1 if n < 300 else None, "bad" if n == 400 else "v", n) for n in [*range(301), 400]]
    publish(url, "inline", ROWS, rows, "append", dead_letters=True)
    assert len(stored(admin)) == 301
    assert letters(admin) == [(400, "bad", "23514")]


def test_a_table_without_the_parents_of_thousands_is_found_soon(url, admin):
    """They are not all tried before the batch is refused."""
    admin.execute(TREE)
    with pytest.raises(PgonceError, match=r"\[TOO_MANY_DEAD_LETTERS\]"):
        publish(url, "inline", ROWS, [(n, 77_777, "v", n) for n in range(5_000)], "append", dead_letters=True)
