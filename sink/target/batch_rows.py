"""
What does a commit need to know about the rows that it writes?

Made in the commit worker, in the receiver, or on the driver. Invariant: the rows can be read as often as a commit is
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.positions.columns import PositionColumns
from pgonce.sink.staging.staged_rows import StagedRows


@dataclass(frozen=True)
class BatchRows:
    """
    The rows of one batch for one table.

    ``bodies`` gives the inline rows as bodies of a binary COPY, from the beginning at every call (a lost connection
    leads to a second try); ``staged`` are the rows that tasks have put into a staging table. ``count`` counts both, and
    waits for those that are still to come. If rows carry their positions, ``since`` picks those at or past the stored
    ones (among the staged rows, Postgres picks them).
    """

    columns: tuple[EncodedColumn, ...]
    count: Callable[[], int]
    bodies: Callable[[], Iterable[bytes]]
    staged: StagedRows | None = None
    since: Callable[[Offsets], BatchRows] | None = None
    positions: PositionColumns | None = None
