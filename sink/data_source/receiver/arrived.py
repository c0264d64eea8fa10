"""
The rows of a batch that have arrived, those of them that are promised, and the guess that is written until then.

Runs in the receiver. Invariant: a body is kept until the batch is over, and can be read as often as needed, by the
commit worker too if this process is gone. Of each partition, the first rows of one attempt are written, as many as are
promised; a guess that turns out to be wrong fails before it could be committed.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pgonce.offsets_store.commit.work import NotNowError

from ...encoding.encoded_types import EncodedColumn
from ...identity.from_checkpoint import Origin
from ...positions import EncodedRows
from ...writing.rows import Rows
from ..promise import Promise
from .kept_rows import KeptBody, KeptRows
from .messages import without_rows

_log = logging.getLogger("pgonce.receiver")

# How long a transaction may wait for the next rows: it holds the writer's row.
LONGEST_SILENCE_SECONDS = 30.0
# How long it may stand without a promise. Rows of upserts are locked meanwhile, and VACUUM waits everywhere.
LONGEST_GUESS_SECONDS = 60.0
_LOOK_SECONDS = 0.5


class Arrived:
    """
    The bodies of a batch in the order in which they came.

    ``promise`` is None until the commit worker has said which rows are wanted; ``is_over`` once the batch has failed,
    or is done. ``broken`` has the attempts, with their partitions, whose lines have ended too early. Every change is
    made under ``changed``, which then wakes those who wait for it.

    :param path: the file that keeps the rows.
    """

    def __init__(self, path: Path) -> None:
        self.changed = threading.Condition()
        self.heard_at = time.monotonic()
        self.origin: Origin | None = None
        self.promise: Promise | None = None
        self.is_over = False
        self.bodies: list[KeptBody] = []
        self.broken: set[tuple[int, int]] = set()
        self.lasted = 0.0
        """For how many seconds rows came until they were promised."""
        self._file = KeptRows(path)
        self._keeping = threading.Lock()
        self._is_full = False
        self._began_at: float | None = None

    @property
    def size(self) -> int:
        """How many bytes have arrived."""
        return self._file.size

    def open(self, origin: Origin) -> bool:
        """A task attempt begins to send; False if its rows are not wanted."""
        with self.changed:
            self.origin = self.origin or origin
            if self.is_over or self.promise or self._is_full or self.origin != origin:
                return False
            self.heard_at = time.monotonic()
            self._began_at = self._began_at or self.heard_at
            return True

    def add(self, partition_id: int, attempt_id: int, rows: EncodedRows) -> bool:
        """
        Keep these rows, and say whether they are kept.

        They are not if the batch is over, or if there is no room for them. Then their task stages them.
        """
        if self.is_over or self._is_full:
            return False
        try:
            # A lock of its own: a file may be slow, and other tasks begin and end in the meantime.
            with self._keeping:
                self.bodies.append(self._file.add(partition_id, attempt_id, rows))
        except OSError as error:
            self._is_full = True
            _log.warning("the rest of a batch is staged, because the driver cannot keep more rows: %s", error)
            return False
        with self.changed:
            self.heard_at = time.monotonic()
            self.changed.notify_all()
        return True

    def break_off(self, partition_id: int, attempt_id: int) -> None:
        """The attempt's line has ended too early."""
        with self.changed:
            self.broken.add((partition_id, attempt_id))
            self.changed.notify_all()

    def read(self, body: KeptBody) -> bytes:
        """The body itself."""
        return self._file.read(body)

    def take_promise(self, origin: Origin, promise: Promise) -> None:
        """
        The commit worker has said which rows are wanted, of the batch that it means.

        :raises ReceiverError: RECEIVER_LOST, if they are not all there.
        """
        with self.changed:
            if self.is_over:
                raise without_rows(
                    "The receiver has dropped the rows of this batch: it was told that the batch has failed."
                )
            # Asked here for its refusal alone: what was promised must be there before the promise counts.
            self.received(promise)
            if self.origin != origin:
                raise without_rows("The receiver has rows of another batch, not of the one to commit.")
            self.promise = promise
            self.lasted = time.monotonic() - (self._began_at or self.heard_at)
            self.changed.notify_all()

    def promised(self) -> Promise:
        """
        What the commit worker has said.

        :raises NotNowError: if it has said nothing yet.
        """
        if self.promise is None:
            raise NotNowError("its rows ended before the commit said how many there are")
        return self.promise

    def received(self, promise: Promise) -> Callable[[], Iterator[EncodedRows]]:
        """
        What reads the promised rows, of those that are kept.

        :raises ReceiverError: RECEIVER_LOST, if they are not all there.
        """
        try:
            return self._file.promised(promise.received).rows
        except (OSError, EOFError) as error:
            raise without_rows(f"The receiver has not kept what it should have: {error}.") from None

    def refuse_over(self) -> None:
        """:raises NotNowError: if the batch is over."""
        if self.is_over:
            raise NotNowError("it has failed, or its query now runs another batch")

    def give_up(self) -> None:
        """The batch has failed, or is done, or is committed without this process."""
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def forget(self) -> None:
        """The rows are no longer needed."""
        self.give_up()
        self._file.remove()


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
        copied: dict[int, tuple[int, int]] = {}
        for number in itertools.count():
            with self.arrived.changed:
                while not self._may_go_on(number, copied):
                    self.arrived.changed.wait(_LOOK_SECONDS)
                if number == len(self.arrived.bodies):
                    break
                body = self.arrived.bodies[number]
                is_broken = (body.partition_id, body.attempt_id) in self.arrived.broken
            attempt_id, rows = copied.get(body.partition_id, (body.attempt_id, 0))
            if attempt_id == body.attempt_id and not is_broken:
                copied[body.partition_id] = attempt_id, rows + body.count
                yield self.arrived.read(body)
        promise = self.arrived.promised()
        if promise.staged or dict(promise.received) != copied:
            raise NotNowError("some of its tasks have staged their rows")
        if not self.is_same_batch():
            raise NotNowError("its entry in the checkpoint has changed")
        yield from (rows.body for rows in promise.inline)

    def _may_go_on(self, number: int, copied: dict[int, tuple[int, int]]) -> bool:
        """Whether there is another body, or all are there."""
        arrived, promise = self.arrived, self.arrived.promise
        arrived.refuse_over()
        for partition_id, (attempt_id, _) in copied.items():
            if promise is None:
                is_wrong = (partition_id, attempt_id) in arrived.broken
            else:
                is_wrong = promise.received.get(partition_id, (None, 0))[0] != attempt_id
            if is_wrong:
                raise NotNowError("a task failed or ran twice, and rows of the wrong attempt were copied")
        if promise is None and time.monotonic() - self.began_at > LONGEST_GUESS_SECONDS:
            raise NotNowError(f"its tasks have not ended within {LONGEST_GUESS_SECONDS:g} s")
        if number < len(arrived.bodies) or promise is not None:
            return True
        if time.monotonic() - arrived.heard_at > LONGEST_SILENCE_SECONDS:
            raise NotNowError(f"no task has sent anything for {LONGEST_SILENCE_SECONDS:g} s")
        return False
