"""
What does a Kafka broker say of topics: their partitions, where these begin and end, and their ids?

Runs wherever the stored offsets are asked for, and at the first batch of a run. Needs the optional ``confluent-kafka``.
Invariant: it only reads metadata; it joins no consumer group and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pgonce.offsets_store.errors import UNCHANGED, ConfigurationError, OffsetsError

TopicPartition = tuple[str, int]
"""A topic, and the number of one of its partitions."""

_TIMEOUT_SECONDS = 15


def partitions_of(topics: Iterable[str], bootstrap_servers: str) -> set[TopicPartition]:
    """
    Every partition of ``topics``; a topic that does not exist has none.

    :raises ConfigurationError: NO_KAFKA_CLIENT.
    :raises OffsetsError: KAFKA_UNREACHABLE.
    """
    return set(_with_consumer(lambda consumer: _partitions(consumer, topics), bootstrap_servers))


def ends_of(topics: Iterable[str], bootstrap_servers: str) -> dict[TopicPartition, tuple[int | None, int]]:
    """
    Each partition's earliest offset, and the one that its next row will get.

    :raises ConfigurationError: NO_KAFKA_CLIENT.
    :raises OffsetsError: KAFKA_UNREACHABLE.
    """
    return dict(_with_consumer(lambda consumer: _ends(consumer, topics), bootstrap_servers))


def topic_ids(topics: Iterable[str], bootstrap_servers: str) -> dict[str, str]:
    """
    Kafka's id of each topic that exists: a topic that was deleted and recreated has another id.

    :raises ConfigurationError: NO_KAFKA_CLIENT.
    :raises OffsetsError: KAFKA_UNREACHABLE.
    """
    names = sorted(topics)
    return _asked(lambda: dict(_topic_ids(names, bootstrap_servers)), bootstrap_servers) if names else {}


def _with_consumer(ask: Any, bootstrap_servers: str) -> Any:
    return _asked(lambda: _ask_consumer(ask, bootstrap_servers), bootstrap_servers)


def _asked(ask: Callable[[], Any], bootstrap_servers: str) -> Any:
    try:
        from confluent_kafka import KafkaException
    except ImportError as error:
        raise ConfigurationError(
            "NO_KAFKA_CLIENT",
            "Asking a Kafka broker needs the package confluent-kafka, which is not installed here.",
            UNCHANGED,
            "Install it (pip install 'pgonce[kafka]'), or leave out the bootstrap servers.",
        ) from error
    try:
        return ask()
    except (KafkaException, ValueError) as error:
        raise OffsetsError(
            "KAFKA_UNREACHABLE",
            f"The brokers {bootstrap_servers} gave no answer: {error}.",
            UNCHANGED,
            "Check the bootstrap servers (host:port, several with commas) and that they are reachable from here.",
        ) from error


# Otherwise every failed connection would be a line on stderr; our error says it once.
_QUIET = {"log_level": 0}


def _ask_consumer(ask: Any, bootstrap_servers: str) -> Any:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": bootstrap_servers,
        # librdkafka insists on a group; nothing joins or commits to it.
        "group.id": "pgonce-reads-metadata-only",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
        **_QUIET,
    }
    consumer = Consumer(settings)
    try:
        return ask(consumer)
    finally:
        consumer.close()


def _topic_ids(topics: list[str], bootstrap_servers: str) -> Iterator[tuple[str, str]]:
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET})
    answers = admin.describe_topics(TopicCollection(topics), request_timeout=_TIMEOUT_SECONDS)
    for topic, answer in answers.items():
        try:
            yield topic, str(answer.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def _partitions(consumer: Any, topics: Iterable[str]) -> list[TopicPartition]:
    found = []
    known = consumer.list_topics(timeout=_TIMEOUT_SECONDS).topics
    for topic in topics:
        if topic in known:
            found += [(topic, partition) for partition in known[topic].partitions]
    return found


def _ends(consumer: Any, topics: Iterable[str]) -> list[tuple[TopicPartition, tuple[int, int]]]:
    import confluent_kafka

    return [
        (
            (topic, partition),
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=_TIMEOUT_SECONDS),
        )
        for topic, partition in _partitions(consumer, topics)
    ]
