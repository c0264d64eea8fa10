"""Progress events are compared with the ledger, and tell how many records were left in Kafka."""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.batches import make_writer
from support.ledger_history import RUN
from support.progress_events import heard

from pgonce.offsets_store.progress.heard import disagreement, left_by
from pgonce.offsets_store.verdict.facts import Recorded


class TestDisagreement:
    @pytest.mark.parametrize(
        ("recorded", "told", "agrees"),
        [
            ({"0": {"t": {"0": 1, "1": 2}}}, {"0": {"t": {"1": 2, "0": 1}}}, True),
            ({"0": {"t": {"0": 1}}}, {"0": {"t": {"0": 2}}}, False),
            ({"0": 3, "1": 4}, {"0": 4, "1": 3}, False),
            ({"0": 3}, {"0": 3, "1": 4}, False),
            ({"0": None, "1": 4}, {"0": None, "1": 4}, True),
            ({"left": 3, "right": 4}, {"0": 4, "1": 3}, True),
            ({"left": 3, "right": 3}, {"0": 3, "1": 4}, False),
            ({"0": 3, "1": 3, "2": 4}, {"0": 3, "1": 4}, True),
            ({"0": 3, "1": 3}, {"0": 3, "1": 4, "2": 5}, False),
            (None, {"0": 3}, True),
        ],
    )
    def test_what_counts_as_the_same(self, recorded, told, agrees):
        """
        Key order is nothing, positions count, named sources and one that is read twice match by value, and unknown is
        no disagreement.
        """
        record = Recorded(0, RUN, uuid4(), None, recorded, "an entry")
        assert (disagreement(heard(end=told), [(make_writer(), record)]) is None) == agrees

    def test_what_another_run_left_out(self):
        """A sink that this run has not fed may have been dropped from the query: that is nobody's fault."""
        gone, short, pruned = make_writer(), make_writer(run_id=RUN), make_writer(run_id=RUN, last_batch_id=9)
        assert disagreement(heard(batch_id=1), [(gone, None)]) is None
        assert "last one in sink 'public.events' is 0" in disagreement(heard(batch_id=1), [(short, None)])
        assert disagreement(heard(batch_id=1), [(pruned, None)]) is None


class TestLeftBy:
    @pytest.mark.parametrize(
        ("end", "latest", "left"),
        [
            ({"0": {"t": {"0": 5, "1": 7}}}, {"0": {"t": {"0": 8, "1": 7}}}, 3),
            ({"0": {"t": {"0": 5}}, "1": {"u": {"0": 1}}}, {"0": {"t": {"0": 5}}, "1": {"u": {"0": 3}}}, 2),
            ({"0": {"t": {"0": 5}}}, {"0": {"t": {"0": 5}}}, 0),
            ({"0": {"t": {"0": 5}}}, {"0": None}, None),
            ({"0": {"t": {"0": 5}}}, {"0": {"t": {"0": 5, "1": 2}}}, None),
            ({"0": {"t": {"0": 5}}}, {"0": {"t": {"0": 4}}}, None),
            ({"0": {"t": {"0": 5}}, "1": {"logOffset": 3}}, {"0": {"t": {"0": 6}}, "1": None}, None),
            ({"0": 3}, {"0": 4}, None),
            ({}, {}, None),
        ],
    )
    def test_records_that_were_left(self, end, latest, left):
        """Over all sources, topics and partitions; unknown as soon as one of them is, and for other sources."""
        assert left_by(end, latest) == left
