"""
Which of a batch's rows have arrived, from which attempts of its tasks, and which of them are wanted?

Runs in the receiver. Invariant: a body is kept until the batch is over, and can be read as often as needed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pgonce.offsets_store.commit.early_try import NotNowError

from ...spool import Spool
from ..carrier import Promise
from .error_messages import without_rows

# What has arrived is kept for a second try: up to this size in memory, the rest in a file.
IN_MEMORY_BYTES = 32 * 1024 * 1024


@dataclass(eq=False)
class Sending:
    """One task attempt's rows; ``rows`` is None until all are there."""

    partition_id: int
    attempt_id: int
    rows: int | None = None
    broken: bool = False


class Arrived:
    """
    The bodies of a batch in the order in which they came, each with its :class:`Sending`.

    ``promise`` is None until the commit worker has said which rows are wanted; ``is_over`` once the batch has failed,
    or is done. Every change is made under ``changed``, which then wakes those who wait for it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.heard_at = time.monotonic()
        self.promise: Promise | None = None
        self.is_over = False
        self._sendings: dict[tuple[int, int], Sending] = {}
        self._bodies: Spool[bytes] = Spool(IN_MEMORY_BYTES, memoryview, bytes)
        self._senders: list[Sending] = []
        self._keeping = threading.Lock()
        self._spooling_error: Exception | None = None

    def __len__(self) -> int:
        return len(self._senders)

    @property
    def size(self) -> int:
        """How many bytes have arrived."""
        return self._bodies.size

    def sender(self, number: int) -> Sending:
        """Who sent a body."""
        return self._senders[number]

    def body(self, number: int) -> bytes:
        """The body itself."""
        return self._bodies[number]

    def open(self, partition_id: int, attempt_id: int) -> Sending:
        """A task attempt begins to send."""
        self.heard_at = time.monotonic()
        sending = Sending(partition_id, attempt_id)
        self._sendings[partition_id, attempt_id] = sending
        return sending

    def add(self, sending: Sending, body: bytes) -> None:
        """Keep a body. An error here is raised at the commit, because the task cannot do anything about it."""
        self.heard_at = time.monotonic()
        # A lock of its own: a file may be slow, and other tasks begin and end in the meantime.
        with self._keeping:
            try:
                self._bodies.add(body, len(body))
                self._senders.append(sending)
            except Exception as error:  # noqa: BLE001 (see above)
                self._spooling_error = error

    def close(self, sending: Sending) -> None:
        """The attempt's line is closed: one that has not sent all its rows is broken."""
        self.heard_at = time.monotonic()
        sending.broken = sending.rows is None

    def has_unbroken(self) -> bool:
        """Whether there is an attempt whose rows may be promised."""
        return any(not sending.broken for sending in list(self._sendings.values()))

    def promised(self) -> Promise:
        """
        What the commit worker has said.

        :raises NotNowError: if it has said nothing yet.
        """
        if self.promise is None:
            raise NotNowError("its rows ended before they were promised")
        return self.promise

    def refuse_over(self) -> None:
        """:raises NotNowError: if the batch is over."""
        if self.is_over:
            raise NotNowError("it has failed, or its query runs another one")

    def refuse_missing(self, promise: Promise) -> None:
        """
        Compare what has arrived with what is promised.

        :raises ReceiverError: ROWS_NOT_RECEIVED.
        :raises CommitError: ROWS_NOT_KEPT, or any other error that prevented keeping them.
        """
        if self._spooling_error is not None:
            raise self._spooling_error
        for partition_id, (attempt_id, rows) in promise.received.items():
            sending = self._sendings.get((partition_id, attempt_id))
            if sending is None or sending.rows != rows:
                found = "not all of them" if sending else "none of them"
                raise without_rows(
                    f"The task of partition {partition_id} promised {rows} rows, and the receiver has {found}."
                )
