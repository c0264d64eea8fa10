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
from support.ledger_history import OTHER, QUERY, publish, take_over
from support.patience import PATIENCE_SECONDS

from pgonce.cli.terms import ExitCode
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


def test_of_several_sinks_the_least(url, store, kafka, topic, group, seen):
    """The group is where the sink stands that is furthest behind; one sink alone can be asked for."""
    name = topic(partitions=2)
    publish(url, 0, end(name, 10, 20))
    publish(url, 0, end(name, 12, 7), sink_name="public.totals")
    export(kafka, url, group)
    assert seen(name) == {0: 10, 1: 7}
    export(kafka, url, f"{group}-totals", sink="public.totals")
    assert seen(name, f"{group}-totals") == {0: 12, 1: 7}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_living_member_is_left_alone(url, store, kafka, topic, group, seen, protocol):
    """While somebody reads with the group it is not moved, and the error says so; afterwards it is."""
    name = topic(partitions=1)
    publish(url, 0, end(name, 10))
    export(kafka, url, group)
    publish(url, 1, end(name, 15), start=end(name, 10))
    reader = member(kafka, group, name, enable_auto_commit=False, group_protocol=protocol)
    try:
        with pytest.raises(OffsetsError, match="has a member") as refused:
            export(kafka, url, group)
        assert refused.value.code == "GROUP_IN_USE"
        assert seen(name) == {0: 10}
    finally:
        reader.close()
    assert export(kafka, url, group) == [(0, 10, 15, False)]


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


def test_the_group_of_a_stopped_reader(url, store, kafka, topic, group, seen):
    """A group in which somebody else has stored offsets is left alone, until a person says otherwise."""
    name = topic(partitions=1)
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False})
    reader.assign([TopicPartition(name, 0, 0)])
    reader.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    reader.close()
    publish(url, 0, end(name, 10))
    with pytest.raises(OffsetsError) as refused:
        export(kafka, url, group)
    assert refused.value.code == "GROUP_NOT_OURS"
    assert seen(name) == {0: 1}
    assert export(kafka, url, group, take_over=True) == [(0, 1, 10, False)]
    publish(url, 1, end(name, 15), start=end(name, 10))
    assert export(kafka, url, group) == [(0, 10, 15, False)]


def test_a_query_that_takes_the_place_of_another(url, store, kafka, topic, group, seen):
    """The new query goes on with the group of the one that it has replaced."""
    name = topic(partitions=1)
    publish(url, 0, end(name, 10))
    export(kafka, url, group)
    take_over(url, publish(url, 0, end(name, 15), query_id=OTHER, start=end(name, 10)), QUERY)
    assert export(kafka, url, group) == [(0, 10, 15, False)]


def test_a_topic_that_is_gone(url, store, kafka, topic, group):
    """A topic that the broker does not have is an error of ours."""
    publish(url, 0, end("no-such-topic", 10))
    with pytest.raises(OffsetsError, match="no-such-topic-0") as refused:
        export(kafka, url, group)
    assert refused.value.code == "PARTITIONS_GONE"


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

    def test_following_a_group_that_a_reader_has_used(self, url, store, kafka, topic, group, seen, follow):
        """With --follow a reader that commits is waited for; what it leaves behind is for a person to decide."""
        name = topic(partitions=1, rows=12)
        publish(url, 0, end(name, 10))
        process, output = follow()
        assert wait_until(lambda: seen(name) == {0: 10}, PATIENCE_SECONDS)
        reader = member(kafka, group, name, auto_commit_interval_ms=100)
        assert wait_until(lambda: reader.poll(0.2) is None and seen(name) == {0: 12}, PATIENCE_SECONDS)
        assert wait_until(lambda: "GROUP_IN_USE" in output(), PATIENCE_SECONDS)
        reader.close()
        assert process.wait(PATIENCE_SECONDS) == ExitCode.NEEDS_PERSON
        assert (output().count("GROUP_IN_USE"), output().count("GROUP_NOT_OURS")) == (1, 1)
        assert seen(name) == {0: 12}
