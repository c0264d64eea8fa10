"""
Find the columns that hold each row's position in Kafka.

Pure: runs in tasks and on the driver. Invariant: a row without a complete position is refused; it is neither dropped
nor kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from pgonce.offsets_store.errors import NOTHING, bad_option

from ..errors import EncodingError
from .destination import Destination
from .reading import Given
from .routes import Routes

KAFKAS_NAMES = ("topic", "partition", "offset")
_SPARK_TYPES = (StringType, IntegerType, LongType)


@dataclass(frozen=True)
class PositionColumns:
    """The columns that hold Kafka's topic, partition and offset; ``written`` says whether the target gets them too."""

    topic: str
    partition: str
    offset: str
    written: bool = True

    @property
    def names(self) -> tuple[str, str, str]:
        """Topic, partition, offset."""
        return self.topic, self.partition, self.offset

    def check(self, struct_type: StructType) -> None:
        """Refuse rows, as a change feed is read, in which these columns are missing, doubled, or of another type."""
        for name, meaning, spark_type in zip(self.names, KAFKAS_NAMES, _SPARK_TYPES, strict=True):
            types = [field.dataType for field in struct_type.fields if field.name == name]
            if len(types) != 1 or not isinstance(types[0], spark_type):
                found = " and ".join(one.simpleString() for one in types)
                here = f"which is {found} here" if types else "which the rows do not have"
                raise bad_option(
                    "POSITION_COLUMNS",
                    f"The position columns name {name!r} for Kafka's {meaning}, {here}; it must be one column of type "
                    f"{spark_type().simpleString()}.",
                    "Select topic, partition and offset of the Kafka source as they are, under names that no other "
                    "column has (nor one in after, with changeFeed=debezium), and name them in this order.",
                )

    def without(self, struct_type: StructType, kept: str | None = None) -> StructType:
        """The columns that go into the target, and the one that is ``kept``."""
        if self.written:
            return struct_type
        return StructType([field for field in struct_type.fields if field.name == kept or field.name not in self.names])

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The positions of a batch's rows, with the topics as a dictionary array."""
        arrays = [batch.column(name) for name in self.names]
        for name, array in zip(self.names, arrays, strict=True):
            if array.null_count:
                row = array.is_null().index(pa.scalar(value=True)).as_py() + 1
                raise EncodingError(
                    "POSITION_COLUMNS",
                    f"Column {name!r}, which is part of the rows' position in Kafka, is null in row {row} of one of "
                    "its task's Arrow batches: such a row can neither be kept nor dropped.",
                    NOTHING,
                    "Give every row the position of the Kafka record that it comes from. Rows that do not come from a "
                    "single record (aggregates, outer joins) cannot be written by position.",
                )
        topic, partition, offset = arrays
        # Indices of 32 bits: a batch may have more topics than a smaller dictionary would hold.
        return pa.RecordBatch.from_arrays([topic.dictionary_encode(), partition, offset], names=list(KAFKAS_NAMES))


RECORD_POSITIONS = PositionColumns("pgonce_topic", "pgonce_partition", "pgonce_position", written=False)
"""The columns of records that are decoded. They have names that no field has, and do not go into the table."""


def written_type(
    struct_type: StructType, positions: PositionColumns | None, where: Destination | Routes | None = None
) -> StructType:
    """The columns of ``struct_type`` that go into the target, or that say which target."""
    route = where.column if isinstance(where, Routes) else None
    return positions.without(struct_type, route) if positions else struct_type


def positions_of(given: Given) -> PositionColumns | None:
    """The columns that the options name, which are three, or those of decoded records; else None."""
    if given["decode"]:
        return RECORD_POSITIONS
    if not given["position_columns"]:
        return None
    topic, partition, offset = given["position_columns"]
    return PositionColumns(topic, partition, offset, given["write_positions"])
