"""
A row of Debezium's incremental snapshots, which has no order, takes the place of nothing.

Covers: sink.writing.by_key.apply, sink.writing.by_key.statements, sink.writing.by_key.tombstones.
"""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.applied_changes import apply

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger

SNAPSHOT = t.StructType([
    t.StructField("id", t.LongType()), t.StructField("name", t.StringType()), t.StructField("seq", t.LongType()),
    t.StructField("pgonce_operation", t.StringType()), t.StructField("pgonce_deleted", t.BooleanType()),
])  # fmt: skip
FEED = {"struct": SNAPSHOT, "delete_when": None, "change_feed": "debezium", "only_newer": True}


@pytest.fixture(autouse=True)
def events(url, admin):
    """A table, and a ledger."""
    ensure_ledger(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)")


@pytest.mark.parametrize("keep", [None, "?"])
@pytest.mark.parametrize("stored", ["with its order", "without one", "with a trigger"])
def test_a_row_of_a_snapshot_without_an_order_is_written_only_where_nothing_is(keep, stored, url, admin):
    """Debezium's incremental snapshots have no lsn: a stored row is newer, and so is a remembered delete."""
    if stored == "with a trigger":
        admin.execute(
            "CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
            "CREATE TRIGGER same BEFORE INSERT OR UPDATE ON events FOR EACH ROW EXECUTE FUNCTION same()"
        )
    how = {**FEED, "keep_where": keep}
    apply(url, (1, "live", 5, "c", False), (2, None, 6, "d", True), **how)
    if stored == "without one":
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
def test_every_other_row_without_an_order_is_refused(letters, url, admin):
    """Nothing says that it is old."""
    rows = [(1, "a", None, "u", False), (2, "b", None, "r", False)]
    if letters:
        assert apply(url, *rows, dead_letters=True, **FEED) == {"written": 1, "dead_letters": 1}
        assert admin.execute("SELECT code FROM pgonce.dead_letters").fetchall() == [("NULL_ORDER",)]
    else:
        with pytest.raises(TargetError, match="NULL_ORDER"):
            apply(url, *rows, **FEED)
