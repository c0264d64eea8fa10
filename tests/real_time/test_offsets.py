"""
Where a run in real time begins to read: at the stored positions, and nothing is passed over in silence.

Covers: pgonce.real_time.offsets.
"""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.real_time_tasks import QUERY, Task, begun

from pgonce import PgonceError
from pgonce.real_time.offsets import KafkaSource, stored_positions

pytestmark = [pytest.mark.kafka]


@pytest.fixture
def source(kafka, topic):
    """The source of a topic with two partitions, of which the first has five records; and the topic's name."""
    name = topic(2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(5):
        producer.produce(name, str(number), partition=0)
    producer.flush(30)

    def make(**options):
        return KafkaSource({"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": name, **options})

    return name, make


class TestNewQuery:
    @pytest.mark.parametrize(
        ("given", "first"), [({}, 5), ({"startingOffsets": "latest"}, 5), ({"STARTINGOFFSETS": "earliest"}, 0)]
    )
    def test_it_begins_where_the_user_says(self, source, given, first):
        """Words become numbers at once, so that a start that is killed begins there again."""
        name, make = source
        assert make(**given).start(None) == {"0": {name: {"0": first, "1": 0}}}

    def test_json_names_the_offset_of_each_partition(self, source):
        """JSON may name each partition's offset, and Kafka's own numbers for the words."""
        name, make = source
        assert make(startingOffsets=json.dumps({name: {"0": 3, "1": -2}})).start(None) == {
            "0": {name: {"0": 3, "1": 0}}
        }
        with pytest.raises(PgonceError, match=r"BAD_OPTION.*partition 1"):
            make(startingOffsets=json.dumps({name: {"0": 3}})).start(None)


class TestKnownQuery:
    def test_it_goes_on_at_its_positions(self, source):
        """What the user says of new queries does not count, and a new partition begins at its first record."""
        name, make = source
        start = make(startingOffsets="latest").start({(name, 0): 2})
        assert start == {"0": {name: {"0": 2, "1": 0}}}
        options = make(startingOffsets="latest").options_from(start)
        assert json.loads(options["startingOffsets"]) == {name: {"0": 2, "1": 0}}

    def test_a_topic_that_ends_before_its_position(self, source):
        """It was created again, and its records are others."""
        name, make = source
        with pytest.raises(PgonceError, match="RECREATED"):
            make().start({(name, 0): 9})

    def test_behind_an_open_transaction(self, source, kafka):
        """With read_committed the partition seems to end there; the topic is the same, and nothing may be doubled."""
        name, make = source
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(name, "open", partition=0)
        producer.flush(30)
        known = {(name, 0): 6, (name, 1): 0}
        try:
            assert make().start(known)
            with pytest.raises(PgonceError, match="TRANSACTION_OPEN"):
                make(**{"kafka.isolation.level": "read_committed"}).start(known)
        finally:
            producer.abort_transaction(30)

    def test_records_that_kafka_has_deleted(self, source, kafka):
        """They are named, unless the user has said that they may be lost."""
        name, make = source
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for future in admin.delete_records([TopicPartition(name, 0, 3)]).values():
            future.result(30)
        with pytest.raises(PgonceError, match="RECORDS_GONE.*records 1 to 2"):
            make().start({(name, 0): 1})
        assert make(failOnDataLoss="false").start({(name, 0): 1}) == {"0": {name: {"0": 3, "1": 0}}}
        # Nobody knows whether a partition without a position was read before.
        with pytest.raises(PgonceError, match="RECORDS_GONE.*records 0 to 2"):
            make().start({(name, 1): 0})
        # A topic that is read from now on has no record that was to be read before.
        assert make().start({("another", 0): 7}) == {"0": {name: {"0": 3, "1": 0}}}


class TestRefused:
    def test_a_topic_that_is_not_there(self, kafka):
        """Its name is in the error."""
        with pytest.raises(PgonceError, match="TOPIC_MISSING.*no-such-topic"):
            KafkaSource({"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": "no-such-topic"}).start(None)

    @pytest.mark.parametrize(
        "options",
        [
            {"subscribe": "orders"},
            {"kafka.bootstrap.servers": "x:1"},
            {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "startingTimestamp": "1"},
            {"kafka.bootstrap.servers": "x:1", "subscribePattern": "a.*"},
        ],
    )
    def test_options_that_say_no_topic_or_another_beginning(self, options):
        """The positions say where a query begins, so nothing else may."""
        with pytest.raises(PgonceError, match="BAD_OPTION"):
            KafkaSource(options)


def test_what_the_ledger_knows(url):
    """Nothing without a ledger; then the last batch, and how far the tasks have come, also for a successor."""
    assert stored_positions(url, QUERY, "public.orders", None) == (None, None)
    run = begun(url)
    assert stored_positions(url, "another", "public.orders", None) == (None, None)
    task = Task(url, run)
    task.claims()
    task.flushes(0, 1)
    assert stored_positions(url, QUERY, "public.orders", None) == (0, {("orders", 0): 2})
    assert stored_positions(url, "another", "public.orders", QUERY) == (None, {("orders", 0): 2})
