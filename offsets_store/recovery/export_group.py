"""
Set a consumer group to what Postgres holds of a query's topics.

Runs in a shell, or where a program calls it. Invariant: only committed ends of the ledger are set, and of several sinks
the least; so the group is never ahead of Postgres, and goes back if the ledger has gone back. An offset that another
consumer has stored is overwritten only if the user says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import UNCHANGED, GroupError, OffsetsError
from ..kafka.groups import GroupOffset, group_in_use, group_offsets, has_members, log_ends, move_group
from ..kafka.settings import Brokers
from ..ledger.session import reading
from ..log_lines import in_command
from ..offsets import TopicPartition
from ..status.ends import end_unknown, held_by_all, living_writers
from ..status.read_stored import writers_of
from ..status.stored import StoredWriter


@dataclass(frozen=True)
class Exported:
    """What one look has found and done: the query, the last batch of the sink that is furthest behind, the moves."""

    query_id: str
    batch_id: int | None
    partitions: int
    moves: list[Move]


def export_group(
    query: str, group: str, brokers: Brokers, url: str = "", *, sink: str | None = None, take_over: bool = False
) -> Exported:
    """
    Set the group once, and say what has changed; nothing is written to Kafka if nothing has.

    :param sink: export this sink alone, instead of the least of all.
    :param take_over: overwrite offsets that this query has not set.
    :raises OffsetsError: GROUP_IN_USE, GROUP_NOT_OURS, PARTITIONS_GONE, and errors about the query or the brokers.
    """
    with reading(url) as connection:
        living = living_writers(writers_of(connection, query, sink), query)
    first = living[0]
    ends = ends_to_export(living, query)
    log = log_ends(ends, brokers)
    if shorter := beyond_the_log(ends, log):
        raise topic_is_shorter(ends, log, shorter)
    before = group_offsets(group, ends, brokers)
    mark = mark_of(first.query_id)
    if not take_over:
        marks = {mark, *(mark_of(writer.replaces) for writer in living if writer.replaces)}
        if strange := strangers(before, ends, marks):
            # A reader that has left in between has stored its offsets nevertheless.
            raise group_in_use(group) if has_members(group, brokers) else not_ours(group, before, strange)
    moves = moves_of(ends, before, mark)
    move_group(group, {(move.topic, move.partition): move.after for move in moves}, mark, brokers)
    batches = [writer.batch_id for writer in living if writer.batch_id is not None]
    return Exported(first.query_id, min(batches, default=None), len(ends), moves)


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
    """The note that is stored with each offset, so that it shows later who has set it."""
    return f"pgonce {query_id}"


def ends_to_export(living: Sequence[StoredWriter], query: str) -> dict[TopicPartition, int]:
    """
    The end of each partition that all sinks hold.

    :raises OffsetsError: OFFSETS_UNKNOWN, if a sink's end is not known; NOT_KAFKA, if it is not Kafka's.
    """
    for writer in living:
        if writer.end_offsets is None:
            raise end_unknown(writer)
    held = held_by_all(living)
    if not held and not any(writer.positions and writer.positions[0].topic for writer in living):
        raise OffsetsError(
            "NOT_KAFKA",
            f"Query {query!r} does not read Kafka, so there are no offsets that a consumer group could have.",
            UNCHANGED,
            f"`pgonce offsets {in_command(query, 'NAME')}` shows where it stands.",
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
        f"{UNCHANGED} The ends in Postgres say nothing about the topic's new records.",
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
    The partitions of the query's topics for which another consumer has stored an offset.

    :param marks: the metadata that offsets of ours have.
    """
    return sorted(place for place in ends if place in group and group[place].metadata not in marks)


def not_ours(name: str, group: Mapping[TopicPartition, GroupOffset], strange: Sequence[TopicPartition]) -> GroupError:
    """The error for a group without a reader, in which another consumer has stored the ``strange`` offsets."""
    some = ", ".join(f"{topic}-{partition} at {group[topic, partition].offset}" for topic, partition in strange[:3])
    return GroupError(
        "GROUP_NOT_OURS",
        f"The consumer group {name!r} has offsets that this query has not set ({some}): it may belong to a reader "
        "that is stopped now, and would then go on from the wrong place.",
        UNCHANGED,
        "Use another group; or give --take-over if no consumer reads with this one.",
    )
