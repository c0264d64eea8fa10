"""
Commit a frame's batch once enough of its rows are there, or while Spark's job still runs if they are expected soon.

Runs in the foreachBatch function on the driver. Invariant: an early transaction is one try that writes nothing before
the rows are there; if it fails, a commit that begins after they are there meets the same error, and raises it.
Otherwise no transaction is open while Spark's job makes the first rows: a writer's lock is held no longer than writing
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pgonce.offsets_store.commit.retrying import EarlyTry, NotNowError, commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ..writing.rows import Rows
from .arriving_batches import ArrivingBatches

# If the rows of a run's last batch came within this time, the next batch's transaction begins while Spark's job runs.
_SOON_SECONDS = 0.25
# It waits for them no longer than this, because it holds the writer's row.
PATIENCE_SECONDS = 0.5


WorkOf = Callable[[Rows], Work[Batch]]


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


class EarlyCommits(FrameCommits):
    """Commits one batch after another; the next one begins early if the last one's rows came soon."""

    def __init__(self, settings: CommitSettings) -> None:
        super().__init__(settings)
        # The run's id, because a run's first batches are slow, and must not begin early.
        self._run_with_quick_rows: str | None = None

    def commit(self, batch: PlannedBatch, rows: Rows, arriving: ArrivingBatches, work_of: WorkOf) -> None:
        """As :meth:`FrameCommits.commit`, and while Spark's job runs, if the rows are expected soon."""
        early = EarlyTry(self.settings)
        is_early = self._run_with_quick_rows == batch.run_id
        if is_early:
            early.begin(batch, work_of(_waited_for(rows, arriving)))
            if early.verdict is not None:
                return
        came_soon = not is_early and arriving.wait(_SOON_SECONDS)
        self._run_with_quick_rows = batch.run_id if came_soon else None
        arriving.wait()
        early.commit(batch, work_of(rows))


def _waited_for(rows: Rows, arriving: ArrivingBatches) -> Rows:
    """The same rows, but with a limit on the wait for them."""
    since = rows.since

    def bodies() -> Iterable[bytes]:
        if not arriving.wait(PATIENCE_SECONDS):
            raise NotNowError(f"its rows took longer than {PATIENCE_SECONDS:g} s")
        return rows.bodies()

    return replace(rows, bodies=bodies, since=since and (lambda stored: _waited_for(since(stored), arriving)))
