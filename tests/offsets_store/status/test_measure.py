"""
Lag that is measured at a real broker: records, the age of the oldest unread one, and what is left of its retention.

Covers: offsets_store.status.measure, offsets_store.kafka.partitions.
"""

from __future__ import annotations

import json
import socket
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from support.ledger_history import KAFKA, OTHER, QUERY, publish, take_over

from pgonce.cli.main import ExitCode

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000


def produce(kafka, topic: str, *, partition: int = 0, count: int = 1, seconds_ago: float = 0, transactional="") -> None:
    """Records with a time in the past."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer({**settings, "transactional.id": transactional} if transactional else settings)
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    for _ in range(count):
        at = int((time.time() - seconds_ago) * 1000)
        producer.produce(topic, b"row", partition=partition, timestamp=at)
    if transactional:
        producer.commit_transaction(30)
    assert producer.flush(30) == 0


def keep_for(kafka, topic: str, milliseconds: int) -> None:
    """Set the topic's retention."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    )
    # The client has to live until the broker has answered.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)


def the_only(store, kafka):
    """What is measured of the only query."""
    (found,) = store.measured_lag(kafka.bootstrap_servers)
    return found


def test_lag_counts_unread_records_and_the_age_of_the_oldest(url, store, kafka, topic):
    """The lag counts unread records of all partitions, and its age is that of the oldest of them."""
    name = topic(partitions=2)
    produce(kafka, name, count=3, seconds_ago=500)
    produce(kafka, name, count=2, seconds_ago=90)
    produce(kafka, name, partition=1, seconds_ago=20)
    publish(url, 0, {"0": {name: {"0": 3, "1": 0}}})
    found = the_only(store, kafka)
    assert (found.query_id, found.sink_name, found.lag) == (QUERY, "public.orders", 3)
    assert found.lag_seconds == pytest.approx(90, abs=15)


def test_a_query_that_has_read_everything_has_no_lag(url, store, kafka, topic):
    """A query that has read everything is 0 records and 0 seconds behind; a partition without records as well."""
    name = topic(partitions=2)
    produce(kafka, name, seconds_ago=500)
    publish(url, 0, {"0": {name: {"0": 1, "1": 0}}})
    assert (the_only(store, kafka).lag, the_only(store, kafka).lag_seconds) == (0, 0)


def test_the_end_of_a_transaction_is_no_record(url, store, kafka, topic):
    """Kafka counts the marker of a commit among its offsets; nobody waits for it."""
    name = topic(partitions=1)
    produce(kafka, name, seconds_ago=500, transactional="t")
    publish(url, 0, {"0": {name: {"0": 1}}})
    assert (the_only(store, kafka).lag, the_only(store, kafka).lag_seconds) == (1, 0)


def test_several_queries_of_one_topic(url, store, kafka, topic):
    """Each has its own oldest record, although they read the same partition; replaced queries are left out."""
    name = topic(partitions=1)
    for seconds in (300, 200, 100):
        produce(kafka, name, seconds_ago=seconds)
    publish(url, 0, {"0": {name: {"0": 1}}}, sink_name="public.a")
    publish(url, 0, {"0": {name: {"0": 2}}}, sink_name="public.b")
    publish(url, 0, {"0": {name: {"0": 0}}}, sink_name="public.c")
    take_over(url, publish(url, 0, {"0": {name: {"0": 3}}}, sink_name="public.c", query_id=OTHER), QUERY)
    found = {one.sink_name: one for one in store.measured_lag(kafka.bootstrap_servers)}
    assert {sink: one.lag for sink, one in found.items()} == {"public.a": 2, "public.b": 1, "public.c": 0}
    assert found["public.a"].lag_seconds == pytest.approx(200, abs=15)
    assert found["public.b"].lag_seconds == pytest.approx(100, abs=15)


def test_other_brokers_and_other_sources_are_left_out(url, store, kafka):
    """A topic that these brokers do not have says nothing of the query; nor do files."""
    publish(url, 0, {"0": {"no-such-topic": {"0": 5}}}, sink_name="public.a")
    publish(url, 0, {"0": {"logOffset": 5}}, sink_name="public.b")
    assert store.measured_lag(kafka.bootstrap_servers) == []


