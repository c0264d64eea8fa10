"""
How far do the positions of rows reach, and do they lie in the range that their batch reads?

Pure: runs in tasks, in the commit worker and on the driver. Invariant: columns that hold anything but Kafka's positions
are refused before a row could be dropped because of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from pgonce.offsets_store.errors import NOTHING
from pgonce.offsets_store.offsets.positions import Span, places
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..errors import EncodingError


def refuse_outside(span: Span, batch: PlannedBatch) -> None:
    """
    Compare the positions of some of a batch's rows with its range, as far as that is known.

    :raises EncodingError: naming the first partition whose rows say that they come from elsewhere.
    """
    after = places(span.next)
    # If Spark writes down only some batches, an earlier batch's end is still a bound.
    begins, ends = places(batch.start or batch.resumes_at), places(batch.end)
    for place, first in places(span.first).items():
        last = after[place] - 1
        begin = begins.get(place, 0)
        end = ends.get(place, 0 if batch.end is not None else last + 1)
        if first < begin or last >= end:
            _, topic, partition = place
            raise EncodingError(
                "POSITION_OUTSIDE",
                f"Rows say that they are records {first} to {last} of partition {partition} of topic {topic!r}, but "
                f"the batch reads from {begin}" + (f" and ends before {end}." if batch.end is not None else " on."),
                NOTHING,
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


def reach_of(records: Iterable[tuple[str, int, int]]) -> Reach:
    """How far single rows reach, each given as topic, partition and offset."""
    found: Reach = {}
    for topic, partition, offset in records:
        widen(found, {topic: {str(partition): (offset, offset + 1)}})
    return found


def widen(found: Reach, further: Reach) -> None:
    """Extend ``found`` so that it reaches as far as ``further`` does."""
    for topic, partitions in further.items():
        known = found.setdefault(topic, {})
        for partition, (first, after) in partitions.items():
            least, most = known.get(partition, (first, after))
            known[partition] = min(first, least), max(after, most)


def span_of(source_id: str, reaches: Iterable[Reach]) -> Span:
    """What all parcels together say about a batch's rows."""
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
