"""
Which offsets of a consumer group have to change, and may they?

Pure: runs where a person exports a query's offsets. Invariant: nothing is set ahead of what all sinks of the query
hold, and an offset that somebody else has stored is overwritten only if a person says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import UNCHANGED, OffsetsError
from ..kafka.broker import TopicPartition
from ..kafka.groups import GroupOffset
from ..status.reached import held_by_all
from ..status.stored import StoredWriter


@dataclass(frozen=True)
class Move:
    """One partition of the group: where it stood (None for nowhere), and where it is set to."""

    topic: str
    partition: int
    before: int | None
    after: int

    @property
    def goes_back(self) -> bool:
        """Whether the ledger is behind what the group said before."""
        return self.before is not None and self.after < self.before


def mark_of(query_id: str) -> str:
    """The note that is stored with each offset, so that one sees later who has set it."""
    return f"pgonce {query_id}"


def ends_to_export(living: Sequence[StoredWriter], query: str) -> dict[TopicPartition, int]:
    """
    The end of each partition that all sinks hold.

    :raises OffsetsError: OFFSETS_UNKNOWN, if a sink's end is not known; NOT_KAFKA, if it is not Kafka's.
    """
    for writer in living:
        if writer.end_offsets is None:
            raise OffsetsError(
                "OFFSETS_UNKNOWN",
                f"Nobody knows where batch {writer.batch_id} of query {query!r} into sink {writer.sink_name!r} ended: "
                "with offsetsFrom=listener only an OffsetsListener records it, and none has done so.",
                UNCHANGED,
                "Add OffsetsListener(url) to spark.streams before the query starts.",
            )
    held = held_by_all(living)
    if not held and not any(writer.positions and writer.positions[0].topic for writer in living):
        raise OffsetsError(
            "NOT_KAFKA",
            f"Query {query!r} does not read Kafka, so there is nothing that a consumer group could say of it.",
            UNCHANGED,
            f"`pgonce offsets {shlex.quote(query)}` shows where it stands.",
        )
    return held


def beyond_the_log(ends: Mapping[TopicPartition, int], log: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """
    The partitions that hold fewer records than the query has read.

    :param log: the offset that each partition's next record will get, as far as the broker has it.
    """
    return sorted(place for place, end in ends.items() if end > log.get(place, end))


def topic_is_shorter(
    ends: Mapping[TopicPartition, int], log: Mapping[TopicPartition, int], shorter: Sequence[TopicPartition]
) -> OffsetsError:
    """The error for partitions that end before the place up to which Postgres has their rows."""
    some = ", ".join(
        f"{topic}-{partition} ends at {log[topic, partition]}, Postgres holds it up to {ends[topic, partition]}"
        for topic, partition in shorter[:3]
    )
    return OffsetsError(
        "PARTITIONS_GONE",
        f"The broker has fewer records than the query has read ({some}): the topic was deleted and created again, the "
        "broker has lost records, or these are other brokers.",
        f"{UNCHANGED} The ends in Postgres say nothing of the topic's new records.",
        "Check that these are the right brokers, and where the query reads now.",
    )


def moves_of(ends: Mapping[TopicPartition, int], group: Mapping[TopicPartition, GroupOffset], mark: str) -> list[Move]:
    """What has to be set: each partition that stands elsewhere, or has no note of ours."""
    return [
        Move(*place, group[place].offset if place in group else None, end)
        for place, end in sorted(ends.items())
        if place not in group or group[place] != GroupOffset(end, mark)
    ]


def strangers(
    group: Mapping[TopicPartition, GroupOffset], ends: Mapping[TopicPartition, int], marks: set[str]
) -> list[TopicPartition]:
    """
    Where somebody else has stored what is read next of the topics of the query.

    :param marks: the notes by which offsets are known to be ours.
    """
    return sorted(place for place in ends if place in group and group[place].metadata not in marks)


def not_ours(name: str, group: Mapping[TopicPartition, GroupOffset], strange: Sequence[TopicPartition]) -> OffsetsError:
    """The error for a group in which somebody else has stored the ``strange`` offsets, and that nobody reads with."""
    some = ", ".join(f"{topic}-{partition} at {group[topic, partition].offset}" for topic, partition in strange[:3])
    return OffsetsError(
        "GROUP_NOT_OURS",
        f"The consumer group {name!r} has offsets that this query has not set ({some}): it may belong to a reader "
        "that is stopped now, and would then go on from the wrong place.",
        UNCHANGED,
        "Use another group; or give --take-over if nobody reads by this one.",
    )
