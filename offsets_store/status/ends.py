"""
Compare where writers end with what lies in their sources: lag, records that were reached, where to start again.

Pure: runs where the ledger is read. Invariant: a lag is a number only if both sides are known, and the newest offset
was read not long ago. Of several sinks the least end counts, so an answer never runs ahead of Postgres. What is unknown
never counts as 0, and a query that cannot be continued exactly gets an OffsetsError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..errors import UNCHANGED, ConfigurationError, OffsetsError
from ..log_lines import in_command
from ..offsets import Offsets, TopicPartition, is_kafka, kafka_positions, same_json
from ..verdict.refused_batch import ANOTHER_TOPIC
from .stored import PartitionLag, StoredWriter, as_current, replaced

OLDEST = timedelta(minutes=10)
"""A newest offset that was read longer ago does not count: the source may have gone on since."""

Status = tuple[StoredWriter, list[PartitionLag]]
"""A writer, and how far it is behind: one row a topic and partition, or a source."""


@dataclass(frozen=True)
class Newest:
    """
    The newest offsets that are known, and when they were read.

    ``kafka`` has each partition's earliest offset (None if unknown) and the offset that its next row will get.
    ``other`` has the newest offset of each source that is not Kafka, by source id.
    """

    kafka: Mapping[TopicPartition, tuple[int | None, int]]
    other: Offsets
    measured_at: datetime


def newest_of_progress(latest: Offsets, measured_at: datetime) -> Newest:
    """
    The sources' newest offsets in a progress event; for Kafka, where each partition ended when the batch was planned.
    """
    kafka: dict[TopicPartition, tuple[int | None, int]] = {}
    other: Offsets = {}
    for source_id, topic, partition, offset in as_current(latest):
        if topic is None or partition is None:
            other[source_id] = offset
        else:
            kafka[topic, partition] = (None, offset)
    return Newest(kafka, other, measured_at)


def lag_of(writer: StoredWriter, newest: Newest | None, now: datetime) -> list[PartitionLag]:
    """
    One row a topic and partition, or a source. Partitions that only ``newest`` knows come last, without an end.

    What was measured longer than :data:`OLDEST` before ``now`` is shown with its time, and no lag is made of it.

    A Kafka partition is found by its topic and number, because progress events name a source by its position, and the
    ledger may know it by a name.
    """
    kafka = dict(newest.kafka) if newest else {}
    measured_at = newest.measured_at if newest else None
    is_old = measured_at is not None and now - measured_at > OLDEST
    rows, read = [], set()
    for source_id, topic, partition, end in writer.positions:
        if topic is None or partition is None:
            latest, lag = (newest.other.get(source_id) if newest else None), None
        else:
            # Two sources of one query may read the same topic.
            _, latest = kafka.get((topic, partition), (None, None))
            read.add((topic, partition))
            lag = None if is_old else _distance(end, latest)
        rows.append(_row(writer, source_id, topic, partition, end, latest, lag, measured_at))
    for (topic, partition), (earliest, latest) in sorted(kafka.items()):
        if (topic, partition) in read:
            continue
        lag = None if is_old else _distance(earliest, latest)
        rows.append(_row(writer, None, topic, partition, None, latest, lag, measured_at))
    return rows


def total_lag(rows: Sequence[PartitionLag]) -> int | None:
    """The sum over all partitions, each at its least end; None if a lag is unknown, or there are no rows."""
    lags: dict[tuple[str | None, int | None], int] = {}
    for row in rows:
        if row.lag is None:
            return None
        # Two sources of one query may read the same partition.
        place = row.topic, row.partition
        lags[place] = max(row.lag, lags.get(place, 0))
    return sum(lags.values()) if rows else None


def _distance(start: int | None, latest: int | None) -> int | None:
    if start is None or latest is None or latest < start:
        return None
    return latest - start


def _row(writer: StoredWriter, *values: object) -> PartitionLag:
    return PartitionLag(writer.query_id, writer.sink_name, *values)  # type: ignore[arg-type]


RecordOffsets = Mapping[str, Mapping[str | int, int]]
"""Offsets of Kafka records, as a producer returns them: topic to partition to offset."""


def has_reached(writers: Sequence[StoredWriter], records: Mapping[TopicPartition, int]) -> bool:
    """Whether the rows of all these records are in, in every sink. An end is the offset after the last row's."""
    return all(end.get(place, 0) > offset for end in map(_ends, writers) for place, offset in records.items())


