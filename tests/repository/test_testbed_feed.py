"""The testbed's change feed is what Debezium sends; test_examples.py shows that it leads to its source's rows."""

import json
from pathlib import Path

import pytest
from change_feed import UNAVAILABLE, ChangeFeed

SEEN = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "testbed" / "change_feed_seen.jsonl").read_text().splitlines()
]


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


@pytest.mark.parametrize("seen", SEEN, ids=range(len(SEEN)))
def test_looks_like_what_debezium_sent(seen):
    """For each record that the connector itself has sent, the feed has one with the same names and types."""
    records = ChangeFeed(seed=15, keys=20, events=4000, identity=seen["identity"]).records()
    wanted = kind(seen["identity"], seen["value"], seen["headers"])
    alike = [record for record in records if kind(seen["identity"], record.value, record.headers) == wanted]
    assert alike
    assert all(shape(json.loads(record.key)) == shape(json.loads(seen["key"])) for record in alike)
    if seen["value"]:
        shapes = [shape(json.loads(record.value)) for record in alike]
        assert shape(json.loads(seen["value"])) in shapes
