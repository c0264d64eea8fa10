"""A batch is that of the entry with which its rows were planned; another driver may have written a new one since."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.ledger_history import QUERY
from support.stopped_query import entries, entry, write_checkpoint

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.identity.from_checkpoint import Origin, describe_batch


def test_rows_of_an_entry_that_was_written_again_are_refused(tmp_path):
    """The new entry may have another range, which is not that of these rows."""
    write_checkpoint(tmp_path, entries(0), (), QUERY)
    planned = Origin(QUERY, "run 1", 0, Checkpoint(str(tmp_path)).newest_offset_entry())
    assert describe_batch(Checkpoint(str(tmp_path)), planned, None).batch_id == 0
    write_checkpoint(tmp_path, {0: entry(0, {"t": {"0": 99}})}, (), QUERY)
    with pytest.raises(PgonceError, match="CHECKPOINT_IN_USE"):
        describe_batch(Checkpoint(str(tmp_path)), planned, None)


def test_an_entry_that_is_dated_after_the_call_is_another_drivers(tmp_path):
    """Over Spark Connect nothing else tells which entry the server has planned."""
    write_checkpoint(tmp_path, {0: entry(0, planned=5)}, (), QUERY)
    called = Origin(QUERY, "run 1", 0, planned=None, planned_by_ms=1005)
    assert describe_batch(Checkpoint(str(tmp_path)), called, None).batch_id == 0
    with pytest.raises(PgonceError, match="CHECKPOINT_IN_USE"):
        describe_batch(Checkpoint(str(tmp_path)), replace(called, planned_by_ms=1004), None)


def test_a_batch_that_does_not_begin_where_the_entry_before_it_ends_is_refused(tmp_path):
    """Spark may never write the batch's own entry; the one before it is another driver's then."""
    write_checkpoint(tmp_path, {0: entry(0, {"t": {"0": 20}})}, (), QUERY)
    checkpoint, origin = Checkpoint(str(tmp_path)), Origin(QUERY, "run 1", 1, None)
    planned = parse_offset_log(entry(1, {"t": {"0": 40}}), "the plan")
    described = describe_batch(checkpoint, origin, None, planned, {"0": {"t": {"0": 20}}}, is_written=False)
    assert (described.start, described.end) == ({"0": {"t": {"0": 20}}}, {"0": {"t": {"0": 40}}})
    with pytest.raises(PgonceError, match="CHECKPOINT_IN_USE"):
        describe_batch(checkpoint, origin, None, planned, {"0": {"t": {"0": 30}}}, is_written=False)
