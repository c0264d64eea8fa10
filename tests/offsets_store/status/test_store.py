"""Stored offsets, as a person or a program asks for them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from support.ledger_history import OTHER, QUERY, RUN, publish, replay, take_over

from pgonce.offsets_store.errors import ConfigurationError, ConnectError, LedgerError, OffsetsError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import progress, writers
from pgonce.offsets_store.offsets.compare import parse_offset
from pgonce.offsets_store.offsets.exact_json import same_json
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.lag import total_lag
from pgonce.offsets_store.status.store import OffsetsStore

KAFKA = {"0": {"t": {"0": 10, "1": 20}}}


def hear(url, latest, *, query_id=QUERY, batch_id=0, seconds=0, disagreement=None):
    """Store a progress row as the listener does."""
    row = {
        "query_id": query_id,
        "run_id": RUN,
        "batch_id": batch_id,
        "progress_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds),
        "num_input_rows": 1,
        "latest_offsets": latest,
        "disagreement": disagreement,
    }
    with engine_for(url).begin() as connection:
        connection.execute(insert(progress).values(row))


@pytest.fixture
def store(url):
    """The store of a database that has an empty ledger."""
    ensure_ledger(url)
    return OffsetsStore(url)


class TestQueries:
    def test_an_empty_ledger_has_none(self, store):
        """Nothing published, nothing listed."""
        assert store.queries() == []

    def test_one_entry_a_writer(self, url, store):
        """Each sink of a query is an entry of its own, with all that the ledger knows of it."""
        first = publish(url, 0, KAFKA)
        publish(url, 0, {"0": {"logOffset": 0}}, sink_name="public.totals", guarantee="ids")
        replay(url, first)
        orders, totals = store.queries()
        assert (orders.query_id, orders.query_name, orders.sink_name) == (QUERY, "orders", "public.orders")
        assert (orders.checkpoint_location, orders.run_id, orders.batch_id) == ("/checkpoints/orders", RUN, 0)
        assert (orders.end_offsets, orders.guarantee, orders.replays) == (KAFKA, "offsets", 1)
        assert (totals.sink_name, totals.guarantee, totals.replays) == ("public.totals", "ids", 0)
        assert orders.updated_at.tzinfo is not None

    def test_disagreements_are_counted(self, url, store):
        """What the listener found to differ shows in the entry."""
        publish(url, 0, KAFKA)
        hear(url, KAFKA, batch_id=0)
        hear(url, KAFKA, batch_id=1, disagreement="differs")
        assert store.latest("orders").disagreements == 1


class TestWhichQuery:
    def test_by_name_or_id(self, url, store):
        """A query answers to its name and to its id."""
        publish(url, 0, KAFKA)
        assert store.latest("orders") == store.latest(QUERY)

    def test_an_unknown_one_lists_what_there_is(self, url, store):
        """A wrong name is answered with the right ones."""
        publish(url, 0, KAFKA)
        with pytest.raises(OffsetsError, match=rf"{QUERY} \(orders\)") as refused:
            store.latest("order")
        assert refused.value.code == "QUERY_NOT_FOUND"

    def test_an_ambiguous_name_lists_the_ids(self, url, store):
        """A name that two queries have is no answer; the error names both ids."""
        publish(url, 0, KAFKA)
        publish(url, 0, KAFKA, query_id=OTHER)
        with pytest.raises(OffsetsError) as refused:
            store.history("orders")
        assert refused.value.code == "QUERY_AMBIGUOUS"
        assert QUERY in str(refused.value)
        assert OTHER in str(refused.value)

    def test_a_name_means_the_query_that_took_over(self, url, store):
        """After a takeover under one name, the name is the new query's; the old one answers to its id, marked."""
        publish(url, 7, KAFKA)
        take_over(url, publish(url, 0, KAFKA, query_id=OTHER), QUERY)
        assert store.latest("orders").query_id == OTHER
        assert store.latest("orders").replaces == QUERY
        assert store.latest(QUERY).replaced_by == OTHER

    def test_several_sinks_need_one_named(self, url, store):
        """The latest of a query with two sinks has no single answer without `sink`."""
        publish(url, 0, KAFKA)
        publish(url, 3, KAFKA, sink_name="audit")
        with pytest.raises(OffsetsError, match="audit") as refused:
            store.latest("orders")
        assert refused.value.code == "SINK_NEEDED"
        assert store.latest("orders", sink="audit").batch_id == 3

    def test_an_unknown_sink_lists_the_sinks(self, url, store):
        """A wrong sink is answered with the right ones."""
        publish(url, 0, KAFKA)
        with pytest.raises(OffsetsError, match=r"public\.orders") as refused:
            store.latest("orders", sink="order")
        assert refused.value.code == "SINK_NOT_FOUND"


