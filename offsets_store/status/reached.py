"""
What do all sinks of a query hold of its Kafka topics, and is that past given records?

Pure: runs wherever the ledger is read. Invariant: of several sinks the least counts, and what one of them does not know
is held by none, so an answer never runs ahead of Postgres.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import UNCHANGED, ConfigurationError, OffsetsError
from ..kafka.broker import TopicPartition
from ..offsets.compare import kafka_positions
from .stored import StoredWriter

RecordOffsets = Mapping[str, Mapping[str | int, int]]
"""Offsets of Kafka records, as a producer returns them: topic to partition to offset."""


def held_by_all(writers: Sequence[StoredWriter]) -> dict[TopicPartition, int]:
    """The end of each partition up to which every one of ``writers`` has its rows in Postgres."""
    ends = [_ends(writer) for writer in writers]
    known = set(ends[0]).intersection(*ends[1:]) if ends else set()
    return {place: min(end[place] for end in ends) for place in known}


def has_reached(writers: Sequence[StoredWriter], records: Mapping[TopicPartition, int]) -> bool:
    """Whether the rows of all these records are in, in every sink. An end is the offset after the last row's."""
    held = held_by_all(writers)
    return all(held.get(place, 0) > offset for place, offset in records.items())


def living_writers(found: Sequence[StoredWriter], query: str) -> list[StoredWriter]:
    """
    The writers among those of a query that may still publish.

    :raises OffsetsError: REPLACED, NO_LIVING_SINK.
    """
    living = [writer for writer in found if writer.replaced_by is None and writer.retired_at is None]
    if living:
        return living
    successor = found[0].replaced_by
    if successor is not None:
        raise OffsetsError(
            "REPLACED",
            f"Query {query!r} was replaced by query {successor}, which has continued from where it ended.",
            UNCHANGED,
            f"Ask for {successor}.",
        )
    raise OffsetsError(
        "NO_LIVING_SINK",
        f"All sinks of query {query!r} were retired: they will publish no more.",
        UNCHANGED,
        "Name the query that feeds their tables now; `pgonce status` shows all.",
    )


def parse_records(offsets: RecordOffsets) -> dict[TopicPartition, int]:
    """
    One entry a topic and partition.

    :raises ConfigurationError: BAD_OFFSETS, for another form than ``{"topic": {0: 41}}``.
    """
    try:
        found = {(topic, int(part)): at for topic, parts in offsets.items() for part, at in parts.items()}
    except (AttributeError, TypeError, ValueError):
        found = {("", 0): -1}
    if any(type(offset) is not int or offset < 0 for offset in found.values()):
        raise ConfigurationError(
            "BAD_OFFSETS",
            "The offsets to wait for are not topic to partition to offset.",
            UNCHANGED,
            'Give those of the records, as the producer returned them: {"orders": {0: 41}}.',
        )
    return found


def _ends(writer: StoredWriter) -> dict[TopicPartition, int]:
    ends: dict[TopicPartition, int] = {}
    # If two sources of the query read one topic, the one that is behind counts.
    for _, topic, partition, end in kafka_positions(writer.end_offsets or {}):
        ends[topic, partition] = min(end, ends.get((topic, partition), end))
    return ends
