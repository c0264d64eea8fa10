"""
What has come of one batch, and how far is its commit?

Runs in the receiver. Invariant: nothing is committed before the commit worker has said which attempts' rows are
wanted, and only exactly these; what was copied before is a guess, which is thrown away where it was wrong.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from pyspark.sql.types import StructType
from sqlalchemy import Connection

from offsets_store.facts import Batch
from offsets_store.offsets import Offsets
from offsets_store.record import Published
from offsets_store.verdict import Verdict
from sink.attempt import Work
from sink.committer import commit_batch
from sink.kept_bytes import IN_MEMORY_BYTES, InFile, OverflowFile
from sink.options import SinkOptions
from sink.parcel import Origin
from sink.planned_batch import planned_batch, staging_table
from sink.publish import BatchRows, publication
from sink.receiver.errors import without_rows
from sink.receiver.promise import Promise
from sink.staged_rows import StagedRows
from sink.type_mapping import encode_columns

_log = logging.getLogger("pgonce.receiver")

# A batch of fewer times inlineBytes is there in whole before its transaction begins.
BEGIN_AT_INLINE_BYTES = 2
# So long may a transaction wait for the next task; it holds the writer's row.
QUIET_SECONDS = 30.0


class PutOffError(Exception):
    """The guess was wrong, or has waited too long: roll back, and begin again when all rows are there."""


@dataclass(eq=False)
class Sending:
    """One task attempt's rows; ``rows`` is None until all are there."""

    partition_id: int
    attempt_id: int
    rows: int | None = None
    broken: bool = False


