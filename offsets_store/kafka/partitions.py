"""
Ask Kafka brokers what people look at: partitions, ends, how long records are kept, and how old those are that wait.

Runs where the lag is asked for, and in real time. Needs the optional ``confluent-kafka``. Invariant: it only reads; it
joins no consumer group and commits nothing. Of records, it fetches one batch of each partition, and keeps their times
only.

All that asks brokers raises what :mod:`~pgonce.offsets_store.kafka.broker` says.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..offsets import TopicPartition
from .broker import RIGHTS, admin_for, asking, at_topic
from .settings import Brokers

# librdkafka insists on a group; nothing joins it.
_NO_GROUP = "pgonce-reads-metadata-only"


def partitions_of(topics: Iterable[str], brokers: Brokers) -> set[TopicPartition]:
    """Every partition of ``topics``; a topic that does not exist has none."""
    with _consumer_for(brokers) as consumer:
        return set(_partitions(consumer, topics, brokers.patience_seconds))


def ends_of(topics: Iterable[str], brokers: Brokers) -> dict[TopicPartition, tuple[int | None, int]]:
    """Each partition's earliest offset, and the one that its next row will get."""
    seconds = brokers.patience_seconds
    with _consumer_for(brokers) as consumer:
        import confluent_kafka

        return {
            place: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*place), timeout=seconds)
            for place in _partitions(consumer, topics, seconds)
        }


@contextmanager
def _consumer_for(brokers: Brokers) -> Iterator[Any]:
    """A consumer that joins no group and commits nothing."""
    with asking(brokers) as settings:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {**settings, "group.id": _NO_GROUP, "enable.auto.commit": False, "allow.auto.create.topics": False}
        )
        try:
            yield consumer
        except BaseException:
            consumer.poll(0)
            raise
        finally:
            consumer.close()


def _partitions(consumer: Any, topics: Iterable[str], seconds: float) -> list[TopicPartition]:
    found = []
    known = consumer.list_topics(timeout=seconds).topics
    for topic in topics:
        # A list of all topics leaves out those that this user may not see. Asked for one of them, the broker says so.
        told = known.get(topic) or consumer.list_topics(topic, timeout=seconds).topics[topic]
        if told.error is not None and told.error.name() in RIGHTS:
            raise at_topic(topic, told.error)
        found += [(topic, partition) for partition in told.partitions]
    return found


_LONGEST_SECONDS = 10
# The broker sends at least one whole batch, however small this is.
_LITTLE = {"fetch.message.max.bytes": "1024", "enable.partition.eof": "true", "auto.offset.reset": "earliest"}
_FOREVER = -1


def times_of(records: Mapping[TopicPartition, int], brokers: Brokers) -> dict[TopicPartition, float | None]:
    """
    The time of the first record at or after each offset, in seconds since 1970, as Kafka has it.

    None if there is no record, only the end of transactions. A partition whose answer did not come in time is missing.

    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    """
    if not records:
        return {}
    found: dict[TopicPartition, float | None] = {}
    with _consumer_for(replace(brokers, settings=(*brokers.settings, *_LITTLE.items()))) as consumer:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka import TopicPartition as Place

        consumer.assign([Place(topic, partition, offset) for (topic, partition), offset in records.items()])
        until = time.monotonic() + min(brokers.patience_seconds, _LONGEST_SECONDS)
        while len(found) < len(records) and (left := until - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None:
                continue
            place = (message.topic(), message.partition())
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 (its public name)
                raise KafkaException(error)
            if place in records and place not in found:
                found[place] = None if error is not None else message.timestamp()[1] / 1000
                consumer.pause([Place(*place)])
    return found


def retention_seconds(topics: Iterable[str], brokers: Brokers) -> dict[str, float]:
    """
    How long each topic keeps a record. Topics that keep records for ever, or only the newest of a key, are left out.

    So are all topics if the login may not read their configuration.

    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    """
    names = sorted(set(topics))
    if not names:
        return {}
    kept = {}
    with admin_for(brokers) as admin:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in names]
        answers = admin.describe_configs(resources, request_timeout=brokers.patience_seconds)
        for resource, answer in answers.items():
            try:
                configuration = answer.result()
            except KafkaException:
                # It needs DESCRIBE_CONFIGS, which reading a topic does not, and no lag depends on it.
                continue
            retention_ms = int(configuration["retention.ms"].value)
            if retention_ms != _FOREVER and "delete" in configuration["cleanup.policy"].value:
                kept[resource.name] = retention_ms / 1000
    return kept
