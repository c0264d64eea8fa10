"""How far a query is behind its sources, and where a new checkpoint starts, so that it goes on there."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from support.ledger_history import KAFKA, hear, heard_at, publish

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.status.ends import total_lag


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
        assert {row.measured_at for row in rows} == {heard_at(url) + timedelta(seconds=5)}
        assert total_lag(rows) == 3

    def test_what_was_measured_long_ago_is_not_the_lag_of_now(self, url, store, pgonce):
        """Nobody has looked since: it is unknown, and people see what it was, and when."""
        publish(url, 0, KAFKA)
        hear(url, {"0": {"t": {"0": 15, "1": 22}}}, seconds=-3600)
        rows = store.lag("orders")
        assert [(row.lag, row.latest_offset) for row in rows] == [(None, 15), (None, 22)]
        assert {row.measured_at for row in rows} == {heard_at(url) - timedelta(hours=1)}
        assert total_lag(rows) is None
        shown = pgonce("offsets", "orders").stdout
        assert "lag measured 1h ago" in shown
        assert "15    ?" in shown
        (writer,) = json.loads(pgonce("status", "--json").stdout)
        assert (writer["lag"], writer["last_lag"]) == (None, 7)
        assert datetime.fromisoformat(writer["lag_measured_at"]) == heard_at(url) - timedelta(hours=1)
        assert "? (was 7 records at " in pgonce("status", "orders").stdout


class TestStartingOffsets:
    def test_two_sources_that_read_one_topic(self, url, store):
        """Each has a lag, and the total counts a partition once, at the end that is further behind."""
        publish(url, 0, {"0": {"t": {"0": 10}}, "1": {"t": {"0": 12}}})
        hear(url, {"0": {"t": {"0": 13}}, "1": {"t": {"0": 13}}})
        rows = store.lag("orders")
        assert [row.lag for row in rows] == [3, 1]
        assert total_lag(rows) == 3

    def test_stored_ends_of_one_kafka_source_are_its_starting_offsets(self, url, store):
        """The stored ends of one Kafka source are Kafka's startingOffsets as they stand."""
        publish(url, 0, {"0": {"t": {"0": 10, "2": 0, "10": 5}, "u": {"0": 1}}})
        assert store.starting_offsets("orders") == '{"t": {"0": 10, "2": 0, "10": 5}, "u": {"0": 1}}'

    def test_what_cannot_be_continued(self, url, store):
        """Anything but one Kafka source with known offsets is refused, with the reason."""
        for end, code in [
            ({"0": {"logOffset": 3}}, "NO_STARTING_OFFSETS"),
            ({"0": None}, "NO_STARTING_OFFSETS"),
            ({"0": {"t": {"0": 1}}, "1": {"u": {"0": 1}}}, "NO_STARTING_OFFSETS"),
            ({"0": {"t": {"0": 1}}, "1": 3}, "NO_STARTING_OFFSETS"),
            (None, "OFFSETS_UNKNOWN"),
        ]:
            publish(url, 0, end, sink_name=f"sink {end}")
            with pytest.raises(OffsetsError) as refused:
                store.starting_offsets("orders", sink=f"sink {end}")
            assert refused.value.code == code

    def test_a_source_that_the_plan_reads_twice(self, url, store):
        """A union of two branches of one stream has its end twice, and one place to start."""
        publish(url, 0, {**KAFKA, "1": KAFKA["0"]})
        assert json.loads(store.starting_offsets("orders")) == KAFKA["0"]

    def test_sinks_at_one_place_are_one(self, url, store):
        """Two sinks that stand at the same offsets need no `sink`."""
        publish(url, 0, KAFKA)
        publish(url, 0, KAFKA, sink_name="audit")
        assert json.loads(store.starting_offsets("orders")) == KAFKA["0"]
