"""
The rows that the parcels of a batch promise.

Made in the commit worker. Invariant: rows are promised once, by the parcel of the attempt that Spark chose; those that
a carrier has received are counted here, and only the carrier can write them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgonce.offsets_store.offsets.compare import Offsets

from ..encoding.encoded_types import EncodedColumn
from ..options.position_columns import PositionColumns
from ..positions import bodies_not_stored, is_stored
from ..staging.table import StagedRows, StagingTable
from ..writing.rows import Rows
from .carrier import Promise
from .parcel import Inline, Parcel, Received, Staged


def parcel_rows(
    columns: tuple[EncodedColumn, ...],
    positions: PositionColumns | None,
    parcels: Sequence[Parcel],
    table: StagingTable,
    stored: Offsets | None = None,
) -> Rows:
    """
    The rows of ``parcels``, except those below the positions ``stored``; ``table`` is their staging table.

    Staged rows are all counted: Postgres picks those at or past what is stored.
    """
    marks = tuple(mark for one in parcels if isinstance(one.payload, Staged) for mark in one.payload.promised)
    inline = [parcel.payload for parcel in parcels if isinstance(parcel.payload, Inline)]
    bodies = [body for payload in inline for body in payload.bodies]
    number = sum(parcel.rows for parcel in parcels)
    unfit = [row for parcel in parcels for row in parcel.unfit]
    if stored:
        kept = [pair for payload in inline for pair in bodies_not_stored(payload.bodies, payload.positions, stored)]
        bodies = [body for body, _ in kept]
        number = sum(rows for _, rows in (*kept, *marks))
        unfit = [row for row in unfit if not is_stored(row.place, stored)]
    return Rows(
        columns,
        count=lambda: number,
        bodies=lambda: bodies,
        transport="+".join(sorted({parcel.payload.way for parcel in parcels if parcel.rows})) or "inline",
        staged=StagedRows(table, marks, positions, stored) if marks else None,
        unfit=lambda: tuple(unfit),
        positions=positions,
        since=lambda ends: parcel_rows(columns, positions, parcels, table, ends),
    )


def has_received(parcels: Sequence[Parcel]) -> bool:
    """Whether a carrier has some of their rows."""
    return any(isinstance(parcel.payload, Received) for parcel in parcels)


def promise(parcels: Sequence[Parcel], rows: Rows) -> Promise:
    """The ``rows`` of ``parcels``, for the carrier that has some of them."""
    return Promise(
        rows.transport,
        {
            parcel.partition_id: (parcel.payload.attempt_id, parcel.rows)
            for parcel in parcels
            if isinstance(parcel.payload, Received)
        },
        tuple(rows.bodies()),
        sum(parcel.rows for parcel in parcels if isinstance(parcel.payload, Inline)),
        rows.staged.promised if rows.staged else (),
        tuple(rows.unfit()),
    )
