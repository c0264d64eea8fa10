"""
What are a batch's rows, where a test has them already? The one place where the tests make :class:`BatchRows`.

Runs in: pytest. Invariant: nothing is waited for, and no row is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.staging.table import StagedRows


@dataclass(frozen=True)
class GivenRows:
    """``number`` rows: ``make`` gives those that are not ``staged`` as bodies of a binary COPY."""

    columns: tuple[EncodedColumn, ...]
    number: int
    make: Callable[[], Iterable[bytes]] = list
    staged: StagedRows | None = None
    positions: PositionColumns | None = None
    not_encoded: tuple[UnfitRow, ...] = ()

    @property
    def transport(self) -> str:
        """``staged`` or ``inline``."""
        return "staged" if self.staged else "inline"

    def count(self) -> int:
        """All rows, staged ones included."""
        return self.number

    def bodies(self) -> Iterable[bytes]:
        """The bodies, made once more."""
        return self.make()

    def unfit(self) -> tuple[UnfitRow, ...]:
        """Those that could not be encoded."""
        return self.not_encoded

    def since(self, _: Offsets) -> GivenRows:
        """All of them."""
        return self
