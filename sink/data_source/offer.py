"""
The receiver that a batch was planned with, as tasks and the commit know it: what it does, and not how.

Made in the planner's worker, used in tasks and in the commit worker. Invariant: it travels packed, so that a process
that has no use for it never loads its code.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import StructType

from ..identity.from_checkpoint import Origin
from ..options.sink_options import SinkOptions
from ..positions import EncodedRows
from ..writing.rooms import Rooms
from .workers import imported_late

if TYPE_CHECKING:
    from pgonce.offsets_store.commit.work import Work
    from pgonce.offsets_store.verdict.decide import Verdict
    from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

    from .promise import Promise

WorkWith: TypeAlias = "Callable[[Callable[[], Iterable[EncodedRows]]], Work[Batch]]"
"""Makes the work of the commit, given what reads the received rows."""


@dataclass(frozen=True)
class Taken:
    """
    What a receiver has taken of a task's rows: so many of the first ``rows`` are kept.

    ``left`` are those that it was sent and has not acknowledged. It may have them, but they must not be promised.
    """

    rows: int = 0
    left: tuple[pa.RecordBatch, ...] = ()


class Call(Protocol):
    """A task's call, while the task makes more rows; ``driver`` is where Spark's driver listens, if that is known."""

    is_unreached: bool
    """Whether no process was at any of its addresses."""
    driver: str | None

    @property
    def is_answered(self) -> bool:
        """Whether there is a line already."""

    def send_rows(
        self, origin: Origin, partition_id: int, attempt_id: int, encoded: Iterator[tuple[EncodedRows, pa.RecordBatch]]
    ) -> Taken:
        """Send the attempt's rows, given encoded and as they came; those that it does not take are for the caller."""

    def drop(self) -> None:
        """It is not needed any more."""


class Receiver(Protocol):
    """:class:`pgonce.sink.data_source.receiver.client.Receiver`; ``token`` is that of the batch's commit."""

    @property
    def token(self) -> UUID:
        """The same for all tries of this plan."""

    def call(self, setting: Callable[[str], str | None]) -> Call:
        """In a task: call it, given what reads a setting of the query."""

    def commit(
        self,
        options: SinkOptions,
        origin: Origin,
        promise: Promise,
        identified: Callable[[], PlannedBatch],
        work_with: WorkWith,
    ) -> Verdict:
        """In the commit worker: have the batch committed."""

    def give_up(self) -> None:
        """In the commit worker: its rows are not needed."""

    def has_kept_rows(self) -> bool:
        """In the commit worker: whether it has taken any rows of this batch."""

    def note_unreached(self, driver: str) -> None:
        """In the commit worker: some tasks did not find it; ``driver`` is where Spark's driver listens."""


class Receivers(Protocol):
    """:mod:`pgonce.sink.data_source.receiver.launch`, for ``receiver``."""

    def receiver_for(self, options: SinkOptions, struct_type: StructType, rooms: Rooms) -> Receiver | None:
        """A receiver that expects a batch with these columns; None if there can be none."""


class DataSourceRooms(Rooms, Protocol):
    """The rooms, with those that only ``format("pgonce")`` asks for."""

    def receivers(self) -> Receivers:
        """For ``receiver``."""


@dataclass(frozen=True)
class Offer:
    """A receiver that is packed; its code is in ``module``."""

    module: str
    packed: bytes = field(repr=False)

    def receiver(self) -> Receiver:
        """
        Unpack it.

        :raises SparkError: NOT_ON_EXECUTORS, if another version was installed meanwhile.
        """
        with imported_late(self.module):
            receiver: Receiver = pickle.loads(self.packed)  # noqa: S301 (Spark itself unpickles what this came in)
        return receiver


def offered(receiver: Receiver | None) -> Offer | None:
    """The receiver as it travels, if there is one."""
    return Offer(type(receiver).__module__, pickle.dumps(receiver)) if receiver else None
