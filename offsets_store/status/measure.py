"""
Measure how far queries are behind their Kafka brokers: in records, in seconds, and against the topic's retention.

Runs where a user or a program asks, without a listener and without Spark. Invariant: it only reads. A query that reads
topics that these brokers do not have is left out, and what is unknown is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ..kafka.partitions import ends_of, retention_seconds, times_of
from ..kafka.settings import Brokers
from ..ledger.session import reading
from ..offsets import TopicPartition, kafka_topics
from .ends import Newest, Status, lag_of, total_lag
from .read_stored import stored_writers
from .states import MeasuredLag
from .stored import PartitionLag, StoredWriter

_WHOLE = 100.0
Ages = Mapping[TopicPartition, float | None]
"""The age in seconds of the first unread record of each partition that has one; None if it is unknown."""
Ends = Mapping[TopicPartition, tuple[int | None, int]]
"""Each partition's earliest offset, and the one that its next record will get."""


@dataclass(frozen=True)
class Measured:
    """What was measured of one query and sink: in all, and by partition."""

    total: MeasuredLag
    partitions: Sequence[PartitionLag]


def lag_at_brokers(writers: Sequence[StoredWriter], kafka: Brokers) -> tuple[list[Status], Ends, datetime]:
    """
    How far each writer is behind these brokers, by partition; the ends that were compared; and when they were read.

    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    """
    topics = [set(kafka_topics(writer.end_offsets or {})) for writer in writers]
    ends = ends_of(set().union(*topics), kafka)
    now = datetime.now(timezone.utc)
    found = []
    for writer, own in zip(writers, topics, strict=True):
        newest = Newest({place: end for place, end in ends.items() if place[0] in own}, {}, now)
        found.append((writer, lag_of(writer, newest, now)))
    return found, ends, now


def measure_partitions(url: str, kafka: Brokers) -> list[Measured]:
    """
    One entry for each living query and sink that reads topics of these brokers, and nothing else.

    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    with reading(url) as connection:
        known = [writer for writer in stored_writers(connection) if writer.is_living]
    compared, ends, now = lag_at_brokers(known, kafka)
    behind = {(writer.query_id, writer.sink_name): rows for writer, rows in compared if total_lag(rows) is not None}
    # Several queries may stand at other offsets of one partition: the broker is asked for one of them at a time.
    times: dict[tuple[TopicPartition, int], float | None] = {}
    unread = {(place, end) for rows in behind.values() for place, end in _unread(rows)}
    while unread:
        asked = dict(unread)
        found = times_of(asked, kafka)
        times |= {(place, asked[place]): when for place, when in found.items()}
        unread -= set(asked.items())
    kept = retention_seconds({place[0] for place, _ in times}, kafka)
    measured = []
    for key, rows in behind.items():
        ages = _ages(rows, times, now)
        total = MeasuredLag(*key, total_lag(rows), _oldest(ages), _retention_used(rows, ages, kept, ends), now)
        # Each lag is known, so each row is of Kafka.
        places = ((row.topic or "", row.partition or 0) for row in rows)
        aged = [replace(row, lag_seconds=ages.get(place, 0.0)) for row, place in zip(rows, places, strict=True)]
        measured.append(Measured(total, aged))
    return measured


def _unread(rows: Iterable[PartitionLag]) -> Iterable[tuple[TopicPartition, int]]:
    """Where the first unread record of each partition that has one lies."""
    for row in rows:
        if row.lag and row.topic is not None and row.partition is not None:
            # A partition that was never read is read from its earliest offset.
            yield (row.topic, row.partition), row.latest_offset - row.lag


Times = Mapping[tuple[TopicPartition, int], float | None]


def _ages(rows: Iterable[PartitionLag], times: Times, now: datetime) -> dict[TopicPartition, float | None]:
    """The age of the first unread record of each partition; None where the broker did not tell it in time."""
    ages: dict[TopicPartition, float | None] = {}
    for place, end in _unread(rows):
        when = times.get((place, end))
        # Without a record there is only the end of a transaction, and no row will come of it.
        ages[place] = max(0.0, now.timestamp() - when) if when is not None else 0.0 if (place, end) in times else None
    return ages


def _oldest(ages: Ages) -> float | None:
    known = [age for age in ages.values() if age is not None]
    return max(known, default=0.0) if len(known) == len(ages) else None


def _retention_used(rows: Sequence[PartitionLag], ages: Ages, kept: Mapping[str, float], ends: Ends) -> float | None:
    """Percent of the retention that the oldest unread record has used; at least 100 if records are gone already."""
    used = [age / kept[place[0]] * _WHOLE for place, age in ages.items() if age is not None and kept.get(place[0])]
    gone = any(end < (ends[place][0] or 0) for place, end in _unread(rows) if place in ends)
    return max([*used, *([_WHOLE] if gone else [])], default=None)
