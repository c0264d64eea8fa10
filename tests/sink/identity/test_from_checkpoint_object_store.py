"""
How often a batch asks a slow object store.

Covers: sink.identity.planned_batch.
"""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.ledger_history import QUERY
from support.stopped_query import COMMIT, entry

from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.sink.identity.from_checkpoint import Origin, batch_from_checkpoint
from pgonce.sink.identity.planned_batch import planned_entry
from pgonce.sink.options.sink_options import parse_options


@pytest.mark.parametrize("keeps_state", [False, True])
def test_what_a_batch_asks(folder_in_store, weak_store, keeps_state):
    """A planner and a commit send as many requests as docs/running.md says."""
    writer = CheckpointWriter(folder_in_store)
    writer.write("metadata", f'{{"id":"{QUERY}"}}'.encode())
    for number in range(3):
        writer.write(f"offsets/{number}", entry(number).encode())
    for number in range(2):
        writer.write(f"commits/{number}", COMMIT.encode())
    if keeps_state:
        writer.write("state/0/_metadata/metadata", b"v1\n{}")
    options = {"url": "postgresql://nobody@nowhere", "table": "t", "checkpointLocation": folder_in_store}
    parsed = parse_options(options, overwrite=False)
    before = weak_store.asked
    planned = planned_entry(parsed)
    by_planner = weak_store.asked - before
    batch = batch_from_checkpoint(parsed, Origin(QUERY, str(uuid4()), 2, planned), None)
    assert batch.stateful == keeps_state
    assert (by_planner, weak_store.asked - before - by_planner) == (6, 8 if keeps_state else 10)
