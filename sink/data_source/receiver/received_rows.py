"""
The rows that have arrived: those that are promised, or a guess until they are.

Runs in the receiver. Invariant: of each partition, the rows of one attempt are written; a guess that turns out to be
wrong fails before it could be committed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pgonce.offsets_store.commit.early_try import NotNowError

from ...encoding.encoded_types import EncodedColumn
from ...staging.table import StagedRows
from ...writing.rows import Rows
from ..carrier import Promise
from .arrived import Arrived, Sending

# How long a transaction may wait for the next rows: it holds the writer's row.
LONGEST_SILENCE_SECONDS = 30.0


def promised_rows(
    columns: tuple[EncodedColumn, ...], arrived: Arrived, promise: Promise, staged: StagedRows | None
) -> Rows:
    """The rows that are promised, all of which are there; ``staged`` are those in the staging table."""

    def bodies() -> Iterator[bytes]:
        wanted = _attempts(promise)
        for number in range(len(arrived)):
            sending = arrived.sender(number)
            if wanted.get(sending.partition_id) == sending.attempt_id:
                yield arrived.body(number)
        yield from promise.inline

    return Rows(columns, lambda: promise.rows, bodies, promise.transport, staged, lambda: promise.unfit)


def guessed_rows(columns: tuple[EncodedColumn, ...], arrived: Arrived, is_same_batch: Callable[[], bool]) -> Rows:
    """
    The rows of the first attempt of each partition, as they arrive, until others turn out to be wanted.

    How many they are, how they came, and which could not be encoded is known once they are promised. Staged ones are
    not among them: nobody knows of these before, and then the guess is wrong.

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

    def bodies(self) -> Iterator[bytes]:
        """The rows as they arrive, and once they are promised, those that came inline."""
        guessed: dict[int, Sending] = {}
        for number in itertools.count():
            with self.arrived.changed:
                self.arrived.changed.wait_for(lambda: self._may_go_on(number, guessed))  # noqa: B023 (called in this turn)
                if number == len(self.arrived):
                    break
                sending = self.arrived.sender(number)
            if not sending.broken and guessed.setdefault(sending.partition_id, sending) is sending:
                yield self.arrived.body(number)
        promise = self.arrived.promised()
        if promise.staged or len(promise.received) != len(guessed):
            raise NotNowError("some of its tasks have staged their rows")
        if not self.is_same_batch():
            raise NotNowError("the checkpoint says something else of it now")
        yield from promise.inline

    def _may_go_on(self, number: int, guessed: dict[int, Sending]) -> bool:
        """Whether there is another body, or all are there."""
        arrived = self.arrived
        arrived.refuse_over()
        wanted = _attempts(arrived.promise) if arrived.promise else None
        for sending in guessed.values():
            if sending.broken if wanted is None else wanted.get(sending.partition_id) != sending.attempt_id:
                raise NotNowError("a task failed, or ran twice, and rows of the wrong attempt were copied")
        if number < len(arrived) or wanted is not None:
            return True
        if time.monotonic() - arrived.heard_at > LONGEST_SILENCE_SECONDS:
            raise NotNowError(f"no task has sent anything for {LONGEST_SILENCE_SECONDS:g} s")
        return False


def _attempts(promise: Promise) -> dict[int, int]:
    """For each partition that was sent, the attempt whose rows are wanted."""
    return {partition: attempt for partition, (attempt, _) in promise.received.items()}
