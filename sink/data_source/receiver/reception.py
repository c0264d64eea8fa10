"""
The commit of a batch whose rows are received, from its first row to its verdict.

Runs in the receiver. Invariant: no row is committed before the commit worker has said which attempts' rows are wanted,
and then exactly those are. What was copied before is a guess, and is rolled back if it was wrong.
"""

from __future__ import annotations

import logging
import threading
import time
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
from ...options.sink_options import SinkOptions
from ...positions import EncodedRows
from ...writing.rows import Rows
from ...writing.write_batch import work_into
from ..promise import Promise, promised_rows
from .arrived import Arrived, Sending, guessed_rows
from .messages import PlannedReception, in_words, without_rows

_log = logging.getLogger("pgonce.receiver")

# A batch smaller than this many times what has a task call has arrived in whole before its transaction begins.
BEGIN_AT_CALL_BYTES = 2
# How long a batch is kept after the last sign of it: its last task may be a slow one.
FORGOTTEN_SECONDS = 6 * 3600.0
# How long it is kept if its tasks have stopped sending and the planner is gone, so that no message says if it failed.
UNTOLD_SECONDS = 600.0


def writer_of(options: SinkOptions) -> tuple[str, str]:
    """What tells writers apart here: a query runs one batch at a time."""
    return options.checkpoint_location, options.sink_label


