"""Which query a person means by a name or an id, and what is said where that is not clear."""

from __future__ import annotations

import pytest
from support.ledger_history import KAFKA, OTHER, QUERY, publish, take_over

from pgonce.offsets_store.errors import OffsetsError


class TestWhichQuery:
    def test_by_the_beginning_of_its_id(self, url, store):
        """Four characters are enough, if no other query's id begins so; otherwise the error names both."""
        publish(url, 0, KAFKA)
        publish(url, 3, KAFKA, query_id=OTHER)
        assert store.latest(QUERY[:4]).query_id == QUERY
        assert store.history(OTHER[:9])[0].batch_id == 3
        alike = QUERY[:5] + OTHER[5:]
        publish(url, 0, KAFKA, query_id=alike)
        with pytest.raises(OffsetsError, match=rf"\[QUERY_AMBIGUOUS\].*{QUERY}.*{alike}"):
            store.latest(QUERY[:4])

    def test_an_unknown_one_lists_what_there_is(self, url, store):
        """A wrong name is answered with the right ones."""
        publish(url, 0, KAFKA)
        with pytest.raises(OffsetsError, match=r"QUERY_NOT_FOUND.* orders\?.* orders\."):
            store.latest("order")
        with pytest.raises(OffsetsError, match=r"QUERY_NOT_FOUND.* orders\."):
            store.latest(QUERY[:3])

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
        with pytest.raises(OffsetsError, match="SINK_NEEDED.*audit"):
            store.latest("orders")
        assert store.latest("orders", sink="audit").batch_id == 3

    def test_an_unknown_sink_lists_the_sinks(self, url, store):
        """A wrong sink is answered with the right ones."""
        publish(url, 0, KAFKA)
        with pytest.raises(OffsetsError, match=r"SINK_NOT_FOUND.*public\.orders"):
            store.latest("orders", sink="order")
