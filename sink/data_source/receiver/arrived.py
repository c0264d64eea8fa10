"""
Which of a batch's rows have arrived, and from which attempts of its tasks?

Runs in the receiver. Invariant: a body is kept until the batch is over, and can be read as often as needed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pgonce.sink.data_source.receiver.error_messages import without_rows
from pgonce.sink.data_source.receiver.messages import Promise
from pgonce.sink.spool import InFile, OverflowFile

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
    """The bodies of a batch in the order in which they came, each with its :class:`Sending`."""

    def __init__(self) -> None:
        self.size = 0
        self.heard_at = time.monotonic()
        self._sendings: dict[tuple[int, int], Sending] = {}
        self._bodies: list[tuple[Sending, bytes | InFile]] = []
        self._overflow = OverflowFile()
        self._keeping = threading.Lock()
        self._not_kept: Exception | None = None

    def __len__(self) -> int:
        return len(self._bodies)

    def sender(self, number: int) -> Sending:
        """Who sent a body."""
        return self._bodies[number][0]

    def body(self, number: int) -> bytes:
        """The body itself."""
        kept = self._bodies[number][1]
        return self._overflow.read(kept) if isinstance(kept, InFile) else kept

    def open(self, partition_id: int, attempt_id: int) -> Sending:
        """A task attempt begins to send."""
        self.heard_at = time.monotonic()
        sending = Sending(partition_id, attempt_id)
        self._sendings[partition_id, attempt_id] = sending
        return sending

    def add(self, sending: Sending, body: bytes) -> None:
        """Keep a body. An error here is raised at the commit, because the task cannot do anything about it."""
        self.heard_at = time.monotonic()
        with self._keeping:
            try:
                self.size += len(body)
                kept = body if self.size <= IN_MEMORY_BYTES else self._overflow.write(memoryview(body))
                self._bodies.append((sending, kept))
            except Exception as error:  # noqa: BLE001 (see above)
                self._not_kept = error

    def close(self, sending: Sending) -> None:
        """The attempt's line is closed: one that has not sent all its rows is broken."""
        self.heard_at = time.monotonic()
        sending.broken = sending.rows is None

    def has_unbroken(self) -> bool:
        """Whether there is an attempt whose rows may be promised."""
        return any(not sending.broken for sending in list(self._sendings.values()))

    def refuse_missing(self, promise: Promise) -> None:
        """
        Compare what has arrived with what is promised.

        :raises ReceiverError: ROWS_NOT_RECEIVED.
        :raises CommitError: ROWS_NOT_KEPT, or any other error that prevented keeping them.
        """
        if self._not_kept is not None:
            raise self._not_kept
        for partition_id, (attempt_id, rows) in promise.received.items():
            sending = self._sendings.get((partition_id, attempt_id))
            if sending is None or sending.rows != rows:
                found = "not all of them" if sending else "none of them"
                raise without_rows(
                    f"The task of partition {partition_id} promised {rows} rows, and the receiver has {found}."
                )
