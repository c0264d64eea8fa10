"""
What the parcels of one batch promise together, and the rows of it that a commit writes.

Runs in the commit worker, and in the receiver. Invariant: of each partition, all rows of exactly one attempt are
promised. In both processes the same code leaves out the rows that are stored already, and counts the others, no matter
how they came.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import cache
from typing import Any

from pgonce.offsets_store.offsets import Offsets

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import Record, UnfitRow
from ..options.position_columns import PositionColumns
from ..positions import EncodedRows, Reach, is_stored
from ..staging import StagedRows, StagingTable
from ..writing.rows import Rows


@dataclass(frozen=True)
class Promise:
    """
    All rows of a batch, as its parcels promise them.

    ``received`` says for each partition whose rows the receiver took which attempt's rows are wanted, and how many: the
    first ones that it has kept. ``inline`` holds those that came in commit messages; ``staged`` has mark and count of
    those in the staging table. ``transport`` is the ledger's word for how the rows came. ``unfit`` are rows that could
    not be encoded, and are not among these. ``reach`` says how far all of them reach, if they carry their positions.
    """

    transport: str
    received: Mapping[int, tuple[int, int]]
    inline: tuple[EncodedRows, ...] = ()
    staged: tuple[tuple[int, int], ...] = ()
    unfit: tuple[UnfitRow, ...] = ()
    reach: Reach = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        received = sum(rows for _, rows in self.received.values())
        return received + sum(rows.count for rows in self.inline) + self.staged_rows

    @property
    def staged_rows(self) -> int:
        """How many of them are in the staging table."""
        return sum(rows for _, rows in self.staged)

    def as_message(self) -> dict[str, Any]:
        """All but the rows that came inline, which follow on the line to the receiver."""
        return {
            "transport": self.transport,
            "received": [[partition, *sent] for partition, sent in self.received.items()],
            "staged": list(self.staged),
            "unfit": [astuple(row) for row in self.unfit],
            "reach": self.reach,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any], inline: tuple[EncodedRows, ...]) -> Promise:
        """The promise that was sent."""
        return cls(
            message["transport"],
            {partition: (attempt, rows) for partition, attempt, rows in message["received"]},
            inline,
            tuple((mark, rows) for mark, rows in message["staged"]),
            tuple(
                UnfitRow(
                    row_data, column, code, said, place and (place[0], place[1], place[2]), record and Record(*record)
                )
                for row_data, column, code, said, place, record in message["unfit"]
            ),
            {
                topic: {partition: (first, after) for partition, (first, after) in partitions.items()}
                for topic, partitions in message["reach"].items()
            },
        )


def promised_rows(
    columns: tuple[EncodedColumn, ...],
    positions: PositionColumns | None,
    promise: Promise,
    received: Callable[[], Iterable[EncodedRows]],
    table: StagingTable,
    stored: Offsets | None = None,
) -> Rows:
    """
    Return the rows of ``promise``, except those below the positions ``stored``.

    Staged rows are all counted: Postgres picks those at or past what is stored.

    :param received: reads the promised rows that a receiver has kept, from the first at every call.
    :param table: the batch's staging table.
    """

    def copied() -> Iterator[EncodedRows]:
        for rows in itertools.chain(received(), promise.inline):
            yield rows.since(stored) if stored else rows

    @cache
    def count() -> int:
        # Which rows are stored is found by reading their positions, and asked more than once.
        return promise.staged_rows + sum(rows.count for rows in copied()) if stored else promise.rows

    unfit = tuple(row for row in promise.unfit if not (stored and is_stored(row.place, stored)))
    return Rows(
        columns,
        count=count,
        bodies=lambda: (rows.body for rows in copied() if rows.count),
        transport=promise.transport,
        staged=StagedRows(table, promise.staged, positions, stored) if promise.staged else None,
        unfit=lambda: unfit,
        positions=positions,
        since=lambda ends: promised_rows(columns, positions, promise, received, table, ends),
    )
