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

    @pytest.mark.parametrize("replays", [0, 3])
    def test_every_delete_has_its_tombstone(self, replays):
        """A record without a value follows each delete at once, under the same key, and stands nowhere else."""
        records = list(feed(replays=replays).records())
        for record, following in pairwise(records):
            is_delete = record.value is not None and json.loads(record.value)["op"] == "d"
            assert (following.value is None) == is_delete
            assert not is_delete or (following.key, following.headers) == (record.key, record.headers)
        assert sum(record.value is None for record in records) > 20

    def test_a_key_change_is_a_delete_and_a_create(self):
        """The old key is deleted, with a tombstone, and the new one created, at one LSN; headers name the other key."""
        records = list(feed().records())
        moved = [place for place, record in enumerate(records) if record.headers and record.value is not None]
        assert len(moved) > 10
        for delete, create in zip(moved[::2], moved[1::2], strict=True):
            assert create == delete + 2
            old, new = records[delete], records[create]
            assert old.headers == (("__debezium.newkey", new.key),)
            assert new.headers == (("__debezium.oldkey", old.key),)
            lsns = {json.loads(record.value)["source"]["lsn"] for record in (old, new)}
            assert len(lsns) == 1

    def test_an_unread_note_is_there_already(self):
        """A placeholder comes only for a row that had a large note before; with the full identity there is none."""
        sent = [event for event in envelopes(feed().records()) if (event["after"] or {}).get("note") == UNAVAILABLE]
        assert {event["op"] for event in sent} == {"u"}
        assert UNAVAILABLE.encode() not in b"".join(record.value or b"" for record in feed(identity="full").records())


class TestHistory:
    def test_a_key_has_one_change_at_an_lsn(self):
        """The rows of a COPY share one LSN, but nothing happens twice to a key at the same LSN."""
        changes = list(feed(events=4000).history())
        assert len({(change.key, change.lsn) for change in changes}) == len(changes)
        creates = Counter(change.lsn for change in changes if change.op == "c")
        assert max(creates.values()) > 1

    def test_everything_happens(self):
        """Keys come back after a delete, also within a transaction, and a key is changed twice in one."""
        changes = list(feed().history())
        by_key = sorted(changes, key=lambda change: (change.key, change.lsn))
        pairs = [(one, two) for one, two in pairwise(by_key) if one.key == two.key]
        back = [one.transaction == two.transaction for one, two in pairs if (one.op, two.op) == ("d", "c")]
        assert set(back) == {True, False}
        assert [one for one, two in pairs if one.transaction == two.transaction and one.op == two.op == "u"]
        assert {change.op for change in changes} == set("rcud")


class TestOtherForms:
    def test_flat(self):
        """The flat form has the same changes in the same order, each with its `seq`, and ends in the same rows."""
        one = feed(replays=2)
        rows = list(one.flat())
        assert [(row["op"], row["seq"]) for row in rows] == [
            (event["op"], event["source"]["lsn"]) for event in envelopes(one.records())
        ]
        state = {}
        for row in sorted(rows, key=lambda row: row["seq"]):
            values = {name: row[name] for name in Row._fields}
            if row["op"] == "d":
                assert {*values.values()} == {row["id"], None}
                state.pop(row["id"], None)
            else:
                known = {"note": state[row["id"]].note} if row["note"] == UNAVAILABLE else {}
                state[row["id"]] = Row(**(values | known))
        assert state == one.final_state()

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
