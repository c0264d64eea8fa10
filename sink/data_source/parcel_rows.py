"""
Which rows do the parcels of a batch promise?

Made in the commit worker. Invariant: rows are promised once, by the parcel of the attempt that Spark chose; those that
a carrier has received are counted here, and only the carrier can write them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pgonce.offsets_store.offsets.compare import Offsets

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.position_columns import PositionColumns
from ..positions.drop_stored_arrow import bodies_not_stored, is_stored
from ..staging.table import StagedRows, StagingTable
from .carrier import Promise
from .parcel import Inline, Parcel, Received, Staged


@dataclass(frozen=True)
class ParcelRows:
    """The rows of ``parcels``, except those below the positions ``stored``; ``table`` is their staging table."""

    columns: tuple[EncodedColumn, ...]
    positions: PositionColumns | None
    parcels: Sequence[Parcel]
    table: StagingTable
    stored: Offsets | None = None

    @cached_property
    def staged(self) -> StagedRows | None:
        """The rows that tasks have staged; Postgres picks those at or past what is stored."""
        payloads = [parcel.payload for parcel in self.parcels]
        promised = tuple(mark for payload in payloads if isinstance(payload, Staged) for mark in payload.promised)
        return StagedRows(self.table, promised, self.positions, self.stored) if promised else None

    def count(self) -> int:
        """How many rows there are, those included that are staged or received."""
        if not self.stored:
            return sum(parcel.rows for parcel in self.parcels)
        staged = self.staged.promised if self.staged else ()
        return sum(rows for _, rows in (*self._not_stored, *staged))

    def bodies(self) -> Iterator[bytes]:
        """The rows that came inline."""
        if self.stored:
            return (body for body, _ in self._not_stored)
        return (body for inline in self._inline for body in inline.bodies)

    def unfit(self) -> Sequence[UnfitRow]:
        """The rows that tasks could not encode."""
        rows = tuple(row for parcel in self.parcels for row in parcel.unfit)
        return tuple(row for row in rows if not is_stored(row.place, self.stored)) if self.stored else rows

    def since(self, stored: Offsets) -> ParcelRows:
        """The rows at or past what is stored."""
        return replace(self, stored=stored)

    @property
    def transport(self) -> str:
        """How the rows came, for the ledger: ``inline``, ``received``, ``staged``, or several joined by ``+``."""
        ways = {parcel.payload.way for parcel in self.parcels if parcel.rows}
        return "+".join(sorted(ways)) or "inline"

    @property
    def has_received(self) -> bool:
        """Whether a carrier has some of them."""
        return any(isinstance(parcel.payload, Received) for parcel in self.parcels)

    def promise(self) -> Promise:
        """The same rows for the carrier that has some of them."""
        return Promise(
            self.transport,
            {
                parcel.partition_id: (parcel.payload.attempt_id, parcel.rows)
                for parcel in self.parcels
                if isinstance(parcel.payload, Received)
            },
            tuple(self.bodies()),
            sum(parcel.rows for parcel in self.parcels if isinstance(parcel.payload, Inline)),
            self.staged.promised if self.staged else (),
            tuple(self.unfit()),
        )

    @property
    def _inline(self) -> list[Inline]:
        return [parcel.payload for parcel in self.parcels if isinstance(parcel.payload, Inline)]

    @cached_property
    def _not_stored(self) -> list[tuple[bytes, int]]:
        """The bodies without the rows that are stored already, each with its number of rows."""
        stored = self.stored or {}
        return [pair for inline in self._inline for pair in bodies_not_stored(inline.bodies, inline.positions, stored)]
