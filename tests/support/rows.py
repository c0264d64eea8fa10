"""
The one place where the tests make :class:`Rows`.

Runs in: pytest. Invariant: nothing is waited for, and no row is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.staging import StagedRows
from pgonce.sink.writing.rows import Rows


def given_rows(
    columns: tuple[EncodedColumn, ...],
    number: int,
    bodies: Callable[[], Iterable[bytes]] = list,
    staged: StagedRows | None = None,
    positions: PositionColumns | None = None,
) -> Rows:
    """``number`` rows: ``bodies`` gives those that are not ``staged`` as bodies of a binary COPY."""
    transport = "staged" if staged else "inline"
    return Rows(columns, lambda: number, bodies, transport, staged, positions=positions)
