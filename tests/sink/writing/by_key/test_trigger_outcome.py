"""A trigger that makes something else of a change is noticed, with onlyNewer and without."""

from __future__ import annotations

import pytest
from support.applied_changes import DELETE, WRITE, apply

from pgonce.offsets_store.errors import TargetError

FUNCTIONS = """
CREATE FUNCTION leaves_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION changes_order() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.seq := 0; RETURN new; END';
CREATE FUNCTION stamps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.stamped := true; RETURN new; END'
"""


@pytest.fixture(autouse=True)
def events(admin):
    """A table with a row, and functions for its triggers."""
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
    apply(url, (1, "old", 1, WRITE), only_newer=only_newer)
    trigger(admin, function)
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, "new", 2, WRITE), (2, "b", 1, WRITE), only_newer=only_newer)


def test_without_an_order_column_in_the_table(url, admin):
    """An update that is left out is known by the number of rows that were written."""
    admin.execute("ALTER TABLE events DROP seq; INSERT INTO events VALUES (1, 'old')")
    trigger(admin, "leaves_out")
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, "new", 2, WRITE))


@pytest.mark.parametrize("only_newer", [False, True])
@pytest.mark.parametrize(("deletes", "when"), [("hard", "DELETE"), ("soft:gone_at", "UPDATE")])
def test_a_delete_is_left_out(deletes, when, only_newer, url, admin):
    """A soft one is an update."""
    how = {"only_newer": only_newer, "deletes": deletes}
    apply(url, (1, "old", 1, WRITE), **how)
    trigger(admin, "leaves_out", when)
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, None, 2, DELETE), **how)


def test_other_columns_may_change(url, admin):
    """A trigger that sets them is as welcome as without pgonce."""
    trigger(admin, "stamps", "INSERT OR UPDATE")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE))
    assert apply(url, (1, "c", 2, WRITE), (2, None, 2, DELETE)) == {"written": 1, "deleted": 1}


def test_a_redundant_update_may_be_suppressed_with_only_newer(url, admin):
    """Postgres has a trigger for that. Without onlyNewer, nothing tells it from one that loses a change."""
    apply(url, (1, "a", 1, WRITE))
    trigger(admin, "suppress_redundant_updates_trigger")
    rows = [(1, "a", 1, WRITE), (2, "b", 1, WRITE)]
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, *rows)
    assert apply(url, *rows, only_newer=True) == {"written": 1, "passed_over": 1}
    assert apply(url, (1, "c", 2, WRITE), keep_where="?") == {"written": 1}


def test_an_update_is_left_out_in_its_turn(url, admin):
    """A change that lacks a value is made alone, and counts as the others do."""
    apply(url, (1, "a", 1, WRITE))
    trigger(admin, "suppress_redundant_updates_trigger")
    assert apply(url, (1, "?", 2, WRITE), keep_where="?") == {"written": 1}
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
        apply(url, (1, "?", 2, WRITE), keep_where="?")
