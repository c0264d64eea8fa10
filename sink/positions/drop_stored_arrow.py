"""
Which rows of Arrow batches, or of the COPY bodies made from them, or single ones, are stored already?

Pure: runs in the commit worker, in the receiver and on the driver. Invariant: a row is dropped only if its position is
below what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgonce.offsets_store.offsets.compare import Offsets

from ..encoding.copy_encoder import body_rows


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
            # A partition of which nothing is stored has no end.
            keep = pc.and_not(keep, pc.fill_null(old, fill_value=False))
    return keep


def is_stored(place: tuple[str, int, int] | None, stored: Offsets) -> bool:
    """Whether a row with this topic, partition and offset is below what is stored."""
    if place is None:
        return False
    topic, partition, offset = place
    positions = [topics.get(topic, {}).get(str(partition)) for topics in stored.values()]
    return any(position is not None and offset < position for position in positions)


def bodies_not_stored(
    bodies: Sequence[bytes], parts: Sequence[pa.RecordBatch], stored: Offsets
) -> Iterator[tuple[bytes, int]]:
    """The bodies of a binary COPY without the rows that are stored already, each with its number of rows."""
    for body, part in zip(bodies, parts, strict=True):
        keep = not_stored(part, stored)
        count = pc.sum(keep).as_py() or 0
        if count == len(part):
            yield body, count
        elif count:
            rows = memoryview(body)
            places = zip(body_rows(rows), keep, strict=True)
            yield b"".join(rows[start:end] for (start, end), wanted in places if wanted.as_py()), count
