"""
Ask Kafka brokers for the ids of topics.

Runs at the first batch of a run, and in real time. Needs the optional ``confluent-kafka``. Invariant: it only reads.

All that asks brokers raises ConfigurationError (NOT_INSTALLED), or OffsetsError (KAFKA_UNREACHABLE, KAFKA_REFUSED).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import BrokersError, UnreachableBrokersError, needing
from .settings import Brokers


def topic_ids(topics: Iterable[str], brokers: Brokers) -> dict[str, str]:
    """Kafka's id of each topic that exists and has one: one that was deleted and recreated has another id."""
    names = sorted(topics)
    if not names:
        return {}
    found = {}
    with admin_for(brokers) as admin:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        answers = admin.describe_topics(TopicCollection(names), request_timeout=brokers.patience_seconds)
        for topic, answer in answers.items():
            try:
                found[topic] = str(answer.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise at_topic(topic, error.args[0]) from None
    return {topic: topic_id for topic, topic_id in found.items() if topic_id != _NO_ID}


# Brokers before Kafka 2.8 have no ids, and librdkafka gives this one for each topic: zero, in base64.
_NO_ID = "A" * 22


@contextmanager
def asking(brokers: Brokers) -> Iterator[dict[str, Any]]:
    """
    The settings of a client for these brokers; what it raises is told as an error of ours.

    A client has to be polled before it is given up, because only then librdkafka tells why there was no answer.
    """
    with needing("kafka", "Asking a Kafka broker"):
        from confluent_kafka import KafkaException
    heard: list[Any] = []
    try:
        # Otherwise every failed connection would be a line on stderr; our error says it once.
        yield {**brokers.client, "log_level": 0, "error_cb": heard.append}
    except (KafkaException, ValueError) as error:
        raise _no_answer(brokers, error, heard) from None


@contextmanager
def admin_for(brokers: Brokers) -> Iterator[Any]:
    """A client that asks what needs no consumer. Its answers end with the block."""
    with asking(brokers) as settings:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(settings)
        try:
            yield admin
        except BaseException:
            admin.poll(0)
            raise


# The broker's errors for a missing permission, and which permission that is.
RIGHTS = {
    "TOPIC_AUTHORIZATION_FAILED": "DESCRIBE on the topic",
    "CLUSTER_AUTHORIZATION_FAILED": "DESCRIBE on the cluster",
}
_ABOUT_LOGIN = ("_AUTHENTICATION", "_SSL", "_INVALID_ARG", "_UNSUPPORTED_FEATURE", "SASL_AUTHENTICATION_FAILED")


def _no_answer(brokers: Brokers, error: Exception, heard: list[Any]) -> BrokersError:
    from confluent_kafka import KafkaError

    cause = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    # "All brokers are down" and the like add nothing to what was said of one of them.
    reasons = [each for each in heard if each.name() != "_ALL_BROKERS_DOWN"]
    refusals = [each for each in [*reasons, cause] if each is not None and each.name() in _ABOUT_LOGIN]
    words = brokers.scrub(
        "; ".join(dict.fromkeys(each.str() for each in [*(refusals or reasons)[-1:], cause] if each)) or str(error)
    )
    if refusals:
        return BrokersError.usual(
            "KAFKA_REFUSED",
            f"The brokers {brokers.servers} refused this client's login, or its settings cannot work: {words}.",
            "Check security.protocol, sasl.mechanism, user, password and certificates: they are Kafka's settings as "
            "Spark has them, kafka.security.protocol and so on (page `options` of the documentation).",
        )
    if cause is not None and cause.name() in RIGHTS:
        return BrokersError.usual(
            "KAFKA_REFUSED",
            f"The brokers {brokers.servers} accepted this client's login, but its user lacks a permission: {words}.",
            f"Give its user the permission {RIGHTS[cause.name()]}, as an ACL of Kafka.",
        )
    return UnreachableBrokersError.usual(
        "KAFKA_UNREACHABLE",
        f"The brokers {brokers.servers} did not answer: {words}.",
        "Check the bootstrap servers (host:port, several with commas), that they are reachable from here, and whether "
        "they want TLS or a login (kafka.security.protocol).",
    )


def at_topic(topic: str, error: Any) -> Exception:
    """The exception for an error of the broker that does not name its topic."""
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException(KafkaError(error.code(), f"{error.str()} ({topic})"))
