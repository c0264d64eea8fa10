"""
If rows carry their positions in Kafka, decide whether a batch continues what is stored, overlaps it or leaves a gap.

Pure: runs in the commit. Invariant: a row is dropped only if its position is below what is stored for its partition. A
batch is accepted only if no row between what is stored and its own start can have been left out.

All sets of positions have the shape of a Kafka source's offsets: source id to topic to partition to next position.
"""

from __future__ import annotations

from dataclasses import dataclass

from .compare import Offsets, kafka_positions

Place = tuple[str, str, str]
"""A source's id, a topic and a partition."""


@dataclass(frozen=True)
class Span:
    """The positions of a batch's rows: the least in each partition, and the one after the greatest."""

    first: Offsets
    next: Offsets


def places(positions: Offsets | None) -> dict[Place, int]:
    """The position of each place; other sources than Kafka are left out."""
    found = kafka_positions(positions or {})
    return {(source_id, topic, str(partition)): position for source_id, topic, partition, position in found}


def furthest(*sets: Offsets | None) -> Offsets:
    """The greatest position of each partition in any of ``sets``."""
    found: Offsets = {}
    for positions in sets:
        for (source_id, topic, partition), position in places(positions).items():
            partitions = found.setdefault(source_id, {}).setdefault(topic, {})
            partitions[partition] = max(position, partitions.get(partition, 0))
    return found


def left_out(start: Offsets, stored: Offsets | None) -> list[str]:
    """
    The texts for the partitions in which a batch starts after what is stored: rows between the two may be missing.

    If nothing is stored of a partition, all its rows before the batch may be missing.
    """
    known = places(stored)
    return [
        f"{topic}-{partition} starts at {position}, stored is {known.get((source_id, topic, partition), 'nothing')}"
        for (source_id, topic, partition), position in sorted(places(start).items())
        if position > known.get((source_id, topic, partition), 0)
    ]


def below(first: Offsets, stored: Offsets | None) -> bool:
    """Whether the first row of any partition is below what is stored, so that rows must be dropped."""
    known = places(stored)
    return any(position < known.get(place, 0) for place, position in places(first).items())
