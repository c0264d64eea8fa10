"""
Kafka positions of rows: the range that they span, and which of them the target has already.

Runs in tasks, which report the span; in the commit worker and in a receiver, which compare it with the batch's range;
and on the driver for foreachBatch. Invariants: a row is dropped only if its position is below what is stored; columns
that hold anything but Kafka's positions are refused before a row could be dropped because of them; and a row without a
complete position fails the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f

from pgonce.offsets_store.offsets import Offsets, Span, places
from pgonce.offsets_store.verdict.facts import PlannedBatch

from .encoding import compute as pc
from .encoding.arrow_forms import as_stream
from .encoding.copy_encoder import body_rows
from .errors import EncodingError
from .options.position_columns import PositionColumns


def refuse_outside(span: Span, batch: PlannedBatch) -> None:
    """
    Compare the positions of some of a batch's rows with its range; its start may be unknown.

    :raises EncodingError: naming the first partition whose rows say that they come from elsewhere.
    """
    after = places(span.next)
    begins, ends = places(batch.start), places(batch.end)
    for place, first in places(span.first).items():
        last = after[place] - 1
        begin = begins.get(place, 0)
        end = ends.get(place, 0)
        if first < begin or last >= end:
            _, topic, partition = place
            raise EncodingError.usual(
                "POSITION_COLUMNS",
                f"By their position columns, rows are records {first} to {last} of partition {partition} of topic "
                f"{topic!r}, but the batch reads that partition from {begin} and ends before {end}.",
                "Name the columns that hold topic, partition and offset as the Kafka source gives them, unchanged.",
            )


# Topic to partition to (least position, one past the greatest): what a parcel says about its rows.
Reach = dict[str, dict[str, tuple[int, int]]]


def reach(parts: Iterable[pa.RecordBatch]) -> Reach:
    """How far rows reach, by topic and partition."""
    found: Reach = {}
    for part in parts:
        topic = part["topic"].dictionary_decode()
        plain = pa.table({"topic": topic, "partition": part["partition"], "offset": part["offset"]})
        for row in plain.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist():
            ends = row["offset_min"], row["offset_max"] + 1
            widen(found, {row["topic"]: {str(row["partition"]): ends}})
    return found


def widen(found: Reach, further: Reach) -> None:
    """Extend ``found`` so that it reaches as far as ``further`` does."""
    for topic, partitions in further.items():
        known = found.setdefault(topic, {})
        for partition, (first, after) in partitions.items():
            least, most = known.get(partition, (first, after))
            known[partition] = min(first, least), max(after, most)


def span_of(source_id: str, whole: Reach) -> Span:
    """How far rows reach, as the verdict asks for it; ``source_id`` is the one source that they come from."""
    if not whole:
        return Span({}, {})
    first, after = (
        {topic: {p: ends[side] for p, ends in partitions.items()} for topic, partitions in whole.items()}
        for side in (0, 1)
    )
    return Span({source_id: first}, {source_id: after})


def not_stored(part: pa.RecordBatch, stored: Offsets) -> pa.BooleanArray:
    """Which rows are at or past what is stored."""
    keep = pa.repeat(pa.scalar(value=True), len(part))
    topic_of_row = part["topic"].dictionary_decode()
    for topics in stored.values():
        for topic, partitions in topics.items():
            # One look-up for all rows, however many partitions there are: a comparison with each of 1,000 took 25 ms
            # even for a single row, and a batch may have thousands of tasks.
            known = pa.array(map(int, partitions), part["partition"].type)
            stored_end = pc.take(pa.array(partitions.values(), pa.int64()), pc.index_in(part["partition"], known))
            old = pc.and_(pc.equal(topic_of_row, topic), pc.less(part["offset"], stored_end))
            # A partition without stored rows has no end.
            keep = pc.and_not(keep, pc.fill_null(old, fill_value=False))
    return keep


def is_stored(place: tuple[str, int, int] | None, stored: Offsets) -> bool:
    """Whether a row with this topic, partition and offset is below what is stored."""
    if place is None:
        return False
    topic, partition, offset = place
    positions = [topics.get(topic, {}).get(str(partition)) for topics in stored.values()]
    return any(position is not None and offset < position for position in positions)


@dataclass(frozen=True)
class EncodedRows:
    """
    Some rows of a task, as they travel to the commit: the body of a binary COPY, and how many rows it has.

    If rows carry their position in Kafka, ``positions`` has those of these rows, as an Arrow stream.
    """

    body: bytes = field(repr=False)
    count: int
    positions: bytes = field(default=b"", repr=False)

    @property
    def size(self) -> int:
        """The bytes of body and positions."""
        return len(self.body) + len(self.positions)

    def since(self, stored: Offsets) -> EncodedRows:
        """
        Those of the rows that are at or past what is stored.

        :raises pa.ArrowInvalid: if they do not carry their positions.
        """
        with pa.ipc.open_stream(self.positions) as stream:
            keep = not_stored(stream.read_next_batch(), stored)
        count = pc.sum(keep).as_py()
        if count == self.count:
            return self
        if not count:
            return EncodedRows(b"", 0)
        rows = memoryview(self.body)
        places = zip(body_rows(rows), keep, strict=True)
        return EncodedRows(b"".join(rows[start:end] for (start, end), wanted in places if wanted.as_py()), count)


def encoded_rows(body: bytes, count: int, places: pa.RecordBatch | None) -> EncodedRows:
    """The rows of ``body``; ``places`` are their positions, if they carry any."""
    return EncodedRows(body, count, b"" if places is None else as_stream(places))


def stored_already(columns: PositionColumns, stored: Offsets | None, span: Span | None) -> Column:
    """
    Whether a row is stored already, being below the stored positions; if there are none, no row is.

    :param span: where the batch begins and ends, as far as that is known.
    """
    topic, partition, offset = (f.col(quoted(name)) for name in columns.names)
    key = f.concat_ws(" ", partition.cast("string"), topic)
    lacks = topic.isNull() | partition.isNull() | offset.isNull()
    condition = f.when(lacks, _raising("A row has no complete position in Kafka", columns))
    if span is not None:
        # A partition that is not named may begin anywhere, but has no end: none of its rows belongs to the batch.
        begins, ends = _position_of(key, span.first), _position_of(key, span.next)
        is_outside = (offset < f.coalesce(begins, f.lit(0))) | (offset >= f.coalesce(ends, f.lit(0)))
        outside = _raising("A row's position in Kafka is not in the range that its batch reads", columns)
        condition = condition.when(is_outside, outside)
    return condition.otherwise(f.coalesce(offset < _position_of(key, stored), f.lit(False)))


def _position_of(key: Column, positions: Offsets | None) -> Column:
    """The position of a row's partition; null if the partition is not named."""
    pairs = [part for (_, t, p), position in places(positions).items() for part in (f.lit(f"{p} {t}"), f.lit(position))]
    # One look-up in a map, however many partitions there are.
    return f.element_at(f.create_map(*pairs), key) if pairs else f.lit(None).cast("bigint")


def _raising(what: str, columns: PositionColumns) -> Column:
    return f.raise_error(f.lit(f"[POSITION_COLUMNS] {what}: " + ", ".join(columns.names))).cast("boolean")


def quoted(name: str) -> str:
    """A column's name, as Spark reads it in an expression."""
    return "`" + name.replace("`", "``") + "`"
