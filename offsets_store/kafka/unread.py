"""
Ask a Kafka broker about records that were not read yet: how old the first of them is, and how long its topic keeps it.

Runs where the stored offsets are asked for. Needs the optional ``confluent-kafka``. Invariant: it only reads; it joins
no consumer group and commits nothing. It fetches one batch of records of each partition, and keeps their times only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..offsets import TopicPartition
from .broker import admin_for, consumer_for
from .settings import Brokers

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
    with consumer_for(replace(brokers, settings=(*brokers.settings, *_LITTLE.items()))) as consumer:
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
