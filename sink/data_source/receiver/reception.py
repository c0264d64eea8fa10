"""
The commit of a batch whose rows are received, from its first row to its verdict.

Runs in the receiver. Invariant: no row is committed before the commit worker has said which attempts' rows are wanted,
and then exactly those are. What was copied before is a guess, and is rolled back if it was wrong.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection

from pgonce.offsets_store.commit.retrying import EarlyTry
from pgonce.offsets_store.commit.work import NotNowError, Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.verdict.decide import PUBLISH, Verdict
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ...encoding.encoded_types import encoded_columns
from ...identity.from_checkpoint import Origin
from ...identity.planned_batch import planned_batch, staging_table
from ...positions import EncodedRows
from ...writing.rows import Rows
from ...writing.write_batch import work_into
from ..promise import Promise, promised_rows
from .arrived import Arrived, guessed_rows
from .messages import PlannedReception, in_words, without_rows

_log = logging.getLogger("pgonce.receiver")

# A batch smaller than this many times what has a task call has arrived in whole before its transaction begins.
BEGIN_AT_CALL_BYTES = 2


class Reception:
    """
    The rows of one planned batch, and its transaction.

    :param path: the file that keeps the rows.
    :param may_guess: whether its transaction may begin before all tasks have ended.
    """

    def __init__(self, plan: PlannedReception, path: Path, *, may_guess: bool = True) -> None:
        self.token, self._options, self._rooms = plan.token, plan.options, plan.rooms
        self.arrived = Arrived(path)
        self._columns = encoded_columns(plan.struct_type)
        # A batch whose rows carry their positions is known once it is known how far they reach.
        self._may_guess = may_guess and plan.options.positions is None
        self._early: threading.Thread | None = None
        self._early_try = EarlyTry(plan.options.commit)

    def take(self, partition_id: int, attempt_id: int, rows: EncodedRows) -> bool:
        """Keep these rows, and say whether they are kept; once there is enough, the batch's transaction begins."""
        is_kept = self.arrived.add(partition_id, attempt_id, rows)
        with self.arrived.changed:
            if is_kept and self._early is None and self._may_begin_early():
                early = threading.Thread(target=self._commit_early, name="pgonce-early-commit", daemon=True)
                early.start()
                self._early = early
        return is_kept

    def finish(self, origin: Origin, promise: Promise) -> Verdict:
        """
        Commit what is promised, or skip it, and return the verdict.

        :param origin: the origin of the batch that the commit worker means.
        :raises ReceiverError: RECEIVER_LOST.
        :raises PgonceError: what the commit raises.
        """
        self.arrived.take_promise(origin, promise)
        if self._early is not None:
            self._early.join()
        # What was skipped before the promise came may be another batch by now.
        if self._early_try.verdict in PUBLISH:
            return self._early_try.verdict
        try:
            planned = self._identified()
            return self._early_try.commit(planned, self._work(planned))
        except NotNowError as why:
            raise without_rows(f"The receiver has stopped working on this batch: {why}.") from None

    def _may_begin_early(self) -> bool:
        # A writer's first batch keeps other new writers of its sink waiting.
        adopted, origin = self._options.commit.remedies.adopt_checkpoint, self.arrived.origin
        is_first = origin is None or origin.batch_id in (0, adopted)
        is_large = self.arrived.size >= BEGIN_AT_CALL_BYTES * self._options.call_bytes
        return self._may_guess and is_large and not (is_first or self.arrived.promise or self.arrived.is_over)

    def _commit_early(self) -> None:
        try:
            planned = self._identified()
            work = self._work(planned)
        except Exception as error:  # noqa: BLE001 (an error that lasts is met again)
            _log.warning("a batch is not begun early, but when all its rows have arrived: %s", in_words(error))
        else:
            self._early_try.begin(planned, work)

    def _identified(self) -> PlannedBatch:
        assert self.arrived.origin is not None  # noqa: S101 (rows have come, and with them their origin)
        reach = self.arrived.promised().reach if self._options.positions else None
        return planned_batch(self._options, self.arrived.origin, reach, self.token)

    def _work(self, planned: PlannedBatch) -> Work[Batch]:
        options, arrived = self._options, self.arrived
        work: Work[Batch] = work_into(options.sink_name, options.destination, self._rows(planned), rooms=self._rooms)

        def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
            arrived.refuse_over()
            published = work.publish(connection, batch, stored)
            arrived.refuse_over()
            # For a guess it is not known yet how its rows came.
            return replace(published, transport=arrived.promised().transport)

        return replace(work, publish=publish)

    def _rows(self, planned: PlannedBatch) -> Rows:
        promise, origin = self.arrived.promise, self.arrived.origin
        if promise is None:
            return guessed_rows(self._columns, self.arrived, lambda: self._identified() == planned)
        assert origin is not None  # noqa: S101 (as above)
        table, received = staging_table(self._options, origin), self.arrived.received(promise)
        return promised_rows(self._columns, self._options.positions, promise, received, table)
