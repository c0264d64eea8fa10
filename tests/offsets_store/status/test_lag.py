"""How far a query is behind its sources, as far as its progress events tell."""

from __future__ import annotations

from datetime import datetime, timezone

from support.ledger_history import KAFKA, hear, publish

from pgonce.offsets_store.status.lag import total_lag


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
        assert {row.measured_at for row in rows} == {datetime(2026, 1, 1, 0, 0, 5, tzinfo=timezone.utc)}
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
