"""What the broker says of partitions and their ends, and what is said where it does not answer."""

from __future__ import annotations

import json
import sys

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from support.ledger_history import KAFKA, publish
from support.messages import send_to

from pgonce.offsets_store.errors import ConfigurationError, OffsetsError
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.status.measure import measure_partitions


@pytest.mark.kafka
class TestBroker:
    def test_added_partitions_start_at_the_earliest(self, url, store, kafka, topic):
        """Partitions added since the last batch are named, from their earliest offset."""
        name = topic(partitions=1)
        publish(url, 0, {"0": {name: {"0": 5}}})
        add_partitions(kafka, name, 3)
        found = json.loads(store.starting_offsets("orders", bootstrap_servers=kafka.bootstrap_servers))
        assert found == {name: {"0": 5, "1": -2, "2": -2}}

    def test_a_topic_that_is_gone(self, url, store, kafka):
        """Stored offsets of a topic that the broker does not have are no place to start."""
        publish(url, 0, {"0": {"no-such-topic": {"0": 5}}})
        with pytest.raises(OffsetsError, match="PARTITIONS_GONE.*no-such-topic-0"):
            store.starting_offsets("orders", bootstrap_servers=kafka.bootstrap_servers)

    def test_lag_against_the_broker(self, url, store, kafka, topic):
        """With brokers the newest offsets are theirs, and a partition without an end counts from its earliest row."""
        name = topic(partitions=1)
        publish(url, 0, {"0": {name: {"0": 1}}})
        add_partitions(kafka, name, 2)
        send_to(kafka, name, {0: 4, 1: 2})
        (measured,) = measure_partitions(url, Brokers(kafka.bootstrap_servers))
        rows = measured.partitions
        assert [(r.partition, r.end_offset, r.latest_offset, r.lag) for r in rows] == [(0, 1, 4, 3), (1, None, 2, 2)]


def add_partitions(kafka, topic, total):
    """Raise a topic's number of partitions, and wait until the broker knows."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, total)], operation_timeout=10)[topic].result(timeout=30)


def test_brokers_that_do_not_answer_are_an_error_after_a_bounded_wait(url, store, monkeypatch):
    """Brokers that do not answer are an error of ours, after a bounded wait."""
    monkeypatch.setattr("pgonce.offsets_store.kafka.settings.PATIENCE_SECONDS", 1)
    publish(url, 0, KAFKA)
    with pytest.raises(OffsetsError, match=r"127\.0\.0\.1:1") as refused:
        store.measured_lag("127.0.0.1:1")
    assert refused.value.code == "KAFKA_UNREACHABLE"


def test_without_the_kafka_client_the_package_to_install_is_named(url, store, monkeypatch):
    """Without the optional client, asking a broker says what to install."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    publish(url, 0, KAFKA)
    with pytest.raises(ConfigurationError, match="NOT_INSTALLED.*confluent-kafka"):
        store.starting_offsets("orders", bootstrap_servers="127.0.0.1:1")
