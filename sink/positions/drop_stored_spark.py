"""
Which rows of a frame are stored already, as a condition that Spark evaluates?

Runs on the driver. Invariant: a row without a complete position fails the batch; it is neither kept nor dropped.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.offsets.positions import Span, places

from ..options.position_columns import PositionColumns


def stored_already(columns: PositionColumns, stored: Offsets | None, span: Span | None) -> Column:
    """
    Whether a row is stored already, being below the stored positions; if there are none, no row is.

    :param span: where the batch begins and ends, as far as that is known.
    """
    topic, partition, offset = (f.col(_quoted(name)) for name in columns.names)
    key = f.concat_ws(" ", partition.cast("string"), topic)
    lacks = topic.isNull() | partition.isNull() | offset.isNull()
    condition = f.when(lacks, _raising("NULL_POSITION", "A row has no complete position in Kafka", columns))
    if span is not None:
        # A partition that is not named may begin anywhere, but has no end: none of its rows belongs to the batch.
        begins, ends = _position_of(key, span.first), _position_of(key, span.next)
        is_outside = (offset < f.coalesce(begins, f.lit(0))) | (offset >= f.coalesce(ends, f.lit(0)))
        outside = _raising(
            "POSITION_OUTSIDE", "A row's position in Kafka is not in the range that its batch reads", columns
        )
        condition = condition.when(is_outside, outside)
    return condition.otherwise(f.coalesce(offset < _position_of(key, stored), f.lit(False)))


def _position_of(key: Column, positions: Offsets | None) -> Column:
    """The position of a row's partition; null if the partition is not named."""
    pairs = [part for (_, t, p), position in places(positions).items() for part in (f.lit(f"{p} {t}"), f.lit(position))]
    # One look-up in a map, however many partitions there are.
    return f.element_at(f.create_map(*pairs), key) if pairs else f.lit(None).cast("bigint")


def _raising(name: str, what: str, columns: PositionColumns) -> Column:
    return f.raise_error(f.lit(f"[{name}] {what}: " + ", ".join(columns.names))).cast("boolean")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
