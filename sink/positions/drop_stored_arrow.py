"""
Which rows of Arrow batches, or of the COPY bodies made from them, are stored already?

Pure: runs in the commit worker, in the receiver and on the driver. Invariant: a row is dropped only if its position is
below what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.sink.encoding.copy_bodies import body_rows


def not_stored(part: pa.RecordBatch, stored: Offsets) -> pa.BooleanArray:
    """Which rows are at or past what is stored."""
    keep = pa.repeat(pa.scalar(value=True), len(part))
    for topics in stored.values():
        for topic, partitions in topics.items():
            of_topic = pc.equal(part["topic"].dictionary_decode(), topic)
            for partition, position in partitions.items():
                of_partition = pc.and_(of_topic, pc.equal(part["partition"], int(partition)))
                old = pc.and_(of_partition, pc.less(part["offset"], position))
                keep = pc.and_not(keep, old)
    return keep


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