class Reception:
    """
    The rows of one planned batch, and its transaction.

    :param token: the token of the batch's commit.
    :param struct_type: the columns that are written, as the tasks encode them.
    :param path: the file that keeps the rows.
    :param may_guess: whether its transaction may begin before all tasks have ended.
    """

    def __init__(self, plan: PlannedReception, path: Path, *, may_guess: bool = True) -> None:
        self._token, self._options, self._rooms = plan.token, plan.options, plan.rooms
        self._columns = encoded_columns(plan.struct_type)
        self._arrived = Arrived(path)
        self._may_guess = may_guess
        self._is_full = False
        self._began_at: float | None = None
        self._promised_at: float | None = None
        self._origin: Origin | None = None
        self._early: threading.Thread | None = None
        self._early_try = EarlyTry(plan.options.commit)
        self._tried: PlannedBatch | None = None

    @property
    def is_over(self) -> bool:
        """Whether the batch has failed, or is done, or is committed without this process."""
        return self._arrived.is_over

    @property
    def has_rows(self) -> bool:
        """Whether rows are kept."""
        return len(self._arrived) > 0

    @property
    def writer(self) -> tuple[str, str]:
        """The writer whose batch this is."""
        return writer_of(self._options)

    @property
    def lasted(self) -> float:
        """For how many seconds rows have come: until they were promised, or until now."""
        ended = self._promised_at or time.monotonic()
        return 0.0 if self._began_at is None else ended - self._began_at

    def may_be_finished(self, *, is_alone: bool) -> bool:
        """
        Whether there are rows here that a commit may still want.

        :param is_alone: whether the planner's worker is gone, so that nothing tells if the batch has failed. A commit
            that comes later reads what is kept without this process.
        """
        silent = time.monotonic() - self._arrived.heard_at
        longest = FORGOTTEN_SECONDS if self._arrived.is_waited_for() or not is_alone else UNTOLD_SECONDS
        return not self._arrived.is_over and self._arrived.has_promisable() and silent < longest

    def open(self, origin: Origin, partition_id: int, attempt_id: int) -> Sending | None:
        """A task attempt begins to send; None if its rows are not wanted."""
        with self._arrived.changed:
            self._origin = self._origin or origin
            if self._arrived.is_over or self._arrived.promise or self._is_full or self._origin != origin:
                return None
            self._began_at = self._began_at or time.monotonic()
            return self._arrived.open(partition_id, attempt_id)

    def take(self, sending: Sending, rows: EncodedRows) -> bool:
        """
        Keep these rows, and say whether they are kept; once there is enough, the batch's transaction begins.

        They are not kept if the batch is over, or if there is no room for them. Then their task stages them.
        """
        if self._arrived.is_over or self._is_full:
            return False
        try:
            self._arrived.add(sending, rows)
        except OSError as error:
            self._is_full = True
            _log.warning("the rest of a batch is staged, because the driver cannot keep more rows: %s", error)
            return False
        with self._arrived.changed:
            if self._early is None and self._may_begin_early():
                early = threading.Thread(target=self._commit_early, name="pgonce-early-commit", daemon=True)
                early.start()
                self._early = early
            self._arrived.changed.notify_all()
        return True

    def end(self, sending: Sending, rows: int) -> None:
        """The attempt has sent all its rows, so many."""
        with self._arrived.changed:
            sending.is_whole = sending.rows == rows

    def close(self, sending: Sending) -> None:
        """The attempt's line is closed."""
        with self._arrived.changed:
            self._arrived.close(sending)
            self._arrived.changed.notify_all()

    def finish(self, origin: Origin, promise: Promise) -> Verdict:
        """
        Commit what is promised, or skip it, and return the verdict.

        :param origin: the origin of the batch that the commit worker means.
        :raises ReceiverError: RECEIVER_LOST.
        :raises PgonceError: what the commit raises.
        """
        with self._arrived.changed:
            if self._arrived.is_over:
                raise without_rows(
                    "The receiver has dropped the rows of this batch: it was told that the batch has failed."
                )
            # Asked here for its refusal alone: what was promised must be there before the promise counts.
            self._arrived.received(promise)
            if self._origin != origin:
                raise without_rows("The receiver has rows of another batch, not of the one to commit.")
            self._arrived.promise = promise
            self._promised_at = time.monotonic()
            self._arrived.changed.notify_all()
        if self._early is not None:
            self._early.join()
        try:
            verdict = self._early_try.verdict
            if verdict in PUBLISH:
                return verdict
            planned = self._identified()
            # What was skipped before the promise came may be another batch by now.
            if verdict is not None and self._tried == planned:
                return verdict
            return self._early_try.commit(planned, self._work(planned))
        except NotNowError as why:
            raise without_rows(f"The receiver has stopped working on this batch: {why}.") from None

    def give_up(self) -> None:
        """The batch has failed, or is done, or is committed without this process."""
        with self._arrived.changed:
            self._arrived.is_over = True
            self._arrived.changed.notify_all()

    def forget(self) -> None:
        """The rows are no longer needed."""
        self.give_up()
        self._arrived.remove()

    def look_at_clock(self) -> None:
        """Wake a transaction that waits for the next rows: it may have waited too long."""
        with self._arrived.changed:
            self._arrived.changed.notify_all()

    def _may_begin_early(self) -> bool:
        # A writer's first batch keeps other new writers of its sink waiting.
        adopted = self._options.commit.remedies.adopt_checkpoint
        is_first = self._origin is None or self._origin.batch_id in (0, adopted)
        is_large = self._arrived.size >= BEGIN_AT_CALL_BYTES * self._options.call_bytes
        # A batch whose rows carry their positions is known once it is known how far they reach.
        may_guess = self._may_guess and self._options.positions is None
        return may_guess and is_large and not (is_first or self._arrived.promise or self._arrived.is_over)

    def _commit_early(self) -> None:
        try:
            self._tried = self._identified()
        except Exception as error:  # noqa: BLE001 (an error that lasts is met again)
            _log.warning("a batch is not begun early, but when all its rows have arrived: %s", in_words(error))
        else:
            self._early_try.begin(self._tried, self._work(self._tried))

    def _identified(self) -> PlannedBatch:
        assert self._origin is not None  # noqa: S101 (rows have come, and with them their origin)
        reach = self._arrived.promised().reach if self._options.positions else None
        return planned_batch(self._options, self._origin, reach, self._token)

    def _work(self, planned: PlannedBatch) -> Work[Batch]:
        options = self._options
        work: Work[Batch] = work_into(options.sink_name, options.destination, self._rows(planned), rooms=self._rooms)

        def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
            self._arrived.refuse_over()
            published = work.publish(connection, batch, stored)
            self._arrived.refuse_over()
            # For a guess it is not known yet how its rows came.
            return replace(published, transport=self._arrived.promised().transport)

        return replace(work, publish=publish)

    def _rows(self, planned: PlannedBatch) -> Rows:
        promise = self._arrived.promise
        if promise is None:
            return guessed_rows(self._columns, self._arrived, lambda: self._identified() == planned)
        assert self._origin is not None  # noqa: S101 (as above)
        table = staging_table(self._options, self._origin)
        return promised_rows(self._columns, self._options.positions, promise, self._arrived.received(promise), table)
