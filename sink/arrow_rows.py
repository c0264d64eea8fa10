"""
Bring a frame's rows to the driver, as Arrow.

Runs on the driver. Invariant: rows are never turned into Python objects or pandas on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import DataFrame

from sink.copy_encoder import CopyEncoder
from sink.publish import BatchRows
from sink.type_mapping import encode_columns


def collected_rows(frame: DataFrame) -> BatchRows:
    """
    Run the frame and hold its rows, ready to be encoded as often as a commit needs.

    :raises TypeMappingError: before any job runs, for a type that Postgres cannot hold.
    """
    struct_type = frame.schema
    columns = encode_columns(struct_type)
    # Not toArrow(): its cast to a schema of its own fails on a null struct with fields that are not nullable.
    batches = cast("Any", frame)._collect_as_arrow()

    def bodies() -> Iterator[bytes]:
        encoder = CopyEncoder(struct_type)
        return (encoder.encode(batch) for batch in batches)

    return BatchRows(columns=columns, count=sum(batch.num_rows for batch in batches), bodies=bodies)
