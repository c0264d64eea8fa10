"""
What do the planner's worker and the commit worker tell the receiver?

Pure: made in the workers, read in the receiver. Invariant: secrets go through the receiver's standard input, never
through a command line or the environment; of each partition, all rows of exactly one attempt are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any
from uuid import UUID

from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry

from ...encoding.unfit_rows import UnfitRow
from ...identity.origin import Origin
from ...options.sink_options import SinkOptions
from ..carrier import Promise
from .certificate import Identity


@dataclass(frozen=True)
class Start:
    """
    The first message: who the receiver is, who may talk to it, and with which process it ends.

    ``version`` is that of the planner's code. Tasks have the same, and so has the commit, which looks at their parcels.
    """

    identity: Identity
    secret: bytes = field(repr=False)
    daemon_pid: int
    version: str


@dataclass(frozen=True)
class PlannedReception:
    """A batch that was planned, with the token of its commit."""

    token: UUID
    options: SinkOptions
    struct_type: StructType


def promise_as_message(promise: Promise) -> dict[str, Any]:
    """All but the bodies, which follow on the line."""
    return {
        "transport": promise.transport,
        "received": [[partition, *sent] for partition, sent in promise.received.items()],
        "inline_rows": promise.inline_rows,
        "staged": list(promise.staged),
        "unfit": [astuple(row) for row in promise.unfit],
    }


def promise_from_message(message: Mapping[str, Any], inline: tuple[bytes, ...]) -> Promise:
    """The promise that was sent."""
    return Promise(
        message["transport"],
        {partition: (attempt, rows) for partition, attempt, rows in message["received"]},
        inline,
        message["inline_rows"],
        tuple((mark, rows) for mark, rows in message["staged"]),
        tuple(_unfit_row(*row) for row in message["unfit"]),
    )


def _unfit_row(row_data: str, column_name: str, code: str, said: str, place: list[Any] | None) -> UnfitRow:
    if place is None:
        return UnfitRow(row_data, column_name, code, said)
    topic, partition, offset = place
    return UnfitRow(row_data, column_name, code, said, (topic, partition, offset))


def origin_from_message(words: Mapping[str, Any]) -> Origin:
    """The origin that was sent, field by field."""
    planned = words["planned"] and OffsetLogEntry(**words["planned"])
    return Origin(**{**words, "planned": planned})
