"""
Brokers that ask who one is, and encrypt, and deny what one may not do: real ones, by each protocol of Kafka.

Covers: offsets_store.kafka.broker, offsets_store.kafka.partitions.
"""

from __future__ import annotations

import secrets

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.kafka.broker import topic_ids
from pgonce.offsets_store.kafka.partitions import ends_of, partitions_of
from pgonce.offsets_store.kafka.settings import brokers

pytestmark = pytest.mark.kafka


def options_for(secure, protocol, mechanism=None, password=None):
    """Kafka's settings for one of the broker's listeners, as Spark has them."""
    options = {"kafka.security.protocol": protocol}
    if protocol.endswith("SSL"):
        options |= {"kafka.ssl.truststore.location": str(secure.authority), "kafka.ssl.truststore.type": "PEM"}
    if protocol == "SSL":
        options |= {"kafka.ssl.keystore.location": str(secure.identity), "kafka.ssl.keystore.type": "PEM"}
    if mechanism:
        jaas = secure.jaas(password=password) if mechanism == "PLAIN" else secure.scram(password)
        options |= {"kafka.sasl.mechanism": mechanism, "kafka.sasl.jaas.config": jaas}
    return options


@pytest.fixture(scope="module")
def secure_topic(secure_kafka):
    """A topic of two partitions on the secure broker."""
    # A process may run other files in between, and then makes this fixture again.
    name = f"orders-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": secure_kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)], operation_timeout=10)[name].result(timeout=30)
    return name


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SSL", None),
    ],
)
def test_each_client_logs_in_by_each_protocol(secure_kafka, secure_topic, protocol, mechanism):
    """With the settings that Spark has, partitions, ends and ids are told by every kind of client."""
    found = brokers(secure_kafka.servers(protocol), options_for(secure_kafka, protocol, mechanism))
    assert partitions_of([secure_topic], found) == {(secure_topic, 0), (secure_topic, 1)}
    assert ends_of([secure_topic], found) == {(secure_topic, 0): (0, 0), (secure_topic, 1): (0, 0)}
    assert set(topic_ids([secure_topic], found)) == {secure_topic}


def test_a_login_that_brokers_refuse_is_an_error_without_the_password(secure_kafka, secure_topic, monkeypatch):
    """A login that is refused is said to be one, by each kind of client, and no password is repeated."""
    monkeypatch.setattr("pgonce.offsets_store.kafka.settings.PATIENCE_SECONDS", 3)
    wrong = "zq7wrong"
    options = options_for(secure_kafka, "SASL_SSL", "SCRAM-SHA-256", wrong)
    found = brokers(secure_kafka.servers("SASL_SSL"), options)
    for ask in (partitions_of, topic_ids):
        with pytest.raises(OffsetsError, match="(?i)authentication") as refused:
            ask([secure_topic], found)
        assert refused.value.code == "KAFKA_REFUSED"
        assert wrong not in str(refused.value)


def test_a_topic_that_one_may_not_see(secure_kafka, secure_topic):
    """A topic that is closed to this user is not taken for one that does not exist; the error names it."""
    found = brokers(secure_kafka.servers("SASL_SSL"), options_for(secure_kafka, "SASL_SSL", "SCRAM-SHA-256"))
    closed = f"closed-{secrets.token_hex(4)}"
    client = AdminClient({"bootstrap.servers": secure_kafka.bootstrap_servers})
    client.create_topics([NewTopic(closed, 1, 1)], operation_timeout=10)[closed].result(timeout=30)
    secure_kafka.deny(closed)
    for ask in (
        lambda: partitions_of([secure_topic, closed], found),
        lambda: ends_of([secure_topic, closed], found),
        lambda: topic_ids([secure_topic, closed], found),
    ):
        with pytest.raises(OffsetsError, match=f"KAFKA_REFUSED.*{closed}.*DESCRIBE"):
            ask()
    assert partitions_of(["no-such-topic"], found) == set()
