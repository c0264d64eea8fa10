"""
Compare two sets of offsets: whether they are the same, and whether one goes back behind the other.

Pure: runs anywhere. Invariant: two sets are called the same only if nothing was lost when they were read. An unknown
offset equals nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

from .exact_json import decode_exactly, same_json

Offsets = dict[str, Any]
"""Source id (``"0"``, ``"1"``, or the name of a named source) to its parsed offset.

An offset is a text if it is not JSON, or JSON that cannot be held exactly. It is None if the source had none yet.
"""
_PARTITION = re.compile(r"0|[1-9][0-9]*", re.ASCII)


class CurrentOffset(NamedTuple):
    """Where one source, or one partition of a Kafka source, stands. Only Kafka has a topic and a partition."""

    source_id: str
    topic: str | None
    partition: int | None
    offset: Any


def parse_offset(text: str) -> Any:
    """
    Read one source's offset, as the offset log, a progress event or the running query give it.

    ``-`` (no offset yet) gives None. A text that is not JSON, or cannot be held exactly, is returned as it is.
    """
    if text == "-":
        return None
    try:
        return decode_exactly(text)
    except ValueError:
        return text


def is_kafka(offset: Any) -> TypeGuard[dict[str, dict[str, int]]]:
    """Whether an offset has the shape ``{"topic": {"0": 23}}``: the next offset to read, by partition."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(partitions, dict)
            and bool(partitions)
            and all(
                _PARTITION.fullmatch(partition) and type(position) is int and position >= 0
                for partition, position in partitions.items()
            )
            for partitions in offset.values()
        )
    )


def kafka_partitions(offsets: Offsets) -> set[tuple[str, int]]:
    """Every topic and partition that any source reads."""
    return {position[1:3] for position in kafka_positions(offsets)}


def kafka_topics(offsets: Offsets) -> set[str]:
    """Every topic that any source reads."""
    return {topic for topic, _ in kafka_partitions(offsets)}


def says_which_rows(offsets: Offsets | None) -> bool:
    """Whether equal offsets mean equal rows. With Kafka they do; with files they were found not to."""
    return bool(offsets) and all(map(is_kafka, (offsets or {}).values()))


def tells_which_rows(offset: Any) -> bool:
    """
    Whether an offset alone says which rows come next, so that a checkpoint can be written from it.

    It does with Kafka, rate-micro-batch and Delta, whose shapes these are. The offset of a file source is a line number
    in a list that is kept in another file, and a number alone can mean anything.
    """
    if not isinstance(offset, dict):
        return False
    return (
        is_kafka(offset)
        or offset.keys() == {"offset", "timestamp"}
        or {"reservoirId", "reservoirVersion"} <= offset.keys()
    )


def same(a: Offsets | None, b: Offsets | None) -> bool:
    """
    Whether both have the same offsets of the same sources.

    What is unknown (None, no sources at all, or a source whose offset is None) equals nothing, not even itself.
    """
    return bool(a) and same_json(a, b) and None not in (a or {}).values()


def goes_back(start: Offsets | None, end: Offsets | None) -> list[str]:
    """
    The texts for the Kafka partitions whose end is before their start, or that no longer have an end.

    In either case a topic was recreated, or a checkpoint is older than its ledger. An unknown side shows nothing.
    """
    if start is None or end is None:
        return []
    ends = {position[:3]: position[3] for position in kafka_positions(end)}
    found = []
    for source_id, topic, partition, start_offset in sorted(kafka_positions(start)):
        end_offset = ends.get((source_id, topic, partition))
        if end_offset is None:
            found.append(f"{topic}-{partition} was at {start_offset} and is gone")
        elif end_offset < start_offset:
            found.append(f"{topic}-{partition} was at {start_offset} and goes back to {end_offset}")
    return found


def as_current(offsets: Offsets) -> list[CurrentOffset]:
    """One row a topic and partition for Kafka, one a source otherwise, in order."""
    rows: list[CurrentOffset] = []
    for source_id in sorted(offsets, key=_source_order):
        offset = offsets[source_id]
        partitions = [CurrentOffset(*position) for position in sorted(kafka_positions({source_id: offset}))]
        rows += partitions or [CurrentOffset(source_id, None, None, offset)]
    return rows


def kafka_positions(offsets: Offsets) -> Iterator[tuple[str, str, int, int]]:
    """Source id, topic, partition and position of all that is Kafka's in ``offsets``."""
    for source_id, offset in offsets.items():
        if is_kafka(offset):
            for topic, partitions in offset.items():
                for partition, position in partitions.items():
                    yield source_id, topic, int(partition), position


def _source_order(source_id: str) -> tuple[bool, int, str]:
    if source_id.isdecimal():
        return False, int(source_id), ""
    return True, 0, source_id
