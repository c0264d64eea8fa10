"""Debezium's records, with the settings in docs/change-data.md, are as the page describes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.pages import DOCS, sections

PART = sections((DOCS / "change-data.md").read_text(), 2)["How Debezium has to be configured"]
ROOT = Path(__file__).parents[2]
SEEN = [json.loads(line) for line in (ROOT / "testbed/change_feed_seen.jsonl").read_text().splitlines()]
EVENTS = [json.loads(record["value"]) for record in SEEN if record["value"]]
IMAGES = [image for event in EVENTS for image in (event["before"], event["after"]) if image]


def test_the_settings_that_have_to_be_set():
    """The block has JSON without schemas, and decimals as texts."""
    [block] = re.findall(r"^```properties\n(.*?)^```", PART, re.MULTILINE | re.DOTALL)
    assert dict(line.split("=") for line in block.splitlines()) == {
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "decimal.handling.mode": "string",
    }


def test_records_of_a_connector_have_this_form():
    """The envelope is the record's value; decimals are texts with every digit, and times are texts in UTC."""
    assert len(EVENTS) > 5
    assert all({"before", "after", "op", "source"} <= event.keys() for event in EVENTS)
    assert all(event["source"]["lsn"] > 0 and event["source"]["version"].startswith("3.5.") for event in EVENTS)
    amounts = {image["amount"] for image in IMAGES if image["amount"] is not None}
    assert "12.30" in amounts
    assert all(isinstance(amount, str) for amount in amounts)
    times = {image["updated_at"] for image in IMAGES if image["updated_at"] is not None}
    assert "2026-01-01T00:00:00.120000Z" in times
    assert all(time.endswith("Z") for time in times)
    assert all(name in PART for name in ('`"12.30"`', '`"2026-01-01T00:00:00.120000Z"`'))


def test_a_delete_is_followed_by_a_record_without_a_value():
    """That is what `tombstones.on.delete` does by default, and what the job leaves out."""
    without_value = [place for place, record in enumerate(SEEN) if record["value"] is None]
    assert without_value
    for place in without_value:
        assert json.loads(SEEN[place - 1]["value"])["op"] == "d"
        assert SEEN[place]["key"] == SEEN[place - 1]["key"]


def test_the_example_reads_such_records():
    """It leaves tombstones out, reads decimals and times by their types, and names the placeholder that was sent."""
    example = (ROOT / "examples/cdc.py").read_text()
    for text in ('where("value IS NOT NULL")', "amount: DECIMAL(12, 2)", "updated_at: TIMESTAMP", "source.lsn"):
        assert text in example
    assert '"keepWhere": "__debezium_unavailable_value"' in example
    assert any("__debezium_unavailable_value" in image.values() for image in IMAGES)