class TestHistory:
    def test_newest_first_and_limited(self, url, store):
        """The newest batches come first, with rows, offsets and replays."""
        for batch_id in range(5):
            batch = publish(
                url,
                batch_id,
                {"0": {"logOffset": batch_id}},
                start={"0": {"logOffset": batch_id - 1}} if batch_id else None,
                rows=batch_id,
            )
        replay(url, batch)
        found = store.history("orders", limit=2)
        assert [(b.batch_id, b.rows, b.replays) for b in found] == [(4, 4, 1), (3, 3, 0)]
        assert found[0].start_offsets == {"0": {"logOffset": 3}}
        assert found[0].end_offsets == {"0": {"logOffset": 4}}
        assert found[0].run_id == RUN

    def test_all_sinks_or_one(self, url, store):
        """Without a sink the batches of all are there."""
        publish(url, 0, KAFKA)
        publish(url, 0, KAFKA, sink_name="audit")
        assert {b.sink_name for b in store.history("orders")} == {"audit", "public.orders"}
        assert {b.sink_name for b in store.history("orders", sink="audit")} == {"audit"}


class TestStartingOffsets:
    def test_kafka(self, url, store):
        """The stored ends of one Kafka source are Kafka's startingOffsets as they stand."""
        publish(url, 0, {"0": {"t": {"0": 10, "2": 0, "10": 5}, "u": {"0": 1}}})
        assert store.starting_offsets("orders") == '{"t": {"0": 10, "2": 0, "10": 5}, "u": {"0": 1}}'

    @pytest.mark.parametrize(
        ("end", "code"),
        [
            ({"0": {"logOffset": 3}}, "NOT_KAFKA"),
            ({"0": None}, "NOT_KAFKA"),
            ({"0": {"t": {"0": 1}}, "1": {"u": {"0": 1}}}, "SEVERAL_SOURCES"),
            ({"0": {"t": {"0": 1}}, "1": 3}, "SEVERAL_SOURCES"),
            (None, "OFFSETS_UNKNOWN"),
        ],
    )
    def test_what_cannot_be_continued(self, url, store, end, code):
        """Anything but one Kafka source with known offsets is refused, in words."""
        publish(url, 0, end)
        with pytest.raises(OffsetsError) as refused:
            store.starting_offsets("orders")
        assert refused.value.code == code

    def test_sinks_at_one_place_are_one(self, url, store):
        """Two sinks that stand at the same offsets need no `sink`."""
        publish(url, 0, KAFKA)
        publish(url, 0, KAFKA, sink_name="audit")
        assert json.loads(store.starting_offsets("orders")) == KAFKA["0"]

    def test_sinks_at_different_places_need_one_named(self, url, store):
        """A sink that is a batch ahead has another end: the error says so, and `sink` chooses."""
        publish(url, 0, KAFKA)
        publish(url, 0, {"0": {"t": {"0": 9, "1": 20}}}, sink_name="audit")
        with pytest.raises(OffsetsError, match="do not stand at the same offsets") as refused:
            store.starting_offsets("orders")
        assert refused.value.code == "SINK_NEEDED"
        assert json.loads(store.starting_offsets("orders", sink="audit")) == {"t": {"0": 9, "1": 20}}

    def test_a_replaced_query_is_past(self, url, store):
        """The end of a replaced query is no place to start: the error names its successor."""
        publish(url, 7, KAFKA)
        take_over(url, publish(url, 0, KAFKA, query_id=OTHER), QUERY)
        with pytest.raises(OffsetsError, match=OTHER) as refused:
            store.starting_offsets(QUERY)
        assert refused.value.code == "REPLACED"


