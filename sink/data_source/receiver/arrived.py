"""
The rows of a batch that have arrived, those of them that are promised, and the guess that is written until then.

Runs in the receiver. Invariant: a body is kept until the batch is over, and can be read as often as needed, by the
commit worker too if this process is gone. Of each partition, the first rows of one attempt are written, as many as are
promised; a guess that turns out to be wrong fails before it could be committed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pgonce.offsets_store.commit.work import NotNowError

from ...encoding.encoded_types import EncodedColumn
from ...positions import EncodedRows
from ...writing.rows import Rows
from ..promise import Promise
from .kept_rows import KeptBody, KeptRows, of_promise
from .messages import without_rows

# How long a transaction may wait for the next rows: it holds the writer's row.
LONGEST_SILENCE_SECONDS = 30.0
# How long it may stand without a promise. Rows of upserts are locked meanwhile, and VACUUM waits everywhere.
LONGEST_GUESS_SECONDS = 60.0


@dataclass(eq=False)
class Sending:
    """
    One task attempt's rows.

    ``rows`` says how many of them are kept; ``broken`` that the line has ended too early.
    """

    partition_id: int
    attempt_id: int
    rows: int = 0
    is_whole: bool = False
    broken: bool = False


class Arrived:
    """
    The bodies of a batch in the order in which they came, each with its :class:`Sending`.

    ``promise`` is None until the commit worker has said which rows are wanted; ``is_over`` once the batch has failed,
    or is done. Every change is made under ``changed``, which then wakes those who wait for it.
    """

    def __init__(self, path: Path) -> None:
        self.changed = threading.Condition()
        self.heard_at = time.monotonic()
        self.promise: Promise | None = None
        self.is_over = False
        self._sendings: dict[tuple[int, int], Sending] = {}
        self._file = KeptRows(path)
        self._bodies: list[KeptBody] = []
        self._keeping = threading.Lock()

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def size(self) -> int:
        """How many bytes have arrived."""
        return self._file.size

    def sender(self, number: int) -> Sending:
        """Who sent a body."""
        body = self._bodies[number]
        return self._sendings[body.partition_id, body.attempt_id]

    def rows(self, number: int) -> int:
        """How many rows a body has."""
        return self._bodies[number].count

    def body(self, number: int) -> bytes:
        """The body itself."""
        return self._file.read(self._bodies[number]).body

    def open(self, partition_id: int, attempt_id: int) -> Sending:
        """A task attempt begins to send."""
        self.heard_at = time.monotonic()
        sending = Sending(partition_id, attempt_id)
        self._sendings[partition_id, attempt_id] = sending
        return sending

    def add(self, sending: Sending, rows: EncodedRows) -> None:
        """
        Keep these rows.

        :raises OSError: if there is no room for it. What was kept before stays.
        """
        self.heard_at = time.monotonic()
        # A lock of its own: a file may be slow, and other tasks begin and end in the meantime.
        with self._keeping:
            self._bodies.append(self._file.add(sending.partition_id, sending.attempt_id, rows))
            sending.rows += rows.count

    def close(self, sending: Sending) -> None:
        """The attempt's line is closed: one that has not sent all its rows is broken."""
        self.heard_at = time.monotonic()
        sending.broken = not sending.is_whole

    def remove(self) -> None:
        """Delete what was kept."""
        self._file.remove()

    def has_promisable(self) -> bool:
        """Whether there is an attempt whose rows may be promised."""
        return any(sending.rows or not sending.broken for sending in list(self._sendings.values()))

    def is_waited_for(self) -> bool:
        """Whether rows still come, or are being committed."""
        return self.promise is not None or not all(one.is_whole or one.broken for one in list(self._sendings.values()))

    def promised(self) -> Promise:
        """
        What the commit worker has said.

        :raises NotNowError: if it has said nothing yet.
        """
        if self.promise is None:
            raise NotNowError("its rows ended before the commit said how many there are")
        return self.promise

    def refuse_over(self) -> None:
        """:raises NotNowError: if the batch is over."""
        if self.is_over:
            raise NotNowError("it has failed, or its query now runs another batch")

    def received(self, promise: Promise) -> Callable[[], Iterator[EncodedRows]]:
        """
        What reads the promised rows, of those that are kept.

        :raises ReceiverError: RECEIVER_LOST, if they are not all there.
        """
        try:
            bodies = of_promise(promise.received, tuple(self._bodies))
        except EOFError as error:
            raise without_rows(f"The receiver has not kept what it should have: {error}.") from None
        return lambda: map(self._file.read, bodies)


def guessed_rows(columns: tuple[EncodedColumn, ...], arrived: Arrived, is_same_batch: Callable[[], bool]) -> Rows:
    """
    The rows of the first attempt of each partition, as they arrive, until others turn out to be wanted.

    How many they are, how they came, and which could not be encoded is known once they are promised. Staged ones are
    not among them: they are not known before, and then the guess is wrong.

    :param is_same_batch: whether the checkpoint still describes the batch as it did when it began.
    """
    return Rows(
        columns,
        lambda: arrived.promised().rows,
        _Guess(arrived, is_same_batch).bodies,
        unfit=lambda: arrived.promised().unfit,
    )


@dataclass(frozen=True)
class _Guess:
    arrived: Arrived
    is_same_batch: Callable[[], bool]
    began_at: float = field(default_factory=time.monotonic)

    def bodies(self) -> Iterator[bytes]:
        """The rows as they arrive, and once they are promised, those that came inline."""
        guessed: dict[int, Sending] = {}
        copied: dict[int, tuple[int, int]] = {}
        for number in itertools.count():
            with self.arrived.changed:
                self.arrived.changed.wait_for(lambda: self._may_go_on(number, guessed))  # noqa: B023 (called in this turn)
                if number == len(self.arrived):
                    break
                sending = self.arrived.sender(number)
            if not sending.broken and guessed.setdefault(sending.partition_id, sending) is sending:
                _, rows = copied.get(sending.partition_id, (0, 0))
                copied[sending.partition_id] = sending.attempt_id, rows + self.arrived.rows(number)
                yield self.arrived.body(number)
        promise = self.arrived.promised()
        if promise.staged or dict(promise.received) != copied:
            raise NotNowError("some of its tasks have staged their rows")
        if not self.is_same_batch():
            raise NotNowError("its entry in the checkpoint has changed")
        yield from (rows.body for rows in promise.inline)

    def _may_go_on(self, number: int, guessed: dict[int, Sending]) -> bool:
        """Whether there is another body, or all are there."""
        arrived = self.arrived
        arrived.refuse_over()
        wanted = _attempts(arrived.promise) if arrived.promise else None
        for sending in guessed.values():
            if sending.broken if wanted is None else wanted.get(sending.partition_id) != sending.attempt_id:
                raise NotNowError("a task failed or ran twice, and rows of the wrong attempt were copied")
        if wanted is None and time.monotonic() - self.began_at > LONGEST_GUESS_SECONDS:
            raise NotNowError(f"its tasks have not ended within {LONGEST_GUESS_SECONDS:g} s")
        if number < len(arrived) or wanted is not None:
            return True
        if time.monotonic() - arrived.heard_at > LONGEST_SILENCE_SECONDS:
            raise NotNowError(f"no task has sent anything for {LONGEST_SILENCE_SECONDS:g} s")
        return False


def _attempts(promise: Promise) -> dict[int, int]:
    """For each partition that was sent, the attempt whose rows are wanted."""
    return {partition: attempt for partition, (attempt, _) in promise.received.items()}