def living_writers(found: Sequence[StoredWriter], query: str) -> list[StoredWriter]:
    """
    The writers among those of a query that may still publish.

    :raises OffsetsError: WRITER_GONE.
    """
    living = [writer for writer in found if writer.is_living]
    if living:
        return living
    if found[0].replaced_by is not None:
        raise replaced(query, found[0].replaced_by)
    raise OffsetsError.usual(
        "WRITER_GONE",
        f"All sinks of query {query!r} were retired: they will publish no more.",
        "Name the query that feeds their tables now; `pgonce status` shows all.",
    )


def parse_records(offsets: RecordOffsets) -> dict[TopicPartition, int]:
    """
    One entry a topic and partition.

    :raises ConfigurationError: BAD_OPTION, for another form than ``{"topic": {0: 41}}``.
    """
    try:
        found = {(topic, int(part)): at for topic, parts in offsets.items() for part, at in parts.items()}
    except (AttributeError, TypeError, ValueError):
        found = {("", 0): -1}
    if any(type(offset) is not int or offset < 0 for offset in found.values()):
        raise ConfigurationError(
            "BAD_OPTION",
            "The offsets to wait for must be a dict of topics, each with a dict of partitions and offsets.",
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


# Kafka's own numbers in startingOffsets: -2 is the earliest offset, -1 the latest.
EARLIEST = -2


def kafka_end(writer: StoredWriter) -> dict[TopicPartition, int]:
    """
    The next offset to read of each topic and partition, for a writer with one Kafka source and no other.

    A source that the plan reads twice has its end twice, and counts as one.

    :raises OffsetsError: OFFSETS_UNKNOWN, NO_STARTING_OFFSETS.
    """
    end: Offsets | None = writer.end_offsets
    called = f"Query {writer.query_id} into sink {writer.sink_name!r}"
    if end is None:
        raise OffsetsError.usual(
            "OFFSETS_UNKNOWN",
            f"{called} has no known end of batch {writer.batch_id}: with offsetsFrom=listener only an OffsetsListener "
            "records it, and none has done so.",
            "Add OffsetsListener(url) to spark.streams before the query starts, or read the newest file in the "
            "checkpoint's offsets folder.",
        )
    offset, *others = end.values() or [None]
    if not all(same_json(offset, other) for other in others):
        raise OffsetsError.usual(
            "NO_STARTING_OFFSETS",
            f"{called} reads {len(end)} sources, and startingOffsets belongs to one.",
            f"`pgonce status {in_command(writer.query_id, 'QUERY')}` shows the end of each.",
        )
    if not is_kafka(offset):
        raise OffsetsError.usual(
            "NO_STARTING_OFFSETS",
            f"{called} does not read Kafka: its source stands at {json.dumps(offset)}.",
            "Only Kafka's source takes startingOffsets. For rate-micro-batch and Delta, write the checkpoint again "
            "(page `recovering` of the documentation, A lost checkpoint). For others, bring it back, or load the table "
            "again after `pgonce forget`.",
        )
    return {(topic, int(partition)): at for topic, parts in offset.items() for partition, at in parts.items()}


def starting_offsets_json(end: dict[TopicPartition, int], at_the_broker: Iterable[TopicPartition] | None = None) -> str:
    """
    The text for Kafka's ``startingOffsets``. Partitions that only the broker knows start at their earliest offset.

    :param at_the_broker: all partitions of the topics in ``end``; None if the broker was not asked.
    :raises OffsetsError: PARTITIONS_GONE, if the broker lacks a partition that has been read.
    """
    start = dict(end)
    if at_the_broker is not None:
        there = set(at_the_broker)
        if gone := sorted(end.keys() - there):
            names = ", ".join(f"{topic}-{partition}" for topic, partition in gone)
            raise OffsetsError.usual(
                "PARTITIONS_GONE",
                f"The broker has no {names}, which the query has read: the topic was deleted, or recreated with fewer "
                "partitions.",
                "Check that these are the right brokers. If they are, and the topic was created again: "
                f"{ANOTHER_TOPIC}",
            )
        start = dict.fromkeys(there, EARLIEST) | start
    topics: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(start):
        topics.setdefault(topic, {})[str(partition)] = start[topic, partition]
    return json.dumps(topics)
