"""A trigger that makes something else of a change is noticed, with onlyNewer and without."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger

STRUCT = changes(id=t.LongType(), name=t.StringType(), seq=t.LongType())
FUNCTIONS = """
CREATE FUNCTION leaves_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION changes_order() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.seq := 0; RETURN new; END';
CREATE FUNCTION stamps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.stamped := true; RETURN new; END';
CREATE FUNCTION shouts() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.name := upper(new.name); RETURN new; END'
"""


@pytest.fixture(autouse=True)
def events(url, admin):
    """A table with a row, and functions for its triggers."""
    ensure_ledger(url)
    admin.execute(FUNCTIONS)
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, gone_at boolean DEFAULT false, "
        "stamped boolean)"
    )


def trigger(admin, function, when="UPDATE"):
    """Add a trigger to the table."""
    admin.execute(f"CREATE TRIGGER x BEFORE {when} ON events FOR EACH ROW EXECUTE FUNCTION {function}()".encode())


@pytest.mark.parametrize("only_newer", [False, True])
@pytest.mark.parametrize("function", ["leaves_out", "changes_order"])
def test_an_update_is_left_out_or_gets_another_order(function, only_newer, url, admin):
    """The batch is refused, because the table does not hold what it says."""
    apply(url, (1, "old", 1, WRITE), struct=STRUCT, only_newer=only_newer)
    trigger(admin, function)
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, "new", 2, WRITE), (2, "b", 1, WRITE), struct=STRUCT, only_newer=only_newer)


def test_without_an_order_column_in_the_table(url, admin):
    """An update that is left out is known by the number of rows that were written."""
    admin.execute("ALTER TABLE events DROP seq; INSERT INTO events VALUES (1, 'old')")
    trigger(admin, "leaves_out")
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, "new", 2, WRITE), struct=STRUCT)


@pytest.mark.parametrize("only_newer", [False, True])
def test_a_soft_delete_is_left_out(only_newer, url, admin):
    """It is an update, too."""
    how = {"struct": STRUCT, "only_newer": only_newer, "deletes": "soft:gone_at"}
    apply(url, (1, "old", 1, WRITE), **how)
    trigger(admin, "leaves_out")
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, None, 2, DELETE), **how)


@pytest.mark.parametrize("when", ["UPDATE", "INSERT", "DELETE"])
def test_whatever_is_left_out(when, url, admin):
    """An insert and a delete are noticed as an update is."""
    apply(url, (1, "old", 1, WRITE), struct=STRUCT)
    trigger(admin, "leaves_out", when)
    change = {"UPDATE": (1, "new", 2, WRITE), "INSERT": (2, "new", 2, WRITE), "DELETE": (1, None, 2, DELETE)}[when]
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, change, struct=STRUCT)


@pytest.mark.parametrize("function", ["stamps", "shouts"])
def test_other_columns_may_change(function, url, admin):
    """A trigger that sets them is as welcome as without pgonce."""
    trigger(admin, function, "INSERT OR UPDATE")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), struct=STRUCT)
    assert apply(url, (1, "c", 2, WRITE), (2, None, 2, DELETE), struct=STRUCT) == {"written": 1, "deleted": 1}


def test_a_redundant_update_may_be_suppressed_with_only_newer(url, admin):
    """Postgres has a trigger for that. Without onlyNewer, nothing tells it from one that loses a change."""
    apply(url, (1, "a", 1, WRITE), struct=STRUCT)
    trigger(admin, "suppress_redundant_updates_trigger")
    rows = [(1, "a", 1, WRITE), (2, "b", 1, WRITE)]
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS.* of 1 changes .*set onlyNewer"):
        apply(url, *rows, struct=STRUCT)
    assert apply(url, *rows, struct=STRUCT, only_newer=True) == {"written": 1, "passed_over": 1}
    assert apply(url, (1, "c", 2, WRITE), struct=STRUCT, keep_where="?") == {"written": 1}


def test_an_update_is_left_out_in_its_turn(url, admin):
    """A change that lacks a value is made alone, and counts as the others do."""
    apply(url, (1, "a", 1, WRITE), struct=STRUCT)
    trigger(admin, "suppress_redundant_updates_trigger")
    assert apply(url, (1, "?", 2, WRITE), struct=STRUCT, keep_where="?") == {"written": 1}
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, "?", 2, WRITE), struct=STRUCT, keep_where="?")
