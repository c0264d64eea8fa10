"""
When is a frame's batch committed? Once enough of its rows are there to begin with.

Runs in the foreachBatch function on the driver. Invariant: no transaction is open while Spark's job makes the first
rows; a writer's lock is held no longer than writing takes.
"""

from __future__ import annotations

from collections.abc import Callable

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..writing.rows import Rows
from .arriving_batches import ArrivingBatches

WorkOf = Callable[[Rows], Work]


class FrameCommits:
    """Commits one batch after another, as ``settings`` say."""

    def __init__(self, settings: CommitSettings) -> None:
        self.settings = settings

    def commit(self, batch: PlannedBatch, rows: Rows, arriving: ArrivingBatches, work_of: WorkOf) -> None:
        """
        Publish ``batch``, or skip it.

        :param rows: made from what is ``arriving``.
        :raises PgonceError: what the commit raises.
        :raises PySparkException: what Spark's job raises.
        """
        arriving.wait()
        commit_batch(self.settings, batch, work_of(rows))