class TestLag:
    def test_without_progress_it_is_unknown(self, url, store):
        """Nobody told the newest offsets: the lag is None, not 0."""
        publish(url, 0, KAFKA)
        rows = store.lag("orders")
        assert [(row.topic, row.partition, row.end_offset, row.lag) for row in rows] == [
            ("t", 0, 10, None),
            ("t", 1, 20, None),
        ]
        assert total_lag(rows) is None

    def test_from_the_newest_progress_event(self, url, store):
        """The lag is the newest event's latest offsets minus the stored end."""
        publish(url, 0, KAFKA)
        hear(url, {"0": {"t": {"0": 13, "1": 20}}}, batch_id=0, seconds=5)
        hear(url, {"0": {"t": {"0": 11, "1": 20}}}, batch_id=9, seconds=1)
        rows = store.lag("orders")
        assert [row.lag for row in rows] == [3, 0]
        assert {row.measured_at for row in rows} == {datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)}
        assert total_lag(rows) == 3

    def test_an_event_older_than_the_end_tells_nothing(self, url, store):
        """Where the last event was before the stored end, the lag is unknown rather than negative or 0."""
        publish(url, 0, KAFKA)
        hear(url, {"0": {"t": {"0": 9, "1": 20}}})
        assert [row.lag for row in store.lag("orders")] == [None, 0]

    def test_partitions_that_have_no_end_yet(self, url, store):
        """A partition that only the event knows is a row without end and without lag."""
        publish(url, 0, KAFKA)
        hear(url, {"0": {"t": {"0": 10, "1": 20, "2": 4}}})
        last = store.lag("orders")[-1]
        assert (last.partition, last.end_offset, last.latest_offset, last.lag) == (2, None, 4, None)
        assert total_lag(store.lag("orders")) is None

    def test_other_sources_have_no_lag_in_rows(self, url, store):
        """A file source's offsets do not count rows."""
        publish(url, 0, {"0": {"logOffset": 3}})
        hear(url, {"0": {"logOffset": 5}})
        (row,) = store.lag("orders")
        assert (row.source_id, row.topic, row.end_offset, row.latest_offset, row.lag) == (
            "0",
            None,
            {"logOffset": 3},
            {"logOffset": 5},
            None,
        )


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
        with pytest.raises(OffsetsError, match="no-such-topic-0") as refused:
            store.starting_offsets("orders", bootstrap_servers=kafka.bootstrap_servers)
        assert refused.value.code == "PARTITIONS_GONE"

    def test_lag_against_the_broker(self, url, store, kafka, topic):
        """With brokers the newest offsets are theirs, and a partition without an end counts from its earliest row."""
        name = topic(partitions=1)
        publish(url, 0, {"0": {name: {"0": 1}}})
        add_partitions(kafka, name, 2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for partition, count in ((0, 4), (1, 2)):
            for _ in range(count):
                producer.produce(name, b"row", partition=partition)
        assert producer.flush(30) == 0
        rows = store.lag("orders", bootstrap_servers=kafka.bootstrap_servers)
        assert [(r.partition, r.end_offset, r.latest_offset, r.lag) for r in rows] == [
            (0, 1, 4, 3),
            (1, None, 2, 2),
        ]


def add_partitions(kafka, topic, total):
    """Raise a topic's number of partitions, and wait until the broker knows."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, total)], operation_timeout=10)[topic].result(timeout=30)


def test_no_broker_there(url, store, monkeypatch):
    """Brokers that do not answer are an error in words, after a bounded wait."""
    monkeypatch.setattr("pgonce.offsets_store.status.kafka_broker._TIMEOUT_SECONDS", 1)
    publish(url, 0, KAFKA)
    with pytest.raises(OffsetsError, match=r"127\.0\.0\.1:1") as refused:
        store.lag("orders", bootstrap_servers="127.0.0.1:1")
    assert refused.value.code == "KAFKA_UNREACHABLE"


def test_no_kafka_client(url, store, monkeypatch):
    """Without the optional client, asking a broker says what to install."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    publish(url, 0, KAFKA)
    with pytest.raises(ConfigurationError, match="confluent-kafka") as refused:
        store.starting_offsets("orders", bootstrap_servers="127.0.0.1:1")
    assert refused.value.code == "NO_KAFKA_CLIENT"


def test_a_server_that_is_away():
    """A store on a server that does not answer raises ConnectError, without the password."""
    store = OffsetsStore("postgresql://somebody:s3cret@127.0.0.1:1/nowhere")
    with pytest.raises(ConnectError) as refused:
        store.queries()
    assert "s3cret" not in str(refused.value)


def test_reading_changes_nothing(url, store):
    """What reads the ledger runs in a transaction that the server lets write nothing."""
    with pytest.raises(LedgerError) as refused, reading(url) as connection:
        connection.execute(delete(writers))
    assert refused.value.code == "READ_ONLY"


def numbers():
    """JSON texts of numbers, those that cannot be held among them."""
    awkward = ["1e5", "1E400", "-0.0", "-0", "1e-400", "0.1234567890123456789", "5e-324", "9007199254740993.0"]
    floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
    return st.one_of(st.integers().map(str), floats, st.decimals(allow_nan=False, allow_infinity=False).map(str)) | (
        st.sampled_from(awkward)
    )


def documents():
    """JSON texts of any shape, and texts that are no JSON."""
    leaves = st.one_of(numbers(), st.text().map(json.dumps), st.sampled_from(["null", "true", "false"]))

    def wrap(children):
        keys = st.text(max_size=4).map(json.dumps)
        objects = st.dictionaries(keys, children, max_size=4)
        return st.one_of(
            st.lists(children, max_size=4).map(lambda items: f"[{','.join(items)}]"),
            objects.map(lambda pairs: "{" + ",".join(f"{key}:{value}" for key, value in pairs.items()) + "}"),
        )

    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    return st.one_of(st.recursive(leaves, wrap, max_leaves=8), text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=documents())
def test_offsets_come_back_from_jsonb_as_they_went(url, text):
    """Every offset that Spark may write is read back from the ledger as the same JSON value."""
    offsets = {"0": parse_offset(text)}
    with engine_for(url).connect() as connection:
        back = connection.execute(select(literal(offsets, JSONB(none_as_null=True)))).scalar_one()
    assert same_json(back, offsets)
