"""
What does a commit need to know about the rows that it writes?

Made in the commit worker, in the receiver, or on the driver: a class for each way in which rows come. Invariant: the
rows can be read as often as a commit is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pgonce.offsets_store.offsets.compare import Offsets

from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..options.position_columns import PositionColumns
from ..staging.table import StagedRows


class BatchRows(Protocol):
    """The rows of one batch for one table."""

    @property
    def columns(self) -> tuple[EncodedColumn, ...]:
        """The columns of every row, in the order in which they are encoded."""

    @property
    def positions(self) -> PositionColumns | None:
        """The columns that say where in Kafka each row comes from; None if rows do not say it."""

    @property
    def transport(self) -> str:
        """How the rows came, in the ledger's words (``inline``, ``arrow`` ...); asked once they are written."""

    @property
    def staged(self) -> StagedRows | None:
        """The rows that tasks have put into a staging table; they are not among the bodies."""

    def count(self) -> int:
        """Wait for the rows that are still to come, and return how many there are, staged ones included."""

    def bodies(self) -> Iterable[bytes]:
        """The other rows as bodies of a binary COPY, from the first at every call: a commit may be tried again."""

    def unfit(self) -> Sequence[UnfitRow]:
        """The rows that could not be encoded, which are none of the others; asked once :meth:`bodies` has ended."""

    def since(self, stored: Offsets) -> BatchRows:
        """The rows at or past the positions ``stored``; asked only if the rows have :attr:`positions`."""
