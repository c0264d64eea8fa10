"""
Upserts that leave stored rows as they are: which constraints count, what is counted, and what the others say.

Covers: sink.writing.by_key.upsert, sink.writing.bad_rows.in_turn, sink.writing.write_table.
"""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.typed_rows import commit_typed

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.options.destination import destination

COLUMNS = {"id": t.StringType(), "slot": t.IntegerType()}
ROWS = [("a", 9), ("b", 1), ("c", 2), ("d", 2)]
"""The first has a stored key, the second a stored slot; the others have one slot."""


@pytest.fixture
def fed(url, admin):
    """A table with a row, and two constraints."""
    admin.execute("CREATE TABLE events (id text PRIMARY KEY, slot int UNIQUE); INSERT INTO events VALUES ('a', 1)")
    return url


def ignoring(how="ignoreAny", **more):
    """An upsert that changes no stored row."""
    return destination("events", "upsert", on_conflict=how, **more)


def counted(admin):
    """What the ledger counts of the last batch."""
    asked = "SELECT rows, counts FROM pgonce.batches ORDER BY batch_id DESC LIMIT 1"
    return admin.execute(asked).fetchone()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("more", [{}, {"order_by": "slot"}, {"dead_letters": True}], ids=str)
def test_what_any_constraint_refuses_is_left_out_and_counted(more, staged, fed, admin):
    """Of the rows that only a second constraint keeps apart, the one with the least key is inserted."""
    commit_typed(fed, 0, ignoring(**more), COLUMNS, ROWS, staged=staged)
    assert admin.execute("SELECT * FROM events ORDER BY id").fetchall() == [("a", 1), ("c", 2)]
    assert counted(admin) == (4, {"written": 1, "passed_over": 3})
    commit_typed(fed, 1, ignoring(**more), COLUMNS, [("e", 5)], staged=staged)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (3,)
    assert counted(admin) == (1, None)


@pytest.mark.parametrize(
    "constraint",
    [
        "CREATE UNIQUE INDEX ON events ((slot / 10))",
        "CREATE UNIQUE INDEX ON events ((slot / 10)) WHERE slot > 0",
        "ALTER TABLE events ADD EXCLUDE USING gist (int4range(slot, slot + 10) WITH &&)",
    ],
    ids=["expression", "partial", "exclusion"],
)
def test_every_kind_of_such_a_constraint_counts(constraint, fed, admin):
    """As ON CONFLICT DO NOTHING has it."""
    admin.execute(constraint)
    commit_typed(fed, 0, ignoring(), COLUMNS, [("b", 5), ("c", 25)])
    assert admin.execute("SELECT id FROM events ORDER BY id").fetchall() == [("a",), ("c",)]
    assert counted(admin) == (2, {"written": 1, "passed_over": 1})


def test_other_constraints_still_refuse(fed, admin):
    """Only rows that would be doubled are left out."""
    admin.execute("ALTER TABLE events ADD CHECK (slot < 100)")
    with pytest.raises(TargetError, match=r"\[CHECK_VIOLATION\]"):
        commit_typed(fed, 0, ignoring(), COLUMNS, [("b", 1), ("c", 100)])
    commit_typed(fed, 0, ignoring(dead_letters=True), COLUMNS, [("b", 1), ("c", 100), ("d", 4)])
    assert admin.execute("SELECT id FROM events ORDER BY id").fetchall() == [("a",), ("d",)]
    assert counted(admin) == (2, {"written": 1, "passed_over": 1, "dead_letters": 1})


def test_a_deferrable_constraint_is_refused(fed, admin):
    """ON CONFLICT cannot use it, and says so before a row is left out."""
    admin.execute("ALTER TABLE events ADD UNIQUE (id, slot) DEFERRABLE")
    with pytest.raises(TargetError, match=r"\[NO_UNIQUE_KEY\]"):
        commit_typed(fed, 0, ignoring(), COLUMNS, ROWS)


def test_another_constraint_than_that_of_the_key_is_no_value_that_moved(fed, admin):
    """With `ignore`, no stored row gives a value away: the row is refused, or put aside, by itself."""
    with pytest.raises(TargetError, match=r"\[UNIQUE_VIOLATION\]"):
        commit_typed(fed, 0, ignoring("ignore"), COLUMNS, ROWS[:3])
    commit_typed(fed, 0, ignoring("ignore", dead_letters=True), COLUMNS, ROWS[:3])
    assert admin.execute("SELECT id FROM events ORDER BY id").fetchall() == [("a",), ("c",)]
    assert counted(admin) == (2, {"written": 1, "passed_over": 1, "dead_letters": 1})
