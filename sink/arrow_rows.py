"""
Bring a frame's rows to the driver, as Arrow.

Runs on the driver. Invariant: rows are never turned into Python objects or pandas on their way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from offsets_store.offsets import Offsets
from sink.copy_encoder import CopyEncoder
from sink.publish import BatchRows
from sink.row_positions import PositionColumns, kept
from sink.type_mapping import EncodedColumn, encode_columns


def collected_rows(frame: DataFrame, positions: PositionColumns | None = None) -> BatchRows:
    """
    Run the frame and hold its rows, ready to be encoded as often as a commit needs.

    :param positions: the columns that say where in Kafka each row comes from.
    :raises TypeMappingError: before any job runs, for a type that Postgres cannot hold.
    :raises ConfigurationError: POSITION_COLUMNS, before any job runs.
    :raises EncodingError: NULL_POSITION.
    """
    if positions:
        positions.check(frame.schema)
    written = positions.without(frame.schema) if positions else frame.schema
    columns = encode_columns(written)
    # Not toArrow(): its cast to a schema of its own fails on a null struct with fields that are not nullable.
    batches: list[pa.RecordBatch] = cast("Any", frame)._collect_as_arrow()
    if positions is None:
        return _rows(written, columns, batches)
    places = [positions.of(batch) for batch in batches]

    def since(stored: Offsets) -> BatchRows:
        chosen = [batch.filter(kept(part, stored)) for batch, part in zip(batches, places, strict=True)]
        return _rows(written, columns, chosen)

    return replace(_rows(written, columns, batches), since=since)


def _rows(struct_type: StructType, columns: tuple[EncodedColumn, ...], batches: Sequence[pa.RecordBatch]) -> BatchRows:
    names = [field.name for field in struct_type.fields]

    def bodies() -> Iterator[bytes]:
        encoder = CopyEncoder(struct_type)
        # By name only where columns are left out: a frame may have two of one name until Postgres refuses it.
        return (encoder.encode(batch if batch.num_columns == len(names) else batch.select(names)) for batch in batches)

    return BatchRows(columns=columns, count=sum(batch.num_rows for batch in batches), bodies=bodies)
