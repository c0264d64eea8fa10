"""
How far is a writer behind its sources?

Pure: runs wherever the ledger is read. Invariant: a lag is a number only if both sides are known, and the newest offset
was read not long ago; what is unknown never counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..kafka.broker import TopicPartition
from ..offsets.compare import Offsets, as_current
from .stored import PartitionLag, StoredWriter

OLDEST = timedelta(minutes=10)
"""A newest offset that was read longer ago says nothing about now: the source may have gone on, unheard."""

Status = tuple[StoredWriter, list[PartitionLag]]
"""A writer, and how far it is behind: one row a topic and partition, or a source."""


@dataclass(frozen=True)
class Newest:
    """
    The newest offsets that are known, and when they were read.

    ``kafka`` has each partition's earliest offset (None where unknown) and the offset that its next row will get.
    ``other`` has the newest offset of each source that is not Kafka, by source id.
    """

    kafka: Mapping[TopicPartition, tuple[int | None, int]]
    other: Offsets
    measured_at: datetime


def newest_of_progress(latest: Offsets, measured_at: datetime) -> Newest:
    """What a progress event said of the sources; for Kafka, where each partition ended when the batch was planned."""
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
    rows = []
    for source_id, topic, partition, end in writer.positions:
        if topic is None or partition is None:
            latest, lag = (newest.other.get(source_id) if newest else None), None
        else:
            _, latest = kafka.pop((topic, partition), (None, None))
            lag = None if is_old else _distance(end, latest)
        rows.append(_row(writer, source_id, topic, partition, end, latest, lag, measured_at))
    for (topic, partition), (earliest, latest) in sorted(kafka.items()):
        lag = None if is_old else _distance(earliest, latest)
        rows.append(_row(writer, None, topic, partition, None, latest, lag, measured_at))
    return rows


def total_lag(rows: Sequence[PartitionLag]) -> int | None:
    """The sum over all rows; None if any is unknown, or there are no rows."""
    lags = [row.lag for row in rows if row.lag is not None]
    return sum(lags) if rows and len(lags) == len(rows) else None


def last_known_lag(rows: Sequence[PartitionLag]) -> tuple[int | None, datetime | None]:
    """The sum as it was when it was measured, however long ago; and when that was."""
    lags = [row.lag if row.lag is not None else _distance_of(row) for row in rows]
    known = [lag for lag in lags if lag is not None]
    measured_at = rows[0].measured_at if rows else None
    return (sum(known) if rows and len(known) == len(rows) else None), measured_at


def _distance_of(row: PartitionLag) -> int | None:
    return None if row.topic is None else _distance(row.end_offset, row.latest_offset)


def _distance(start: int | None, latest: int | None) -> int | None:
    if start is None or latest is None or latest < start:
        return None
    return latest - start


def _row(writer: StoredWriter, *values: object) -> PartitionLag:
    return PartitionLag(writer.query_id, writer.sink_name, *values)  # type: ignore[arg-type]
