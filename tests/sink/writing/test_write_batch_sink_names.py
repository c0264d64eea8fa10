"""
A sink that gets another name: a batch that was committed under the earlier one is not written again.

Covers: offsets_store.ledger.writers.
"""

from __future__ import annotations

import pytest
from support.batches import make_planned_batch
from support.committed_batch import commit, rows_in

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery.by_hand import retire_sink
from pgonce.sink.options.destination import destination

ROWS = [(1, "one"), (2, "two")]
pytestmark = pytest.mark.usefixtures("events")


def committed(url, run_id="run 1", table="events", batch_id=0, **more):
    """One batch of the query."""
    return commit(url, make_planned_batch(batch_id, run_id), destination(table, "append", (), None), ROWS, **more)


@pytest.mark.parametrize("how", ["table renamed", "table moved", "sinkName added"])
def test_batch_0_is_run_again_under_another_name(how, url, admin):
    """The driver was killed before Spark had noted batch 0: its rows are there, under the first name."""
    committed(url)
    changed = {"table": "events"}
    if how == "table renamed":
        admin.execute("ALTER TABLE events RENAME TO orders")
        changed = {"table": "orders"}
    elif how == "table moved":
        admin.execute("CREATE SCHEMA shop; ALTER TABLE events SET SCHEMA shop")
        changed = {"table": "shop.events"}
    else:
        changed["sink_name"] = "mine"
    with pytest.raises(PgonceError, match=r"FOREIGN.*'public\.events'"):
        committed(url, "run 2", **changed)
    assert rows_in(admin, changed["table"]) == ROWS
    # What the error advises: the earlier name, under which the batch is known.
    assert committed(url, "run 2", **{**changed, "sink_name": "public.events"}) is Verdict.REPLAY
    assert committed(url, "run 2", batch_id=1, **{**changed, "sink_name": "public.events"}) is Verdict.NEW


def test_a_table_that_is_moved_while_the_answer_to_commit_is_awaited(url, admin):
    """The next try of the same commit finds it under its new name, and not what the first one has recorded."""
    batch, written = (
        make_planned_batch(0),
        [destination(name, "append", (), None) for name in ("events", "shop.events")],
    )
    commit(url, batch, written[0], ROWS)
    admin.execute("CREATE SCHEMA shop; ALTER TABLE events SET SCHEMA shop")
    with pytest.raises(PgonceError, match=r"FOREIGN.*'public\.events'"):
        commit(url, batch, written[1], ROWS)
    assert rows_in(admin, "shop.events") == ROWS


def test_a_sink_that_was_retired(url, admin):
    """Its rows have stayed."""
    committed(url)
    retire_sink("q1", url, reason="another name", sink="public.events")
    with pytest.raises(PgonceError, match=r"\[FOREIGN\]"):
        committed(url, "run 2", sink_name="mine")
    assert rows_in(admin, "events") == ROWS


def test_one_query_writes_a_table_by_two_sinks(url, admin):
    """Each run hears of both, also where the one before was killed between them."""
    assert committed(url, sink_name="first") is Verdict.NEW
    assert committed(url, sink_name="second") is Verdict.NEW
    assert committed(url, batch_id=1, sink_name="first") is Verdict.NEW
    assert committed(url, "run 2", batch_id=1, sink_name="first") is Verdict.REPLAY
    assert committed(url, "run 2", batch_id=1, sink_name="second") is Verdict.NEW
    assert len(rows_in(admin, "events")) == 8


def test_a_run_that_was_killed_between_its_two_sinks(url, admin):
    """The first of them is a replay in the next run, and so the second is no other name of it."""
    committed(url, sink_name="first")
    assert committed(url, "run 2", sink_name="first") is Verdict.REPLAY
    assert committed(url, "run 2", sink_name="second") is Verdict.NEW
    assert len(rows_in(admin, "events")) == 4


def test_a_query_that_is_to_write_its_rows_twice(url, admin):
    """It says so."""
    committed(url)
    assert committed(url, "run 2", sink_name="mine", independent=True) is Verdict.NEW
    assert len(rows_in(admin, "events")) == 4


def test_adopting_a_batch_that_is_there_under_another_name(url, admin):
    """The ledger knows that it was written, which a person who says that it was not cannot know better."""
    committed(url)
    committed(url, batch_id=1)
    with pytest.raises(PgonceError, match=r"UNKNOWN.*'public\.events'"):
        committed(url, "run 2", batch_id=1, sink_name="mine", adopt_checkpoint=1)
    assert committed(url, "run 2", batch_id=1, sink_name="mine", adopt_checkpoint=2) is Verdict.ADOPTED
    assert len(rows_in(admin, "events")) == 4
