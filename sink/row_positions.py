"""
From where in Kafka does each row of a frame come, and which of them are stored already?

Pure: runs in tasks, in the commit worker and on the driver. Invariant: a row without a whole position is refused, never
taken for one that may be dropped or kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from offsets_store.errors import NOTHING
from offsets_store.offsets import Offsets
from offsets_store.positions import Span
from sink.errors import EncodingError
from sink.settings import bad_option

# Topic to partition to (least position, the one after the greatest): what a parcel says of its rows.
Reach = dict[str, dict[str, tuple[int, int]]]

_NAMES = ("topic", "partition", "offset")
_SPARK_TYPES = (StringType, IntegerType, LongType)
_FIELD_COUNT = struct.Struct(">h")
_LENGTH = struct.Struct(">i")


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
        """:raises ConfigurationError: where the frame lacks one of them, or it has another type than Kafka's."""
        for name, meaning, spark_type in zip(self.names, _NAMES, _SPARK_TYPES, strict=True):
            field = next((field for field in struct_type.fields if field.name == name), None)
            if field is None or not isinstance(field.dataType, spark_type):
                raise bad_option(
                    "POSITION_COLUMNS",
                    f"The position columns name {name!r} for Kafka's {meaning}, "
                    + (f"which is {field.dataType.simpleString()} here" if field else "which the frame does not have")
                    + f"; it must be a column of type {spark_type().simpleString()}.",
                    "Select topic, partition and offset of the Kafka source as they are, and name them in this order.",
                )

    def without(self, struct_type: StructType) -> StructType:
        """The columns that go into the target."""
        if self.written:
            return struct_type
        return StructType([field for field in struct_type.fields if field.name not in self.names])

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        The positions of a batch's rows, topics as a dictionary.

        :raises EncodingError: where a row has none.
        """
        arrays = [batch.column(batch.schema.get_field_index(name)) for name in self.names]
        for name, array in zip(self.names, arrays, strict=True):
            if array.null_count:
                row = array.is_null().index(pa.scalar(value=True)).as_py() + 1
                raise EncodingError(
                    "NULL_POSITION",
                    f"Column {name!r}, which is part of the rows' position in Kafka, is null in row {row} of a part of "
                    "its task: such a row could neither be kept nor dropped.",
                    NOTHING,
                    "Give every row the position of the Kafka record that it comes from. Rows that come from no single "
                    "record (aggregates, outer joins) cannot be written by position.",
                )
        topic, partition, offset = arrays
        # Indices of 32 bits: a batch may have more topics than a smaller dictionary would hold.
        return pa.RecordBatch.from_arrays([topic.dictionary_encode(), partition, offset], names=list(_NAMES))


def position_columns(names: Sequence[str], *, written: bool) -> PositionColumns:
    """:raises ConfigurationError: where these are not three different names: topic, partition, offset."""
    if len(names) != len(_NAMES) or len(set(names)) != len(_NAMES) or not all(names):
        raise bad_option(
            "BAD_OPTION",
            f"The position columns are {', '.join(map(repr, names))}: three different names are needed.",
            "Name the columns that hold Kafka's topic, partition and offset, in this order: topic,partition,offset.",
        )
    topic, partition, offset = names
    return PositionColumns(topic, partition, offset, written)


def reach(parts: Iterable[pa.RecordBatch]) -> Reach:
    """How far rows reach, by topic and partition."""
    found: Reach = {}
    for part in parts:
        plain = pa.table({"topic": part["topic"].dictionary_decode(), **{name: part[name] for name in _NAMES[1:]}})
        for row in plain.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist():
            ends = row["offset_min"], row["offset_max"] + 1
            widen(found, {row["topic"]: {str(row["partition"]): ends}})
    return found


def widen(found: Reach, further: Reach) -> None:
    """Let ``found`` reach as far as ``further`` does, too."""
    for topic, partitions in further.items():
        known = found.setdefault(topic, {})
        for partition, (first, after) in partitions.items():
            least, most = known.get(partition, (first, after))
            known[partition] = min(first, least), max(after, most)


def span_of(source_id: str, reaches: Iterable[Reach]) -> Span:
    """What parcels say together of a batch's rows."""
    whole: Reach = {}
    for one in reaches:
        widen(whole, one)
    if not whole:
        return Span({}, {})
    first, after = (
        {topic: {p: ends[side] for p, ends in partitions.items()} for topic, partitions in whole.items()}
        for side in (0, 1)
    )
    return Span({source_id: first}, {source_id: after})


def kept(part: pa.RecordBatch, stored: Offsets) -> pa.BooleanArray:
    """Which rows lie at or past what is stored."""
    keep = pa.repeat(pa.scalar(value=True), len(part))
    for topics in stored.values():
        for topic, partitions in topics.items():
            of_topic = pc.equal(part["topic"].dictionary_decode(), topic)
            for partition, position in partitions.items():
                of_partition = pc.and_(of_topic, pc.equal(part["partition"], int(partition)))
                old = pc.and_(of_partition, pc.less(part["offset"], position))
                keep = pc.and_not(keep, old)
    return keep


def kept_bodies(
    bodies: Sequence[bytes], parts: Sequence[pa.RecordBatch], stored: Offsets
) -> Iterator[tuple[bytes, int]]:
    """The bodies of a binary COPY without the rows that are stored already, each with its number of rows."""
    for body, part in zip(bodies, parts, strict=True):
        keep = kept(part, stored)
        count = pc.sum(keep).as_py() or 0
        if count == len(part):
            yield body, count
        elif count:
            rows = memoryview(body)
            places = zip(body_rows(rows), keep, strict=True)
            yield b"".join(rows[start:end] for (start, end), wanted in places if wanted.as_py()), count


def body_rows(body: memoryview) -> Iterator[tuple[int, int]]:
    """Where each row of a COPY body begins and ends: a count of fields, then each with its length (-1: null)."""
    at = 0
    while at < len(body):
        start = at
        (fields,) = _FIELD_COUNT.unpack_from(body, at)
        at += _FIELD_COUNT.size
        for _ in range(fields):
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size + max(length, 0)
        yield start, at


def body_fields(row: memoryview) -> list[bytes | None]:
    """The fields of one of these rows."""
    (count,) = _FIELD_COUNT.unpack_from(row)
    at, fields = _FIELD_COUNT.size, []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(row, at)
        at += _LENGTH.size
        fields.append(None if length < 0 else bytes(row[at : at + length]))
        at += max(length, 0)
    return fields
