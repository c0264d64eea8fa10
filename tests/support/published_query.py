"""
A query of Kafka whose batches have been published, each with the record of how it was written.

Runs in: pytest. Invariant: no Spark is started.
"""

from __future__ import annotations

from support.batches import make_planned_batch
from support.committed_rows import COLUMNS, settings
from support.ledger_history import QUERY
from support.stopped_query import entry, kafka
from support.typed_rows import typed_rows
from support.with_rooms import work_into

from pgonce.offsets_store.commit.retrying import commit_batch


def publish(url, where, number=0, rows=None):
    """Batch N of the query, which reads ten records of Kafka."""
    batch = make_planned_batch(
        number,
        query_id=QUERY,
        query_name="orders",
        offset_log=entry(number),
        previous_offset_log=entry(number - 1) if number else None,
        start={"0": kafka(10 * number)},
        end={"0": kafka(10 * number + 10)},
    )
    return commit_batch(settings(url), batch, work_into(None, where, rows or typed_rows(COLUMNS, [(number, "a")])))
