"""
One batch, as its planner describes it or as its commit sees it: the one place where the tests make one.

Runs in: pytest. Invariant: each call is another attempt; all else follows from the batch's number, unless it is given.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from typing import Any

from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch, Writer


def make_planned_batch(batch_id: int = 0, run_id: str = "run 1", **changes: Any) -> PlannedBatch:
    """Batch N of query q1, planned once; it reads offsets 10N to 10N+10 of a topic t with one partition."""
    fields = {
        "query_id": "q1",
        "attempt": uuid.uuid4(),
        "offset_log": f"planned once {batch_id}",
        "previous_offset_log": f"planned once {batch_id - 1}" if batch_id else None,
        "start": {"0": {"t": {"0": batch_id * 10}}},
        "end": {"0": {"t": {"0": batch_id * 10 + 10}}},
        "stateful": False,
        **changes,
    }
    return PlannedBatch(batch_id=batch_id, run_id=run_id, **fields)


def make_batch(batch_id: int = 0, run_id: str = "run 1", *, sink_name: str = "public.events", **changes: Any) -> Batch:
    """The same batch, once its transaction has named its sink: by its table, unless a name is given."""
    return make_planned_batch(batch_id, run_id, **changes).into(sink_name)


def make_writer(query_id: str = "q1", last_batch_id: int = 0, end_offsets: Any = None, **changes: Any) -> Writer:
    """The ledger's row of a query that has published."""
    fields = {
        "writer_id": 1,
        "sink_name": "public.events",
        "run_id": "run 1",
        "created_at": datetime(2026, 11, 20, tzinfo=timezone.utc),
        "updated_at": datetime(2026, 11, 24, tzinfo=timezone.utc),
        **changes,
    }
    return Writer(query_id=query_id, last_batch_id=last_batch_id, end_offsets=end_offsets, **fields)
