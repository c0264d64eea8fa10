"""Where a new checkpoint starts, so that it goes on where the old one ended."""

from __future__ import annotations

import json

import pytest
from support.ledger_history import KAFKA, OTHER, QUERY, publish, take_over

from pgonce.offsets_store.errors import OffsetsError


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