class Reception:
    """
    The rows of one planned batch, and its transaction.

    :param attempt: the token of the batch's commit; the plan's name.
    :param struct_type: the columns that are written, as the tasks encode them.
    """

    def __init__(self, attempt: UUID, options: SinkOptions, struct_type: StructType) -> None:
        self._attempt = attempt
        self._options = options
        self._columns = encode_columns(struct_type)
        self._changed = threading.Condition()
        self._origin: Origin | None = None
        self._sendings: dict[tuple[int, int], Sending] = {}
        self._arrived: list[tuple[Sending, bytes | InFile]] = []
        self._bytes = 0
        self._overflow = OverflowFile()
        self._writing = threading.Lock()
        self._heard_at = time.monotonic()
        self._promise: Promise | None = None
        self._early: threading.Thread | None = None
        self._outcome: Verdict | Exception | None = None
        self._not_kept: Exception | None = None
        self._is_over = False

    @property
    def writer(self) -> tuple[str, str]:
        """Whose batch it is: a query runs one batch at a time."""
        return self._options.checkpoint_location, self._options.sink_name or self._options.destination.table

    @property
    def has_rows(self) -> bool:
        """Whether tasks have sent something."""
        return bool(self._sendings)

    def open(self, origin: Origin, partition_id: int, attempt_id: int) -> Sending | None:
        """A task attempt begins to send; None where its rows are not wanted."""
        with self._changed:
            self._origin = self._origin or origin
            if self._is_over or self._promise or self._origin != origin:
                return None
            self._heard_at = time.monotonic()
            sending = Sending(partition_id, attempt_id)
            self._sendings[partition_id, attempt_id] = sending
            return sending

    def take(self, sending: Sending, body: bytes) -> None:
        """Keep ``body``; from a certain size on, the batch's transaction begins."""
        try:
            kept = self._kept(body)
        except Exception as error:  # noqa: BLE001 (for whoever commits: this task has nothing to do with it)
            self._not_kept = error
            return
        with self._changed:
            self._arrived.append((sending, kept))
            self._heard_at = time.monotonic()
            is_large = self._bytes >= BEGIN_AT_INLINE_BYTES * self._options.inline_bytes
            if is_large and not (self._early or self._promise or self._is_over):
                self._early = threading.Thread(target=self._commit_early, name="pgonce-early-commit", daemon=True)
                self._early.start()
            self._changed.notify_all()

    def end(self, sending: Sending, rows: int) -> None:
        """All rows of the attempt are there."""
        with self._changed:
            sending.rows = rows

    def close(self, sending: Sending) -> None:
        """The attempt's line is closed: one that has not sent all its rows is broken."""
        with self._changed:
            self._heard_at = time.monotonic()
            sending.broken = sending.rows is None
            self._changed.notify_all()

    def finish(self, promise: Promise) -> Verdict:
        """
        Commit what is promised, or skip it; the verdict.

        :raises ReceiverError: ROWS_NOT_RECEIVED.
        :raises PgonceError: what the commit raises.
        """
        with self._changed:
            self._refuse_missing(promise)
            self._promise = promise
            self._changed.notify_all()
        if self._early is not None:
            self._early.join()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome or self._commit(self._identified())

    def give_up(self) -> None:
        """The batch has failed, or is done: nobody wants its rows."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def look_at_clock(self) -> None:
        """Wake a transaction that waits for the next task: it may have waited too long."""
        with self._changed:
            self._changed.notify_all()

    def _refuse_missing(self, promise: Promise) -> None:
        if self._is_over:
            raise without_rows("The receiver was told that this batch has failed, and keeps its rows no longer.")
        if self._not_kept is not None:
            raise self._not_kept
        for partition_id, (attempt_id, rows) in promise.received.items():
            sending = self._sendings.get((partition_id, attempt_id))
            if sending is None or sending.rows != rows:
                found = "not all of them" if sending else "none of them"
                raise without_rows(
                    f"The task of partition {partition_id} promised {rows} rows, and the receiver has {found}."
                )

    def _kept(self, body: bytes) -> bytes | InFile:
        with self._writing:
            self._bytes += len(body)
            return body if self._bytes <= IN_MEMORY_BYTES else self._overflow.write(memoryview(body))

    def _commit_early(self) -> None:
        outcome: Verdict | Exception | None = None
        try:
            outcome = self._commit(self._identified())
        except PutOffError as why:
            _log.info("a batch is begun again when all its rows are there: %s", why)
        except Exception as error:  # noqa: BLE001 (raised again where the commit worker asks)
            if self._promise is None:
                _log.warning("a batch is begun again when all its rows are there: %s", error)
            else:
                outcome = error
        self._outcome = outcome

    def _identified(self) -> Batch:
        assert self._origin is not None  # noqa: S101 (rows have come, and with them their origin)
        return replace(planned_batch(self._options, self._origin), attempt=self._attempt)

    def _commit(self, batch: Batch) -> Verdict:
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
            published = work.publish(connection, batch, stored)
            return replace(published, transport=self._promised().transport)

        return commit_batch(options.commit, batch, Work(work.name_sink, publish))

    def _promised(self) -> Promise:
        if self._promise is None:
            raise PutOffError("its rows ended before they were promised")
        return self._promise

    def _promised_bodies(self, promise: Promise) -> Iterator[bytes]:
        for sending, kept in self._arrived:
            if promise.attempts.get(sending.partition_id) == sending.attempt_id:
                yield self._read(kept)
        yield from promise.inline

    def _guessed_bodies(self, batch: Batch) -> Iterator[bytes]:
        """The rows of the first attempt of each partition, as they come; an error where others are wanted."""
        guessed: dict[int, Sending] = {}
        for number in itertools.count():
            with self._changed:
                self._changed.wait_for(lambda: self._may_go_on(number, guessed))  # noqa: B023 (called in this turn)
                if number == len(self._arrived):
                    break
                sending, kept = self._arrived[number]
            if not sending.broken and guessed.setdefault(sending.partition_id, sending) is sending:
                yield self._read(kept)
        promise = self._promised()
        if promise.staged or len(promise.received) != len(guessed):
            raise PutOffError("some of its tasks have staged their rows")
        if self._identified() != batch:
            raise PutOffError("the checkpoint says something else of it now")
        yield from promise.inline

    def _may_go_on(self, number: int, guessed: dict[int, Sending]) -> bool:
        """Whether there is another body, or all are there."""
        if self._is_over:
            raise PutOffError("it has failed, or its query runs another one")
        wanted = self._promise.attempts if self._promise else None
        for sending in guessed.values():
            if sending.broken if wanted is None else wanted.get(sending.partition_id) != sending.attempt_id:
                raise PutOffError("a task failed, or ran twice, and rows of the wrong attempt were copied")
        if number < len(self._arrived) or wanted is not None:
            return True
        if self._is_quiet():
            raise PutOffError(f"no task has sent anything for {QUIET_SECONDS:g} s")
        return False

    def _read(self, kept: bytes | InFile) -> bytes:
        return self._overflow.read(kept) if isinstance(kept, InFile) else kept

    def _is_quiet(self) -> bool:
        is_sending = any(sending.rows is None and not sending.broken for sending in self._sendings.values())
        return not is_sending and time.monotonic() - self._heard_at > QUIET_SECONDS
