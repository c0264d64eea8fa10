"""
Is the topic still the one that was read before?

Runs in the commit worker, in a receiver, or on the driver. Invariant: the brokers are asked once in each run, before
its first batch, because nothing else tells that a topic was created again while the query was stopped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pgonce.offsets_store.kafka.broker import topic_ids
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.offsets.compare import kafka_topics
from pgonce.offsets_store.offsets.positions import furthest
from pgonce.offsets_store.verdict.facts import PlannedBatch


def with_topic_ids(batch: PlannedBatch, brokers: Brokers | None) -> PlannedBatch:
    """
    The batch, with Kafka's ids of the topics that it reads.

    :raises ConfigurationError: NO_KAFKA_CLIENT.
    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    """
    if brokers is None:
        return batch
    known = furthest(batch.end, batch.resumes_at, batch.span.next if batch.span else None)
    topics = tuple(sorted(kafka_topics(known)))
    return replace(batch, topic_ids=dict(_asked_once(batch.run_id, topics, brokers)))


@lru_cache(maxsize=64)
def _asked_once(_: str, topics: tuple[str, ...], brokers: Brokers) -> tuple[tuple[str, str], ...]:
    return tuple(topic_ids(topics, brokers).items())
