"""
How can rows that are too many for a commit message reach Postgres while tasks still run?

Pure: it says what the writer, the tasks and the commit may ask of a carrier. Invariant: a carrier only makes a batch
faster; without one, these rows go through the staging table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from pgonce.offsets_store.commit.work import NameSink
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..encoding.unfit_rows import UnfitRow
from ..identity.origin import Origin
from ..options.sink_options import SinkOptions


@dataclass(frozen=True)
class Promise:
    """
    All rows of a batch, as its parcels promise them.

    ``received`` says for each partition whose rows were carried which attempt's rows are wanted, and how many there
    are; ``inline`` holds the bodies that came in commit messages; ``staged`` has mark and count of the rows in the
    staging table. ``transport`` says in the ledger's words how the rows came. ``unfit`` are rows that could not be
    encoded, and are none of these.
    """

    transport: str
    received: Mapping[int, tuple[int, int]]
    inline: tuple[bytes, ...] = ()
    inline_rows: int = 0
    staged: tuple[tuple[int, int], ...] = ()
    unfit: tuple[UnfitRow, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return self.inline_rows + sum(rows for _, rows in (*self.received.values(), *self.staged))


@dataclass(frozen=True)
class Carried:
    """What became of the batch, and whether staging tables of this or earlier batches may still be there."""

    verdict: Verdict
    may_sweep: bool


class Carrier(Protocol):
    """Made for one planned batch; it travels with the plan to the tasks, and with their parcels to the commit."""

    @property
    def token(self) -> UUID:
        """The token of the batch's commit: one for all tries of this plan, because the carrier may publish it."""

    def send_rows(
        self, origin: Origin, partition_id: int, attempt_id: int, bodies: Iterable[tuple[bytes, int]]
    ) -> int | None:
        """
        In a task: send all rows of the attempt, given as bodies with their row counts, and return how many they were.

        None if rows cannot be sent, or are not wanted; then nothing was taken from ``bodies``.

        :raises PgonceError: if the carrier is lost on the way.
        """

    def commit(
        self,
        options: SinkOptions,
        origin: Origin,
        promise: Promise,
        identified: Callable[[], PlannedBatch],
        name_sink: NameSink,
    ) -> Carried:
        """
        In the commit worker: publish the rows that are promised, or skip the batch, and say what the ledger has of it.

        :param identified: reads the checkpoint, and is called only if the batch must be known in full.
        :param name_sink: says inside a transaction into which sink the batch goes.
        :raises PgonceError: if neither could be done.
        """

    def give_up(self) -> None:
        """In the commit worker: the batch has failed, or is committed without the carrier, so drop its rows."""
