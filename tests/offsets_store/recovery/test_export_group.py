"""
A consumer group on a real broker is set to what Postgres holds, and to nothing else.

Covers: offsets_store.kafka.groups, pgonce.cli.kafka.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.fixtures.driver import wait_until
from support.ledger_history import publish
from support.patience import PATIENCE_SECONDS

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.recovery.export_group import export_group

pytestmark = pytest.mark.kafka


@pytest.fixture
def group():
    """The name of a group that nobody has used."""
    return f"lag-{secrets.token_hex(4)}"


@pytest.fixture
def topic(kafka, topic):
    """Make a topic with enough rows for what the ledger says of it: ``topic(partitions=2)``, and give its name."""

    def make(partitions=1, rows=20):
        name = topic(partitions=partitions)
        for number in range(partitions):
            produce(kafka, name, rows, number)
        return name

    return make


@pytest.fixture
def seen(kafka, group):
    """Where a reader of the group would begin, by partition: ``seen(topic)``; None if the brokers give no answer."""

    def committed(topic, group=group):
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
        reader = Consumer(settings)
        partitions = reader.list_topics(topic, timeout=30).topics[topic].partitions
        try:
            found = reader.committed([TopicPartition(topic, number) for number in partitions], timeout=30)
        except KafkaException:
            # The group's coordinator has just started, and is not ready yet.
            return None
        finally:
            reader.close()
        return {at.partition: at.offset for at in found if at.offset >= 0}

    return committed


def end(topic, *offsets):
    """The ends of a topic's partitions, as the ledger has them."""
    return {"0": {topic: {str(number): offset for number, offset in enumerate(offsets)}}}


def produce(kafka, topic, rows, partition=0):
    """Put rows into a partition of the topic."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(rows):
        producer.produce(topic, b"row", partition=partition)
    assert producer.flush(30) == 0


def member(kafka, group, topic, **settings):
    """A living member of the group, which has its partitions."""
    servers = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    reader = Consumer({**servers, **{name.replace("_", "."): value for name, value in settings.items()}})
    reader.subscribe([topic])
    assert wait_until(lambda: reader.poll(0.2) is not None or bool(reader.assignment()), PATIENCE_SECONDS)
    return reader


def export(kafka, url, group, **how):
    """Export the query "orders", and give the moves."""
    found = export_group("orders", group, Brokers(kafka.bootstrap_servers), url, **how)
    return [(move.partition, move.before, move.after, move.goes_back) for move in found.moves]


def test_a_group_follows_the_ledger_forward_and_back(url, store, kafka, topic, group, seen):
    """Each export sets what has changed; after a restore of the database the group goes back with it."""
    name = topic(partitions=2)
    publish(url, 0, end(name, 10, 20))
    assert export(kafka, url, group) == [(0, None, 10, False), (1, None, 20, False)]
    assert seen(name) == {0: 10, 1: 20}
    publish(url, 1, end(name, 15, 20), start=end(name, 10, 20))
    assert export(kafka, url, group) == [(0, 10, 15, False)]
    assert export(kafka, url, group) == []
    publish(url, 1, end(name, 12, 20), run_id="after a restore", start=end(name, 10, 20))
    assert export(kafka, url, group) == [(0, 15, 12, True)]
    assert seen(name) == {0: 12, 1: 20}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_living_member_that_commits(url, store, kafka, topic, group, seen, protocol):
    """A reader that stores its own offsets, as readers do, is in the way while it lives; then its offsets are."""
    name = topic(partitions=1, rows=12)
    publish(url, 0, end(name, 10))
    export(kafka, url, group)
    reader = member(kafka, group, name, group_protocol=protocol, auto_commit_interval_ms=100)
    try:
        assert wait_until(lambda: reader.poll(0.2) is None and seen(name) == {0: 12}, PATIENCE_SECONDS)
        for take_over in (False, True):
            with pytest.raises(OffsetsError, match="has a member") as refused:
                export(kafka, url, group, take_over=take_over)
            assert refused.value.code == "GROUP_IN_USE"
    finally:
        reader.close()
    with pytest.raises(OffsetsError, match=f"{name}-0 at 12") as refused:
        export(kafka, url, group)
    assert refused.value.code == "GROUP_NOT_OURS"
    assert seen(name) == {0: 12}
    assert export(kafka, url, group, take_over=True) == [(0, 12, 10, True)]


def test_a_topic_that_has_fewer_records_than_were_read(url, store, kafka, topic, group, seen):
    """Such a topic was created again, or is on other brokers: a group set past its end would hide all new records."""
    name = topic(partitions=2, rows=9)
    publish(url, 0, end(name, 9, 10))
    with pytest.raises(OffsetsError, match=f"{name}-1 ends at 9, Postgres holds it up to 10") as refused:
        export(kafka, url, group)
    assert refused.value.code == "PARTITIONS_GONE"
    assert seen(name) == {}
    produce(kafka, name, 1, 1)
    assert export(kafka, url, group) == [(0, None, 9, False), (1, None, 10, False)]


class TestCommand:
    def test_once(self, url, store, kafka, topic, group, seen, pgonce):
        """`pgonce export-group` says what it has set, and that there was nothing to do."""
        name = topic(partitions=1)
        publish(url, 0, end(name, 10))
        arguments = ["export-group", "orders", "--group", group, "--bootstrap", kafka.bootstrap_servers]
        assert f"{name}-0 from nowhere to 10" in pgonce(*arguments).stdout
        assert "all 1 partitions stand where Postgres stands" in pgonce(*arguments).stdout
        assert seen(name) == {0: 10}

    def test_exit_codes(self, url, store, kafka, topic, group, pgonce):
        """Without brokers the command line is wrong; a group in use is for a person to decide; no query, no answer."""
        publish(url, 0, end(topic(), 10))
        assert pgonce("export-group", "orders", "--group", group).exit_code == 2
        there = ["--group", group, "--bootstrap", kafka.bootstrap_servers]
        assert pgonce("export-group", "nobody", *there).exit_code == 3

    @pytest.fixture
    def follow(self, url, kafka, group, tmp_path):
        """Start `pgonce export-group --follow`, and give the process and a function that reads its output."""
        output, config = tmp_path / "out", tmp_path / "kafka.properties"
        config.write_text("# nothing secret here\nsecurity.protocol=PLAINTEXT\n")
        command = [sys.executable, "-m", "pgonce", "export-group", "orders", "--group", group, "--url", url]
        command += ["--bootstrap", kafka.bootstrap_servers, "--kafka-config", str(config), "--follow", "--every", "0.2"]
        with ExitStack() as running:

            def start():
                out = running.enter_context(output.open("w"))
                process = running.enter_context(subprocess.Popen(command, stdout=out, stderr=out))
                running.callback(process.terminate)
                return process, output.read_text

            yield start

    def test_following(self, url, store, kafka, topic, group, seen, follow):
        """With --follow the group comes after the ledger, and says once that a reader is in the way."""
        name = topic(partitions=1)
        publish(url, 0, end(name, 10))
        _, output = follow()
        assert wait_until(lambda: seen(name) == {0: 10}, PATIENCE_SECONDS)
        reader = member(kafka, group, name, enable_auto_commit=False)
        publish(url, 1, end(name, 15), start=end(name, 10))
        assert wait_until(lambda: "has a member" in output(), PATIENCE_SECONDS)
        assert seen(name) == {0: 10}
        reader.close()
        assert wait_until(lambda: seen(name) == {0: 15}, PATIENCE_SECONDS)
        assert wait_until(lambda: "It works again." in output(), PATIENCE_SECONDS)
        assert output().count("GROUP_IN_USE") == 1
