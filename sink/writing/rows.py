"""
The rows that one commit writes.

Made in the commit worker, in the receiver, or on the driver, by each way in. Invariant: the rows can be
read as often as a commit is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pgonce.offsets_store.offsets import Offsets

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.position_columns import PositionColumns
from ..staging.table import StagedRows


@dataclass(frozen=True, eq=False)
class Rows:
    """
    The rows of one batch.

    :param columns: the columns of every row, in the order in which they are encoded.
    :param count: waits for the rows that are still to come, and returns how many there are, staged ones included.
    :param bodies: the rows that are not staged, as bodies of a binary COPY, from the first at every call.
    :param transport: how the rows came, in the ledger's words (``inline``, ``arrow`` ...).
    :param staged: the rows that tasks have put into a staging table; they are not among the bodies.
    :param unfit: the rows that could not be encoded, which are none of the others; asked once ``bodies`` has ended.
    :param positions: the columns that say where in Kafka each row comes from; None if rows do not say it.
    :param since: makes the same of the rows at or past some positions; None if all rows are written in any case.
    """

    columns: tuple[EncodedColumn, ...]
    count: Callable[[], int]
    bodies: Callable[[], Iterable[bytes]] = tuple
    transport: str = "inline"
    staged: StagedRows | None = None
    unfit: Callable[[], Sequence[UnfitRow]] = tuple
    positions: PositionColumns | None = None
    since: Callable[[Offsets], Rows] | None = None

    def not_stored(self, stored: Offsets | None) -> Rows:
        """The rows at or past the positions ``stored``, if there are any and rows have positions."""
        return self.since(stored) if stored and self.positions and self.since else self
