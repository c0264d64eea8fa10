"""
A checkpoint as Spark would write it for a query over Kafka with many partitions.

Runs anywhere. Invariant: the entries have the form and the size of Spark's own, and each batch is planned from the
entry that was written for it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.identity.planned_batch import newest_uncommitted_entry

# What Spark 4 writes down of a session's settings, without those of stateful queries.
_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
}
RUN = "00000000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class PlannedQuery:
    """A stopped query's checkpoint, and the batches that it plans."""

    root: Path
    query_id: str
    partitions: int
    topic: str = "orders"

    def entry(self, batch_id: int) -> str:
        """The text of ``offsets/N``: every partition goes on by 100 records a batch."""
        ends = {self.topic: {str(p): 1_000_000_000 + (batch_id + 1) * 100 for p in range(self.partitions)}}
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1_750_000_000_000 + batch_id, "conf": _CONF}
        return "\n".join(["v1", *(json.dumps(line, separators=(",", ":")) for line in (metadata, ends))])

    def plan(self, batch_id: int) -> Origin:
        """Write the batch's entry, and that the one before is done."""
        (self.root / "offsets" / str(batch_id)).write_text(self.entry(batch_id))
        if batch_id:
            (self.root / "commits" / str(batch_id - 1)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        planned = newest_uncommitted_entry(str(self.root))
        return Origin(self.query_id, RUN, batch_id, planned, int(time.time() * 1000))


def checkpoint_of(directory: Path, query_id: str, partitions: int) -> PlannedQuery:
    """A checkpoint of a query that has not run yet."""
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": query_id}))
    return PlannedQuery(directory, query_id, partitions)
