"""
How far is the commit of a batch whose rows are received?

Runs in the receiver. Invariant: no row is committed before the commit worker has said which attempts' rows are wanted,
and then exactly those are. What was copied before is a guess, and is rolled back if it was wrong.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from pyspark.sql.types import StructType
from sqlalchemy import Connection

from pgonce.offsets_store.commit.retrying import commit_batch, left_unknown
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.record import Published
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.verdict.decide import PUBLISH, Verdict
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch
from pgonce.sink.data_source.receiver.arrived import Arrived, Sending
from pgonce.sink.data_source.receiver.error_messages import in_words, without_rows
from pgonce.sink.data_source.receiver.messages import Promise
from pgonce.sink.encoding.encoded_types import encode_columns
from pgonce.sink.identity.origin import Origin
from pgonce.sink.identity.planned_batch import planned_batch, staging_table
from pgonce.sink.options import SinkOptions
from pgonce.sink.staging.staged_rows import StagedRows
from pgonce.sink.target.batch_rows import BatchRows
from pgonce.sink.target.publish import publication

_log = logging.getLogger("pgonce.receiver")

# A batch smaller than this many times inlineBytes has arrived in whole before its transaction begins.
BEGIN_AT_INLINE_BYTES = 2
# How long a transaction may wait for the next rows: it holds the writer's row.
QUIET_SECONDS = 30.0
# How long a batch is kept after the last sign of it: its last task may be a slow one.
FORGOTTEN_SECONDS = 6 * 3600.0


class PutOffError(Exception):
    """The guess was wrong, or has waited too long: roll back, and begin again when all rows are there."""


class Reception:
    """
    The rows of one planned batch, and its transaction.

    :param token: the token of the batch's commit.
    :param struct_type: the columns that are written, as the tasks encode them.
    """

    def __init__(self, token: UUID, options: SinkOptions, struct_type: StructType) -> None:
        self._token = token
        self._options = options
        self._columns = encode_columns(struct_type)
        self._changed = threading.Condition()
        self._arrived = Arrived()
        self._origin: Origin | None = None
        self._promise: Promise | None = None
        self._early: threading.Thread | None = None
        self._early_outcome: tuple[PlannedBatch, Verdict] | None = None
        self._outcome_unknown = False
        self._is_over = False

    @property
    def writer(self) -> tuple[str, str]:
        """The writer whose batch this is: a query runs one batch at a time."""
        return self._options.checkpoint_location, self._options.sink_label

    def may_be_finished(self) -> bool:
        """Whether there are rows here that somebody may still want."""
        silent = time.monotonic() - self._arrived.heard_at
        return not self._is_over and self._arrived.has_unbroken() and silent < FORGOTTEN_SECONDS

    def open(self, origin: Origin, partition_id: int, attempt_id: int) -> Sending | None:
        """A task attempt begins to send; None if its rows are not wanted."""
        with self._changed:
            self._origin = self._origin or origin
            if self._is_over or self._promise or self._origin != origin:
                return None
            return self._arrived.open(partition_id, attempt_id)

    def take(self, sending: Sending, body: bytes) -> bool:
        """Keep ``body``, unless the batch is over; once there is enough, the batch's transaction begins."""
        if self._is_over:
            return False
        self._arrived.add(sending, body)
        with self._changed:
            if self._early is None and self._may_begin_early():
                early = threading.Thread(target=self._commit_early, name="pgonce-early-commit", daemon=True)
                early.start()
                self._early = early
            self._changed.notify_all()
        return True

    def end(self, sending: Sending, rows: int) -> None:
        """All rows of the attempt are there."""
        with self._changed:
            sending.rows = rows

    def close(self, sending: Sending) -> None:
        """The attempt's line is closed."""
        with self._changed:
            self._arrived.close(sending)
            self._changed.notify_all()

    def finish(self, origin: Origin, promise: Promise) -> Verdict:
        """
        Commit what is promised, or skip it, and return the verdict.

        :param origin: the origin of the batch that the commit worker means.
        :raises ReceiverError: ROWS_NOT_RECEIVED.
        :raises PgonceError: what the commit raises.
        """
        with self._changed:
            if self._is_over:
                raise without_rows("The receiver was told that this batch has failed, and keeps its rows no longer.")
            self._arrived.refuse_missing(promise)
            if self._origin != origin:
                raise without_rows("The tasks that have sent rows belong to another batch than the one to commit.")
            self._promise = promise
            self._changed.notify_all()
        if self._early is not None:
            self._early.join()
        try:
            if self._early_outcome and self._early_outcome[1] in PUBLISH:
                return self._early_outcome[1]
            batch = self._identified()
            # What was skipped before the promise came may be another batch by now.
            if self._early_outcome and self._early_outcome[0] == batch:
                return self._early_outcome[1]
            return self._commit(batch, self._options.commit)
        except PutOffError as why:
            raise without_rows(f"The receiver was told to leave this batch alone: {why}.") from None

    def give_up(self) -> None:
        """The batch has failed, or is done: nobody needs its rows any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def look_at_clock(self) -> None:
        """Wake a transaction that waits for the next rows: it may have waited too long."""
        with self._changed:
            self._changed.notify_all()

    def _may_begin_early(self) -> bool:
        # A writer's first batch keeps other new writers of its sink waiting.
        adopted = self._options.commit.remedies.adopt_checkpoint
        is_first = self._origin is None or self._origin.batch_id in (0, adopted)
        is_large = self._arrived.size >= BEGIN_AT_INLINE_BYTES * self._options.inline_bytes
        return is_large and not (is_first or self._promise or self._is_over)

    def _commit_early(self) -> None:
        try:
            batch = self._identified()
            # Patience is for promised rows: a guess should not hold up another transaction, or end it.
            self._early_outcome = batch, self._commit(batch, replace(self._options.commit, retry_timeout=0))
        except PutOffError as why:
            _log.info("a batch begins again when all its rows are there: %s", why)
        except Exception as error:  # noqa: BLE001 (an error that lasts is met again)
            self._outcome_unknown = left_unknown(error)
            _log.warning("a batch begins again when all its rows are there: %s", in_words(error))

    def _identified(self) -> PlannedBatch:
        assert self._origin is not None  # noqa: S101 (rows have come, and with them their origin)
        return replace(planned_batch(self._options, self._origin), attempt=self._token)

    def _commit(self, batch: PlannedBatch, settings: CommitSettings) -> Verdict:
        options, promise = self._options, self._promise
        staged = None
        if promise and promise.staged and self._origin:
            staged = StagedRows(staging_table(options, self._origin), promise.staged)
        rows = BatchRows(
            columns=self._columns,
            count=lambda: self._promised().rows,
            bodies=lambda: self._promised_bodies(promise) if promise else self._guessed_bodies(batch),
            staged=staged,
        )
        work = publication(options.sink_name, options.destination, rows, "received")

        def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
            self._refuse_over()
            published = work.publish(connection, batch, stored)
            self._refuse_over()
            return replace(published, transport=self._promised().transport)

        return commit_batch(settings, batch, Work(work.name_sink, publish), outcome_unknown=self._outcome_unknown)

    def _promised(self) -> Promise:
        if self._promise is None:
            raise PutOffError("its rows ended before they were promised")
        return self._promise

    def _promised_bodies(self, promise: Promise) -> Iterator[bytes]:
        for number in range(len(self._arrived)):
            sending = self._arrived.sender(number)
            if promise.attempts.get(sending.partition_id) == sending.attempt_id:
                yield self._arrived.body(number)
        yield from promise.inline

    def _guessed_bodies(self, batch: PlannedBatch) -> Iterator[bytes]:
        """The rows of the first attempt of each partition, as they arrive; an error if others are wanted."""
        guessed: dict[int, Sending] = {}
        for number in itertools.count():
            with self._changed:
                self._changed.wait_for(lambda: self._may_go_on(number, guessed))  # noqa: B023 (called in this turn)
                if number == len(self._arrived):
                    break
                sending = self._arrived.sender(number)
            if not sending.broken and guessed.setdefault(sending.partition_id, sending) is sending:
                yield self._arrived.body(number)
        promise = self._promised()
        if promise.staged or len(promise.received) != len(guessed):
            raise PutOffError("some of its tasks have staged their rows")
        if self._identified() != batch:
            raise PutOffError("the checkpoint says something else of it now")
        yield from promise.inline

    def _may_go_on(self, number: int, guessed: dict[int, Sending]) -> bool:
        """Whether there is another body, or all are there."""
        self._refuse_over()
        wanted = self._promise.attempts if self._promise else None
        for sending in guessed.values():
            if sending.broken if wanted is None else wanted.get(sending.partition_id) != sending.attempt_id:
                raise PutOffError("a task failed, or ran twice, and rows of the wrong attempt were copied")
        if number < len(self._arrived) or wanted is not None:
            return True
        if time.monotonic() - self._arrived.heard_at > QUIET_SECONDS:
            raise PutOffError(f"no task has sent anything for {QUIET_SECONDS:g} s")
        return False

    def _refuse_over(self) -> None:
        if self._is_over:
            raise PutOffError("it has failed, or its query runs another one")
