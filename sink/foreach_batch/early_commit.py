"""
When does a small batch's transaction begin? While Spark's job is still running, if the rows are expected soon.

Runs in the foreachBatch function on the driver. Invariant: an early transaction is one try that writes nothing before
the rows are there; whatever goes wrong in it is met again, and then raised, by a commit that begins once they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from pgonce.offsets_store.commit.retrying import commit_batch, left_unknown
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.foreach_batch.arriving_batches import ArrivingBatches
from pgonce.sink.target.batch_rows import BatchRows

_log = logging.getLogger("pgonce")

# If the rows of a run's last batch came within this time, the next batch's transaction begins while Spark's job runs.
_SOON_SECONDS = 0.25
# It waits for them no longer than this, because it holds the writer's row.
_PATIENCE_SECONDS = 0.5


class _RowsNotYetError(Exception):
    """The rows are not there yet, and a transaction that has begun already waits for them."""


class EarlyCommits:
    """Commits one batch after another; the next one begins early if the last one's rows came soon."""

    def __init__(self, settings: CommitSettings) -> None:
        self._settings = settings
        # The run's id, because a run's first batches are slow, and must not begin early.
        self._run_with_quick_rows: str | None = None

    def commit(
        self, batch: PlannedBatch, rows: BatchRows, arriving: ArrivingBatches, work_of: Callable[[BatchRows], Work]
    ) -> None:
        """
        Publish ``batch``, or skip it.

        :param rows: made from what is ``arriving``.
        :raises PgonceError: what the commit raises.
        :raises PySparkException: what Spark's job raises.
        """
        outcome_unknown = False
        is_early = self._run_with_quick_rows == batch.run_id
        if is_early:
            try:
                # Only a commit whose rows are there waits for Postgres.
                commit_batch(replace(self._settings, retry_timeout=0), batch, work_of(_patient(rows, arriving)))
            except Exception as why:  # noqa: BLE001 (an error that lasts is met again)
                outcome_unknown = left_unknown(why)
                reason = why if isinstance(why, PgonceError) else type(why).__name__
                _log.info("batch %s begins again when its rows are there: %s", batch.batch_id, reason)
            else:
                return
        came_soon = not is_early and arriving.wait(_SOON_SECONDS)
        self._run_with_quick_rows = batch.run_id if came_soon else None
        arriving.wait()
        commit_batch(self._settings, batch, work_of(rows), outcome_unknown=outcome_unknown)


def _patient(rows: BatchRows, arriving: ArrivingBatches) -> BatchRows:
    def bodies() -> Iterable[bytes]:
        if not arriving.wait(_PATIENCE_SECONDS):
            raise _RowsNotYetError
        return rows.bodies()

    since = rows.since
    return replace(rows, bodies=bodies, since=since and (lambda stored: _patient(since(stored), arriving)))