def test_the_oldest_unread_record_uses_a_share_of_the_retention(url, store, kafka, topic):
    """The oldest unread record has used a share of its topic's retention; records that are gone count as all of it."""
    name = topic(partitions=1)
    keep_for(kafka, name, HOUR_MS)
    produce(kafka, name, count=5, seconds_ago=3000)
    publish(url, 0, {"0": {name: {"0": 1}}})
    assert the_only(store, kafka).retention_used_percent == pytest.approx(83, abs=2)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    place = TopicPartition(name, 0, 3)
    admin.delete_records([place])[place].result(30)
    assert the_only(store, kafka).retention_used_percent >= 100
    keep_for(kafka, name, -1)
    publish(url, 1, {"0": {name: {"0": 4}}})
    assert the_only(store, kafka).retention_used_percent is None


def test_status_shows_lag_its_age_and_retention_that_runs_out(url, pgonce, kafka, topic):
    """With brokers, status shows the lag and how old it is, and retention that runs out is critical."""
    name = topic(partitions=1)
    keep_for(kafka, name, HOUR_MS)
    produce(kafka, name, count=5, seconds_ago=3000)
    publish(url, 0, {"0": {name: {"0": 1}}})
    asked = ("--bootstrap-servers", kafka.bootstrap_servers)
    header, line, *rest = pgonce("status", *asked).stdout.splitlines()
    assert header.split()[-2:] == ["LAG", "BEHIND"]
    assert line.split()[-2:] == ["4", "50m"]
    assert "expiring" in line
    assert any("retention.ms" in each for each in rest)
    (one,) = json.loads(pgonce("status", "orders", "--json", *asked).stdout)
    assert (one["lag"], [(at["latest_offset"], at["lag"]) for at in one["positions"]]) == (4, [(5, 4)])
    late = pgonce("health", "orders", "--max-lag", 3, "--json", *asked)
    assert late.exit_code == ExitCode.UNHEALTHY
    assert json.loads(late.stdout)["beyond_bounds"][0]["what"] == "its lag is 4 records"


class TestTheirOwnBrokers:
    """What ``--measure`` asks: the brokers that the queries have named themselves."""

    def test_status_and_health(self, url, store, kafka, topic, pgonce):
        """Without the flag no broker is asked; with it, the query is measured where it says."""
        name = topic(partitions=1)
        produce(kafka, name, count=3, seconds_ago=200)
        publish(url, 0, {"0": {name: {"0": 1}}}, bootstrap_servers=kafka.bootstrap_servers)
        assert json.loads(pgonce("status", "--json").stdout)[0]["lag"] is None
        (measured,) = json.loads(pgonce("status", "--measure", "--json").stdout)
        assert measured["lag"] == 2
        assert measured["lag_seconds"] == pytest.approx(200, abs=15)
        (one,) = json.loads(pgonce("status", "orders", "--measure", "--json").stdout)
        assert one["lag"] == 2
        assert [(at["latest_offset"], at["lag"]) for at in one["positions"]] == [(3, 2)]
        assert pgonce("health", "orders", "--max-lag", 1, "--measure").exit_code == ExitCode.UNHEALTHY
        assert pgonce("health", "orders", "--max-lag", 2, "--measure").exit_code == ExitCode.OK

    def test_brokers_that_cannot_be_reached(self, url, store, kafka, topic, pgonce):
        """They cost about two seconds, are said in one line, and keep no other query from being measured."""
        name = topic(partitions=1)
        publish(url, 0, {"0": {name: {"0": 0}}}, bootstrap_servers=kafka.bootstrap_servers)
        # An address of documentation, where nobody answers.
        other = {"query_id": OTHER, "query_name": "clicks", "sink_name": "public.clicks"}
        publish(url, 0, {"0": {name: {"0": 0}}}, **other, bootstrap_servers="192.0.2.1:9092,192.0.2.2:9092")
        began = time.monotonic()
        shown = pgonce("status", "--measure", "--json")
        assert time.monotonic() - began < 8
        assert {one["query_id"]: one["lag"] for one in json.loads(shown.stdout)} == {QUERY: 0, OTHER: None}
        (line,) = shown.stderr.splitlines()
        assert OTHER in line
        assert "192.0.2.1:9092,192.0.2.2:9092" in line

    def test_brokers_that_do_not_answer(self, url, store, pgonce):
        """A port that takes a connection and says nothing costs as much; a login is thought of in words."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            publish(url, 0, KAFKA, bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}")
            began = time.monotonic()
            shown = pgonce("status", "--measure")
            assert time.monotonic() - began < 10
        (line,) = shown.stderr.splitlines()
        assert "did not answer" in line
        assert "--kafka-config" in line
