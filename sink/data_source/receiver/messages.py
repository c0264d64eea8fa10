"""
What do the planner's worker and the commit worker tell the receiver?

Pure: made in the workers, read in the receiver. Invariant: secrets go through the receiver's standard input, never
through a command line or the environment; of each partition, all rows of exactly one attempt are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID

from pyspark.sql.types import StructType

from pgonce.sink.data_source.receiver.certificate import Identity
from pgonce.sink.options import SinkOptions


@dataclass(frozen=True)
class Start:
    """The first message: who the receiver is, who may talk to it, and with which process it ends."""

    identity: Identity
    secret: bytes = field(repr=False)
    daemon_pid: int


@dataclass(frozen=True)
class Plan:
    """A batch that was planned, with the token of its commit."""

    token: UUID
    options: SinkOptions
    struct_type: StructType


@dataclass(frozen=True)
class Promise:
    """
    All rows of a batch.

    ``received`` says for each partition that was sent to the receiver which attempt's rows are wanted, and how many
    there are; ``inline`` holds the bodies that came in commit messages; ``staged`` has mark and count of the rows in
    the staging table. ``transport`` says in the ledger's words how the rows came.
    """

    transport: str
    received: Mapping[int, tuple[int, int]]
    inline: tuple[bytes, ...] = ()
    inline_rows: int = 0
    staged: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return self.inline_rows + sum(rows for _, rows in (*self.received.values(), *self.staged))

    @cached_property
    def attempts(self) -> dict[int, int]:
        """For each partition that was sent, the attempt whose rows are wanted."""
        return {partition: attempt for partition, (attempt, _) in self.received.items()}

    def as_message(self) -> dict[str, Any]:
        """All but the bodies, which follow on the line."""
        return {
            "transport": self.transport,
            "received": [[partition, *sent] for partition, sent in self.received.items()],
            "inline_rows": self.inline_rows,
            "staged": list(self.staged),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any], inline: tuple[bytes, ...]) -> Promise:
        """The promise that was sent."""
        return cls(
            message["transport"],
            {partition: (attempt, rows) for partition, attempt, rows in message["received"]},
            inline,
            message["inline_rows"],
            tuple((mark, rows) for mark, rows in message["staged"]),
        )
