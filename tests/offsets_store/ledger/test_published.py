"""
A table of the same name may be another one, as its oid tells: it is noted, or refused for those who ask for that.

Covers: offsets_store.ledger.published.
"""

from __future__ import annotations

import logging

import pytest
from support.batches import make_batch
from support.committed_rows import TABLE, ids, rows, settings
from support.with_rooms import work_into, write_batch_in_tx

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.published import Published, changed_targets, known_targets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.usefixtures("events")


@pytest.mark.parametrize(
    ("before", "now", "is_one_table", "says"),
    [
        (None, {"public.a": 1}, True, None),
        ({}, {"public.a": 1}, True, None),
        ({"public.a": 1}, {"public.a": 1}, True, None),
        ({"public.a": 1}, {}, True, None),
        ({"public.a": 1}, {"public.a": 2}, True, "dropped and created again"),
        ({"public.a": 1}, {"public.a": 2}, False, "dropped and created again"),
        ({"public.a": 1}, {"public.b": 1}, True, "was called public.a"),
        ({"public.a": 1}, {"public.b": 2}, True, "earlier batches went into public.a"),
        # A function may write to a table for the first time at any batch.
        ({"public.a": 1}, {"public.b": 2}, False, None),
    ],
)
def test_a_table_is_known_by_its_oid(before, now, is_one_table, says):
    """A name that means another table, a table with another name, and another table are three things."""
    changes = changed_targets(before, now, is_one_table=is_one_table)
    if says is None:
        assert changes == {}
    else:
        (name,) = now
        assert says in changes[name]


def test_what_a_function_has_not_written_to_this_time_is_remembered():
    """A table that is written to now and then is compared with the last time; one that was renamed has one name."""
    known = known_targets({"public.a": 1, "public.b": 2}, {"public.c": 2}, is_one_table=False)
    assert known == {"public.a": 1, "public.c": 2}
    assert known_targets({"public.a": 1}, {"public.b": 2}, is_one_table=True) == {"public.b": 2}
    assert known_targets({"public.a": 1}, {}, is_one_table=False) == {"public.a": 1}


def appending(*ids, table="events", sink_name="orders"):
    """Work that appends these ids to one table."""
    return work_into(sink_name, destination(table, "append", (), None), rows(*ids))


def function(*tables):
    """Work of a function that writes one row into each table."""

    def publish(connection, *_):
        targets = {}
        for table in tables:
            targets |= write_batch_in_tx(driver_connection(connection), destination(table), rows(1)).targets
        return Published(len(tables), "function", targets=targets)

    return Work(lambda _: "orders", publish, sealed=True)


CHANGES = {
    "created again": (b"DROP TABLE events; " + TABLE.encode(), "dropped and created again"),
    "exchanged": (b"ALTER TABLE events RENAME TO old; CREATE TABLE events (LIKE old)", "exchanged for another"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_was_created_again_is_noted(change, admin, url, caplog):
    """The batch is published; log, status and ledger say what is different, once."""
    ddl, says = CHANGES[change]
    commit_batch(settings(url), make_batch(0), appending(1))
    admin.execute(ddl)
    with caplog.at_level(logging.WARNING, "pgonce"):
        assert commit_batch(settings(url), make_batch(1), appending(2)) is Verdict.NEW
        assert says in caplog.text
        caplog.clear()
        commit_batch(settings(url), make_batch(2), appending(3))
        assert "table" not in caplog.text
    assert ids(admin) == [2, 3]
    (writer,) = OffsetsStore(url).queries()
    oid = admin.execute("SELECT 'events'::regclass::oid").fetchone()[0]
    assert writer.targets == {"public.events": oid}
    assert writer.target_change.startswith("batch 1: public.events is not the table")
    assert admin.execute("SELECT batch_id, table_name FROM pgonce.target_changes").fetchall() == [(1, "public.events")]


@pytest.mark.parametrize("change", CHANGES)
def test_a_pinned_table_is_refused_until_it_is_let_go_once(change, admin, url):
    """Nothing is written into the other table; after one batch without the option, that is the one that counts."""
    pinned, free = settings(url, pin_table=True), settings(url)
    assert commit_batch(pinned, make_batch(0), appending(1)) is Verdict.NEW
    admin.execute(CHANGES[change][0])
    with pytest.raises(PgonceError, match="TARGET_CHANGED.*public.events.*Help: .*pinTable=false"):
        commit_batch(pinned, make_batch(1), appending(2))
    assert ids(admin) == []
    assert commit_batch(free, make_batch(1), appending(2)) is Verdict.NEW
    assert commit_batch(pinned, make_batch(2), appending(3)) is Verdict.NEW
    assert ids(admin) == [2, 3]


def test_tables_of_a_function_are_remembered_one_by_one(admin, url):
    """A function may write to a table for the first time, or leave one out; a changed one is met when it comes."""
    admin.execute("CREATE TABLE others (LIKE events)")
    pinned = settings(url, pin_table=True)
    commit_batch(pinned, make_batch(0), function("events"))
    commit_batch(pinned, make_batch(1), function("others"))
    admin.execute(b"DROP TABLE events; " + TABLE.encode())
    commit_batch(pinned, make_batch(2), function("others"))
    with pytest.raises(PgonceError, match="TARGET_CHANGED.*public.events"):
        commit_batch(pinned, make_batch(3), function("events", "others"))
