"""
How far is a writer behind its sources?

Pure: runs wherever the ledger is read. Invariant: a lag is a number only where both sides are known; nothing unknown
counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pgonce.offsets_store.offsets.compare import Offsets, as_current
from pgonce.offsets_store.status.starting_offsets import TopicPartition
from pgonce.offsets_store.status.stored import PartitionLag, StoredWriter

Status = tuple[StoredWriter, list[PartitionLag]]
"""A writer, and how far it is behind: one row a topic and partition, or a source."""


@dataclass(frozen=True)
class Newest:
    """
    The newest offsets that are known, and since when.

    ``kafka`` holds each partition's earliest offset (None where unknown) and the one that its next row will get;
    ``other`` the newest offset of sources that are not Kafka, by source id.
    """

    kafka: Mapping[TopicPartition, tuple[int | None, int]]
    other: Offsets
    measured_at: datetime


def newest_of_progress(latest: Offsets, measured_at: datetime) -> Newest:
    """What a progress event said of the sources: for Kafka, where each partition ended when the batch was planned."""
    kafka: dict[TopicPartition, tuple[int | None, int]] = {}
    other: Offsets = {}
    for source_id, topic, partition, offset in as_current(latest):
        if topic is None or partition is None:
            other[source_id] = offset
        else:
            kafka[topic, partition] = (None, offset)
    return Newest(kafka, other, measured_at)


def lag_of(writer: StoredWriter, newest: Newest | None) -> list[PartitionLag]:
    """
    One row a topic and partition, or a source; partitions that only ``newest`` knows come last, without an end.

    A Kafka partition is found by its topic and number: progress events name sources by position, the ledger perhaps
    by name.
    """
    kafka = dict(newest.kafka) if newest else {}
    measured_at = newest.measured_at if newest else None
    rows = []
    for source_id, topic, partition, end in writer.positions:
        if topic is None or partition is None:
            latest, lag = (newest.other.get(source_id) if newest else None), None
        else:
            _, latest = kafka.pop((topic, partition), (None, None))
            lag = _distance(end, latest)
        rows.append(_row(writer, source_id, topic, partition, end, latest, lag, measured_at))
    for (topic, partition), (earliest, latest) in sorted(kafka.items()):
        rows.append(_row(writer, None, topic, partition, None, latest, _distance(earliest, latest), measured_at))
    return rows


def total_lag(rows: Sequence[PartitionLag]) -> int | None:
    """The sum over all rows; None where any is unknown, or where there is none."""
    lags = [row.lag for row in rows if row.lag is not None]
    return sum(lags) if rows and len(lags) == len(rows) else None


def _distance(start: int | None, latest: int | None) -> int | None:
    if start is None or latest is None or latest < start:
        return None
    return latest - start


def _row(writer: StoredWriter, *values: object) -> PartitionLag:
    return PartitionLag(writer.query_id, writer.sink_name, *values)  # type: ignore[arg-type]
