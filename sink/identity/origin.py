"""
Which batch does a task's work belong to, as far as its planner knew?

Made in the planner's worker, and sent with the rows. Invariant: it is a plain value, which both ends compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgonce.offsets_store.checkpoint.log_entries import OffsetLog, OffsetLogEntry


@dataclass(frozen=True)
class Origin:
    """
    The batch a parcel belongs to.

    ``planned`` is the newest entry in ``offsets/`` as the planner saw it; None if the checkpoint is not read
    (offsetsFrom=listener), or if the entry may be written after the planning (asynchronous progress tracking).
    ``planned_by_ms`` is when the planner's worker ran, by the same clock that Spark uses to date entries.
    """

    query_id: str
    run_id: str
    batch_id: int
    planned: OffsetLogEntry | None
    planned_by_ms: int | None = None

    def may_have_planned(self, entry: OffsetLog) -> bool:
        """Whether an entry was there when this batch was planned: one that was planned later belongs to another run."""
        planned_at = entry.metadata.get("batchTimestampMs")
        return self.planned_by_ms is None or not isinstance(planned_at, int) or planned_at <= self.planned_by_ms
