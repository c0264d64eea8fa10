"""
Which rows of a frame are stored already, as a condition that Spark evaluates?

Runs on the driver. Invariant: a row without a whole position fails the batch; it is neither kept nor dropped.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from offsets_store.offsets import Offsets
from offsets_store.positions import places
from sink.row_positions import PositionColumns


def below(columns: PositionColumns, stored: Offsets | None) -> Column:
    """Whether a row lies below the stored positions; where there are none, no row does."""
    topic, partition, offset = (f.col(_quoted(name)) for name in columns.names)
    pairs = [part for (_, t, p), position in places(stored).items() for part in (f.lit(f"{p} {t}"), f.lit(position))]
    is_below = f.lit(False)
    if pairs:
        # One look into a map, however many partitions there are.
        position = f.element_at(f.create_map(*pairs), f.concat_ws(" ", partition.cast("string"), topic))
        is_below = f.coalesce(offset < position, is_below)
    lacks = topic.isNull() | partition.isNull() | offset.isNull()
    refusal = f.raise_error(f.lit("[NULL_POSITION] A row has no whole position in Kafka: " + ", ".join(columns.names)))
    return f.when(lacks, refusal.cast("boolean")).otherwise(is_below)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
