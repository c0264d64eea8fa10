"""
What the ledger keeps of a progress event, how it is compared with the ledger, and which offsets it fills in.

Covers: offsets_store.progress.heard.
"""

from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

import psycopg
import pytest
from support.batches import make_writer
from support.ledger_history import QUERY, RUN, publish
from support.progress_events import heard

from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.progress.heard import disagreement, left_by
from pgonce.offsets_store.progress.stored_progress import store_progress_in_tx
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.facts import Recorded


def store(url, event):
    """Store one event in a transaction of its own."""
    with writing(url) as connection:
        return store_progress_in_tx(connection, event)


class TestFilling:
    def test_a_writer_that_is_busy_is_not_waited_for(self, url, observer):
        """While the next commit holds the writer's row, the batch is filled, and readers find its end there."""
        publish(url, 0, None, guarantee="ids")
        with psycopg.connect(url) as committing:
            committing.execute("SELECT * FROM pgonce.writers FOR UPDATE")
            store(url, heard(end={"0": {"t": {"0": 7}}}))
        assert observer.execute("SELECT end_offsets FROM pgonce.writers").fetchone() == (None,)
        assert OffsetsStore(url).starting_offsets("orders") == '{"t": {"0": 7}}'
        assert observer.execute("SELECT end_offset FROM pgonce.current_offsets").fetchone() == (7,)

    @pytest.mark.parametrize(
        ("published", "event"),
        [
            ({"guarantee": "offsets"}, {}),
            ({"guarantee": "ids", "run_id": str(uuid4())}, {}),
            ({"guarantee": "ids"}, {"batch_id": 1}),
        ],
    )
    def test_what_is_not_its_own_is_left_alone(self, url, observer, published, event):
        """Offsets that are unknown for another reason, or of another run or batch, are not filled."""
        publish(url, 0, None, **published)
        store(url, heard(end={"0": 3}, **event))
        for table in ("writers", "batches"):
            assert observer.execute(f"SELECT end_offsets FROM pgonce.{table}").fetchone() == (None,)

    def test_known_offsets_are_never_changed(self, url, observer):
        """An event that disagrees changes nothing but its own row."""
        publish(url, 0, {"0": 2}, guarantee="ids")
        assert store(url, heard(end={"0": 3})) is not None
        for table in ("writers", "batches"):
            assert observer.execute(f"SELECT end_offsets FROM pgonce.{table}").fetchone() == ({"0": 2},)

    def test_old_rows_are_pruned(self, url, observer, monkeypatch):
        """The newest events of a query stay, those of other queries are not touched."""
        kept_a_query = 40
        monkeypatch.setattr("pgonce.offsets_store.progress.stored_progress.KEPT_A_QUERY", kept_a_query)
        store(url, heard(batch_id=3, query_id="another"))
        total = kept_a_query + 32
        with writing(url) as connection:
            for batch_id in range(total + 1):
                store_progress_in_tx(connection, heard(batch_id=batch_id))
        found = observer.execute("SELECT batch_id FROM pgonce.progress WHERE query_id = %s ORDER BY 1", [QUERY])
        kept = [number for (number,) in found]
        assert kept[-1] == total
        assert kept_a_query <= len(kept) < kept_a_query + 16
        assert all(after == before + 1 for before, after in pairwise(kept))
        assert observer.execute("SELECT count(*) FROM pgonce.progress").fetchone() == (len(kept) + 1,)


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
