"""
Bring a frame's rows to the driver, as Arrow.

Runs on the driver. Invariant: rows are never turned into Python objects or pandas on their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import EncodedColumn, encode_columns
from pgonce.sink.foreach_batch.arriving_batches import ArrivingBatches
from pgonce.sink.positions.columns import PositionColumns
from pgonce.sink.positions.drop_stored_arrow import kept
from pgonce.sink.positions.reach import reach, refuse_outside, span_of
from pgonce.sink.target.batch_rows import BatchRows


@contextmanager
def collected_rows(frame: DataFrame) -> Iterator[BatchRows]:
    """Like :func:`arriving_rows`, but wait until there are enough rows to begin with."""
    with arriving_rows(frame) as (rows, arriving):
        arriving.wait()
        yield rows


@contextmanager
def arriving_rows(
    frame: DataFrame, positions: PositionColumns | None = None, batch: PlannedBatch | None = None
) -> Iterator[tuple[BatchRows, ArrivingBatches]]:
    """
    Run the frame; its rows are encoded as they arrive, and again as often as a commit needs.

    If the block fails, Spark's job is cancelled, because its rows are no longer needed.
    Rows come in no particular order. :attr:`BatchRows.bodies` and :attr:`BatchRows.count` raise what Spark raises, and
    so does the second object of the pair, which is there to wait for the rows.

    :param positions: the columns that say where in Kafka each row comes from; bodies raise NULL_POSITION for a row that
        has none, and POSITION_OUTSIDE for one that is not in the range of ``batch``.
    :raises TypeMappingError: before any job runs, for a type that Postgres cannot hold.
    :raises ConfigurationError: POSITION_COLUMNS, before any job runs.
    """
    if positions:
        positions.check(frame.schema)
    written = positions.without(frame.schema) if positions else frame.schema
    columns = encode_columns(written)
    arriving = ArrivingBatches(frame)
    try:
        yield _rows(arriving, columns, written, positions, batch), arriving
    except BaseException:
        arriving.close()
        raise


def _rows(
    arriving: ArrivingBatches,
    columns: tuple[EncodedColumn, ...],
    written: StructType,
    positions: PositionColumns | None,
    batch: PlannedBatch | None,
) -> BatchRows:
    if positions is None:
        return BatchRows(columns, arriving.rows, lambda: _encoded(written, arriving))

    def chosen(stored: Offsets) -> Iterator[pa.RecordBatch]:
        for part in arriving:
            places = positions.of(part)
            if batch is not None and batch.span is not None:
                (source_id,) = batch.span.next
                refuse_outside(span_of(source_id, [reach([places])]), batch)
            yield part.filter(kept(places, stored)) if stored else part

    def since(stored: Offsets) -> BatchRows:
        # Asked when the rows are written and again when they are recorded; without the cache, each would read them all.
        @cache
        def count() -> int:
            return sum(part.num_rows for part in chosen(stored)) if stored else arriving.rows()

        return BatchRows(columns, count, lambda: _encoded(written, chosen(stored)), positions=positions)

    return replace(since({}), since=since)


def _encoded(struct_type: StructType, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    encoder = CopyEncoder(struct_type)
    names = struct_type.names
    for batch in batches:
        # Selected by name only if columns are left out: a frame may have two of one name until Postgres refuses it.
        yield encoder.encode(batch if batch.num_columns == len(names) else batch.select(names))
