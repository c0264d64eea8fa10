"""
Describe what a query reads, and decide whether another query is proven to read something else.

Pure: runs in the commit, and in the command ``pgonce``. Invariant: unknown sources never count as different. Two
queries read different places only if both read nothing but Kafka, and share no partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..offsets import Offsets, is_kafka, kafka_partitions


@dataclass(frozen=True)
class Reads:
    """All that a query has ever read, as far as it was recorded: Kafka's topics and partitions."""

    partitions: frozenset[tuple[str, int]] = frozenset()

    def and_also(self, others: Reads) -> Reads:
        """What either of the two reads."""
        return Reads(self.partitions | others.partitions)

    def record(self) -> dict[str, Any]:
        """The form in which the ledger keeps it."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        return {"kafka": topics}


def recorded_reads(record: Any) -> Reads | None:
    """What a writer reads, according to the ledger; None if the ledger does not know all of it."""
    # Older code noted folders of files, which prove nothing. Its list is empty where all sources were Kafka's.
    if not isinstance(record, dict) or record.get("folders"):
        return None
    kafka = record.get("kafka", {})
    return Reads(frozenset((topic, partition) for topic, partitions in kafka.items() for partition in partitions))


def reads_of(offsets: Offsets | None) -> Reads | None:
    """All that a query reads, as a batch shows it; None if a source is not Kafka's, or nothing is known."""
    if not offsets or not all(is_kafka(offset) for offset in offsets.values()):
        return None
    return seen_in(offsets)


def seen_in(offsets: Offsets | None) -> Reads:
    """What a batch shows of what its query reads, whether that is all or not."""
    return Reads(frozenset(kafka_partitions(offsets or {})))


def together(before: Reads | None, now: Reads | None) -> Reads | None:
    """What either of the two reads; None if one of them is unknown."""
    if before is None or now is None:
        return None
    return before.and_also(now)


def are_apart(ours: Reads | None, theirs: Reads | None) -> bool:
    """Whether it is proven that no row of one can be a row of the other."""
    return ours is not None and theirs is not None and not shared(ours, theirs)


def shared(ours: Reads, theirs: Reads) -> list[str]:
    """The text for what both are known to read; empty if there is nothing."""
    topics = sorted({topic for topic, _ in ours.partitions & theirs.partitions})
    return [f"the same Kafka partitions of {', '.join(topics)}"] if topics else []
