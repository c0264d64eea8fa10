"""A topic that was deleted and recreated, and has grown past the old end: only Kafka's id of it tells."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import Uuid
from confluent_kafka.admin import AdminClient, NewTopic
from support.batches import make_batch
from support.committed_batch import commit
from support.fixtures.driver import wait_until

from pgonce.offsets_store.errors import OffsetsError, RefusedBatch
from pgonce.offsets_store.kafka.broker import topic_ids
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.identity.planned_batch import with_topic_ids
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.kafka

EVENTS = destination("events", "append", (), None)


def recreate(kafka, name):
    """Delete a topic and create another of its name."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([name], operation_timeout=10)[name].result(timeout=30)
    assert wait_until(lambda: name not in admin.list_topics(timeout=10).topics)
    admin.create_topics([NewTopic(name, num_partitions=1)], operation_timeout=10)[name].result(timeout=30)
    # The broker answers before it knows of it itself.
    assert wait_until(lambda: topic_ids([name], Brokers(kafka.bootstrap_servers)))


def reading(url, topic, batch_id, run_id, kafka=None):
    """Batch N of a query that reads 10 rows of the topic a batch, with the topic's id where a broker is given."""
    start, end = ({"0": {topic: {"0": at}}} for at in (batch_id * 10, batch_id * 10 + 10))
    batch = make_batch(batch_id, run_id=run_id, start=start, end=end)
    return with_topic_ids(batch, Brokers(kafka.bootstrap_servers) if kafka else None)


def test_a_topic_recreated_is_refused_at_the_next_start(kafka, topic, url, events):
    """The next run's batch looks like the one that follows, and is not: its rows are another topic's."""
    name = topic()
    assert commit(url, reading(url, name, 0, "run 1", kafka), EVENTS) is Verdict.NEW
    recreate(kafka, name)
    with pytest.raises(RefusedBatch, match=f"RECREATED.*{name}"):
        commit(url, reading(url, name, 1, "run 2", kafka), EVENTS)


def test_a_run_without_brokers_does_not_go_on_after_one_that_had_them(kafka, topic, url, events):
    """Nothing would tell that the topic is another one, whose first rows would be taken for stored ones."""
    name = topic()
    assert commit(url, reading(url, name, 0, "run 1", kafka), EVENTS) is Verdict.NEW
    with pytest.raises(RefusedBatch, match=r"\[RECREATED\]"):
        commit(url, reading(url, name, 1, "run 2"), EVENTS)
    assert commit(url, reading(url, name, 1, "run 3", kafka), EVENTS) is Verdict.NEW


def test_a_planner_asks_again(kafka, topic, url):
    """Its worker knows no run, and serves one query after the other."""
    name = topic()
    before = reading(url, name, 0, "", kafka).topic_ids
    recreate(kafka, name)
    assert reading(url, name, 0, "", kafka).topic_ids != before


def test_a_topic_that_is_gone_has_no_id(kafka, topic):
    """Asked for a topic that is not there, the broker gives nothing, and others are told all the same."""
    name = topic()
    assert topic_ids(["no-topic-of-that-name", name], Brokers(kafka.bootstrap_servers)).keys() == {name}


def test_a_broker_without_ids(kafka, topic, url, events, monkeypatch):
    """A broker before Kafka 2.8 tells nothing, so that the id that a newer one gives is not another topic's."""
    name = topic()
    described = SimpleNamespace(result=lambda: SimpleNamespace(topic_id=Uuid(0, 0)))
    with monkeypatch.context() as older:
        older.setattr(AdminClient, "describe_topics", lambda *_, **__: {name: described}, raising=False)
        assert commit(url, reading(url, name, 0, "before the upgrade", kafka), EVENTS) is Verdict.NEW
    assert commit(url, reading(url, name, 1, "after it", kafka), EVENTS) is Verdict.NEW


def test_brokers_that_do_not_answer_fail_the_batch(url, events):
    """Brokers that do not answer fail the batch: the check that was asked for cannot be made."""
    batch = make_batch(start={"0": {"t": {"0": 0}}}, end={"0": {"t": {"0": 10}}}, run_id="nobody there")
    with pytest.raises(OffsetsError, match="KAFKA_UNREACHABLE"):
        with_topic_ids(batch, Brokers("127.0.0.1:1"))
