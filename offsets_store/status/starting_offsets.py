"""
Where must a new checkpoint start, so that it goes on where the old one ended?

Pure: runs wherever the ledger is read. Invariant: the answer names every known partition, at the offset after its last
published row. A query that cannot be continued exactly gets an OffsetsError.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from ..errors import UNCHANGED, OffsetsError
from ..kafka.broker import TopicPartition
from ..offsets.compare import Offsets, is_kafka
from .stored import StoredWriter

# Kafka's own numbers in startingOffsets: -2 is the earliest offset, -1 the latest.
EARLIEST = -2


def kafka_end(writer: StoredWriter) -> dict[TopicPartition, int]:
    """
    The next offset to read of each topic and partition, for a writer with one Kafka source and no other.

    :raises OffsetsError: OFFSETS_UNKNOWN, NOT_KAFKA, SEVERAL_SOURCES.
    """
    called = f"Query {writer.query_id} into sink {writer.sink_name!r}"
    end: Offsets | None = writer.end_offsets
    if end is None:
        raise OffsetsError(
            "OFFSETS_UNKNOWN",
            f"{called} has no known end of batch {writer.batch_id}: with offsetsFrom=listener only an OffsetsListener "
            "records it, and none has done so.",
            UNCHANGED,
            "Add OffsetsListener(url) to spark.streams before the query starts, or read the newest file in the "
            "checkpoint's offsets folder.",
        )
    if len(end) > 1:
        raise OffsetsError(
            "SEVERAL_SOURCES",
            f"{called} reads {len(end)} sources, and startingOffsets belongs to one.",
            UNCHANGED,
            f"`pgonce offsets {shlex.quote(writer.query_id)}` shows the end of each.",
        )
    offset = next(iter(end.values()), None)
    if not is_kafka(offset):
        raise OffsetsError(
            "NOT_KAFKA",
            f"{called} does not read Kafka: its source stands at {json.dumps(offset)}.",
            UNCHANGED,
            "Only Kafka's source takes startingOffsets. For rate-micro-batch and Delta, `pgonce new-checkpoint` writes "
            "the checkpoint again. For others, bring it back, or load the table again after `pgonce forget`.",
        )
    return {(topic, int(partition)): at for topic, parts in offset.items() for partition, at in parts.items()}


def starting_offsets_json(end: dict[TopicPartition, int], at_the_broker: Iterable[TopicPartition] | None = None) -> str:
    """
    The text for Kafka's ``startingOffsets``. Partitions that only the broker knows start at their earliest offset.

    :param at_the_broker: all partitions of the topics in ``end``; None if the broker was not asked.
    :raises OffsetsError: PARTITIONS_GONE, where the broker lacks a partition that has been read.
    """
    start = dict(end)
    if at_the_broker is not None:
        there = set(at_the_broker)
        if gone := sorted(end.keys() - there):
            names = ", ".join(f"{topic}-{partition}" for topic, partition in gone)
            raise OffsetsError(
                "PARTITIONS_GONE",
                f"The broker has no {names}, which the query has read: the topic was deleted, or recreated with fewer "
                "partitions.",
                UNCHANGED,
                "Check that these are the right brokers. The stored offsets say nothing about a new topic: start the "
                "query on a new checkpoint with independent=true.",
            )
        start = dict.fromkeys(there, EARLIEST) | start
    topics: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(start):
        topics.setdefault(topic, {})[str(partition)] = start[topic, partition]
    return json.dumps(topics)
