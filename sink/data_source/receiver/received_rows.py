"""
Which of the rows that have arrived are written: those that are promised, or a guess until they are?

Runs in the receiver. Invariant: of each partition, the rows of one attempt are written; a guess that turns out to be
wrong fails before it could be committed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import Self

from pgonce.offsets_store.commit.early_try import NotNowError
from pgonce.offsets_store.offsets.compare import Offsets

from ...encoding.encoded_types import EncodedColumn
from ...encoding.unfit_rows import UnfitRow
from ...staging.table import StagedRows
from ..carrier import Promise
from .arrived import Arrived, Sending

# How long a transaction may wait for the next rows: it holds the writer's row.
LONGEST_SILENCE_SECONDS = 30.0


@dataclass(frozen=True)
class _ReceivedRows:
    columns: tuple[EncodedColumn, ...]
    arrived: Arrived

    @property
    def positions(self) -> None:
        """None: the option receiver excludes position columns."""
        return

    def since(self, _: Offsets) -> Self:
        """All of them: nothing tells which are stored."""
        return self


@dataclass(frozen=True)
class PromisedRows(_ReceivedRows):
    """The rows that are promised, all of which are there; ``staged`` are those in the staging table."""

    promise: Promise
    staged: StagedRows | None

    @property
    def transport(self) -> str:
        """As it is promised."""
        return self.promise.transport

    def count(self) -> int:
        """How many rows are promised, staged and inline ones included."""
        return self.promise.rows

    def unfit(self) -> Sequence[UnfitRow]:
        """Those that the tasks could not encode, as it is promised."""
        return self.promise.unfit

    def bodies(self) -> Iterator[bytes]:
        """The rows that were received from the attempts that Spark chose, and those that came inline."""
        wanted = _attempts(self.promise)
        for number in range(len(self.arrived)):
            sending = self.arrived.sender(number)
            if wanted.get(sending.partition_id) == sending.attempt_id:
                yield self.arrived.body(number)
        yield from self.promise.inline


@dataclass(frozen=True)
class GuessedRows(_ReceivedRows):
    """
    The rows of the first attempt of each partition, as they arrive, until others turn out to be wanted.

    :param is_same_batch: whether the checkpoint still describes the batch as it did when it began.
    """

    is_same_batch: Callable[[], bool]

    @property
    def transport(self) -> str:
        """As it is promised."""
        return self.arrived.promised().transport

    @property
    def staged(self) -> None:
        """None: nobody knows of them before they are promised, and then the guess is wrong."""
        return

    def count(self) -> int:
        """How many rows are promised."""
        return self.arrived.promised().rows

    def unfit(self) -> Sequence[UnfitRow]:
        """Those that the tasks could not encode, as it is promised; nobody knows of them before."""
        return self.arrived.promised().unfit

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
