"""
Which rows of its partition does a task hold, and how large are they?

Runs in a task, on an executor. Invariant: bodies, batches and positions are of the same rows, those that can be
encoded; the others are the unfit rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from ..encoding.copy_encoder import CopyEncoder
from ..encoding.unfit_rows import UnfitRows
from ..options.position_columns import PositionColumns


@dataclass
class HeldRows:
    """
    The rows that were taken so far, as they came and as ``bodies`` of a binary COPY.

    :param columns: the columns that say where in Kafka each row comes from.
    """

    encoder: CopyEncoder
    unfit: UnfitRows
    columns: PositionColumns | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    positions: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    """The bytes of bodies and positions."""

    def take(self, batch: pa.RecordBatch) -> None:
        """
        Encode these rows, too.

        :raises EncodingError: for a value that Postgres cannot hold, and a row without a position.
        """
        # Asked first, since a row that has no position is refused whatever else it has.
        places = self.columns.of(batch) if self.columns else None
        body, fit = self.encoded(batch)
        if self.columns and places is not None:
            places = places if fit is batch else self.columns.of(fit)
            self.positions.append(places)
            self.size += places.nbytes
        self.batches.append(fit)
        self.bodies.append(body)
        self.size += len(body)

    def encoded(self, batch: pa.RecordBatch) -> tuple[bytes, pa.RecordBatch]:
        """The body of the rows that can be encoded, and these rows; they are not held."""
        return self.unfit.encode_others(self.encoder, batch)
