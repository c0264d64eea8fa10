"""The change feed of the testbed is what Debezium sends, and describes the final state of its source."""

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from change_feed import UNAVAILABLE, ChangeFeed, Row
from change_feed_topic import send
from confluent_kafka import Consumer, TopicPartition

SEEN = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "testbed" / "change_feed_seen.jsonl").read_text().splitlines()
]
IDENTITIES = ("default", "full")


def feed(**settings):
    """A small one, in which everything happens."""
    return ChangeFeed(**{"seed": 15, "keys": 20, "events": 400, **settings})


def envelopes(records):
    """The values of all records but tombstones."""
    return [json.loads(record.value) for record in records if record.value is not None]


def row_of(image):
    """The row that an envelope's `after` describes."""
    amount, at = image["amount"], image["updated_at"]
    return Row(**{
        **image,
        "amount": None if amount is None else Decimal(amount),
        "updated_at": datetime.fromisoformat(at),
    })  # fmt: skip


def applied(events):
    """The model: what a table holds after these envelopes, in this order."""
    rows = {}
    for event in events:
        if event["op"] == "d":
            rows.pop(event["before"]["id"], None)
        else:
            row = row_of(event["after"])
            rows[row.id] = row._replace(note=rows[row.id].note) if row.note == UNAVAILABLE else row
    return rows


def shape(value):
    """Names and their order, and which JSON type each value has; numbers and texts count for nothing."""
    if isinstance(value, dict):
        return [(name, shape(inner)) for name, inner in value.items()]
    return type(value).__name__


def kind(identity, value, headers):
    """What tells one sort of record from another."""
    event = value and json.loads(value)
    unread = bool(event) and bool(event["after"]) and event["after"]["note"] == UNAVAILABLE
    return identity, event and event["op"], unread, *(name for name, _ in headers)


class TestDebezium:
    @pytest.mark.parametrize("seen", SEEN, ids=range(len(SEEN)))
    def test_looks_like_what_debezium_sent(self, seen):
        """For each record that the connector itself has sent, the feed has one with the same names and types."""
        records = feed(events=4000, identity=seen["identity"]).records()
        wanted = kind(seen["identity"], seen["value"], seen["headers"])
        alike = [record for record in records if kind(seen["identity"], record.value, record.headers) == wanted]
        assert alike
        assert all(shape(json.loads(record.key)) == shape(json.loads(seen["key"])) for record in alike)
        if seen["value"]:
            shapes = [shape(json.loads(record.value)) for record in alike]
            assert shape(json.loads(seen["value"])) in shapes

    @pytest.mark.parametrize("identity", IDENTITIES)
    def test_leads_to_the_final_state(self, identity):
        """Applied in the order of their LSN, the changes end in the source's own rows."""
        one = feed(identity=identity)
        events = sorted(envelopes(one.records()), key=lambda event: event["source"]["lsn"])
        assert applied(events) == one.final_state()

    def test_replays_are_out_of_order(self):
        """What is sent again is old: a table that believes whatever comes last is wrong, and by LSN it is right."""
        one = feed(replays=3)
        events = envelopes(one.records())
        assert Counter(map(str, envelopes(feed().records()))).keys() != Counter(map(str, events)).keys()
        assert len(events) == len(envelopes(feed().records())) + 3 * one.replayed
        assert sum(after["source"]["lsn"] < before["source"]["lsn"] for before, after in pairwise(events)) == 3
        unread_apart = [event for event in events if (event["after"] or {}).get("note") != UNAVAILABLE]
        assert applied(unread_apart) != one.final_state()
        assert applied(sorted(events, key=lambda event: event["source"]["lsn"])) == one.final_state()


class TestOtherForms:
    @pytest.mark.parametrize("updates", [True, False])
    def test_change_feed_of_a_table(self, updates):
        """Version by version, taking the old rows out and putting the new ones in ends in the same rows."""
        one = feed()
        rows, kinds = {}, Counter()
        for _, changes in groupby(one.change_rows(updates=updates), key=lambda change: change["_commit_version"]):
            of_version = list(changes)
            kinds.update(change["_change_type"] for change in of_version)
            # No key has two changes in one version, and a change of one row is a pair.
            assert max(Counter((c["id"], c["_change_type"]) for c in of_version).values()) == 1
            images = [(c["_change_type"], Row(**{name: c[name] for name in Row._fields})) for c in of_version]
            for change_type, row in images:
                if change_type in {"delete", "update_preimage"}:
                    assert rows.pop(row.id) == row
            for change_type, row in images:
                if change_type in {"insert", "update_postimage"}:
                    assert row.id not in rows
                    rows[row.id] = row
        assert rows == one.final_state()
        pairs = {"update_preimage", "update_postimage"} if updates else set()
        assert set(kinds) == {"insert", "delete"} | pairs
        assert kinds["update_preimage"] == kinds["update_postimage"]


@pytest.mark.kafka
def test_through_kafka(kafka, topic):
    """What is sent is in the topic, and each key in one partition only, in the order in which it was sent."""
    name, partitions = topic(partitions=3), 3
    records = list(feed(replays=2).records())
    assert send(records, kafka.bootstrap_servers, name) == len(records)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": name, "enable.auto.commit": False})
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(partitions)])
    found = []
    try:
        while len(found) < len(records):
            batch = consumer.consume(len(records), timeout=30)
            assert batch
            found += batch
    finally:
        consumer.close()
    used = {(message.key(), message.partition()) for message in found}
    assert len(used) == len({key for key, _ in used})
    assert len({partition for _, partition in used}) == partitions
    for key in {record.key for record in records}:
        sent = [(record.value, list(record.headers) or None) for record in records if record.key == key]
        assert [(message.value(), message.headers()) for message in found if message.key() == key] == sent
