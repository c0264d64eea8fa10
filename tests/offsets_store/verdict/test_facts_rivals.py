"""
Queries that may have written the rows that a query which is new to the ledger is about to write.

Covers: offsets_store.verdict.reads.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from support.batches import make_batch, make_writer

from pgonce.offsets_store.verdict.facts import rivals_of, what_speaks_against
from pgonce.offsets_store.verdict.reads import Reads, are_apart, reads_of, recorded_reads, together

FILES = {"0": {"logOffset": 0}}
RATE = {"0": {"offset": 3, "timestamp": 3000}}


def kafka(*partitions, topic="orders"):
    """The end of a batch that reads these partitions."""
    return {"0": {topic: {str(partition): 10 for partition in partitions}}}


def first(end, **identity):
    """Batch 0 of a query that the ledger does not know."""
    return make_batch(start=None, end=end, **{"query_id": "new", "sink_name": "public.orders", **identity})


def feeding(end, **identity):
    """A query that has published one batch with that end."""
    reads = reads_of(end)
    fields = {"sink_name": "public.orders", "checkpoint_location": "/checkpoints/old", "reads": reads, **identity}
    return make_writer(**{"query_id": "old", "end_offsets": end, **fields})


APART = {
    "other partitions of one topic": (first(kafka(0, 1)), feeding(kafka(2))),
    "another topic": (first(kafka(0)), feeding(kafka(0, topic="more"))),
}


@pytest.mark.parametrize("name", APART)
def test_queries_that_read_nothing_in_common_may_feed_one_sink(name):
    """Where both say what they read, and that has nothing in common, both may feed the sink."""
    assert what_speaks_against(*APART[name]) == ""


AGAINST = {
    "a common partition": (first(kafka(0, 1)), feeding(kafka(1, 2)), "same Kafka partitions of orders"),
    "files": (first(FILES), feeding(FILES), "nothing proves"),
    "Kafka here and files there": (first(kafka(0)), feeding(FILES), "nothing proves"),
    "files here and Kafka there": (first(FILES), feeding(kafka(0)), "nothing proves"),
    "a rate": (first(RATE), feeding(RATE), "nothing proves"),
    "offsets that only a listener tells": (first(None, guarantee="ids"), feeding(kafka(0)), "nothing proves"),
    "a query whose offsets are unknown": (first(kafka(0)), feeding(None), "nothing proves"),
    "a query of which a part is not known": (first(kafka(0)), feeding(kafka(1), reads=None), "nothing proves"),
    "a topic that it read once": (
        first(kafka(0)),
        feeding(kafka(0, topic="now"), reads=Reads(frozenset({("orders", 0), ("now", 0)}))),
        "same Kafka partitions of orders",
    ),
    "a topic that older code has not noted": (
        first(kafka(0)),
        feeding(kafka(0), reads=Reads(frozenset({("before", 0)}))),
        "same Kafka partitions of orders",
    ),
    "the same location, though apart": (
        first(kafka(0), checkpoint_location="/checkpoints/old"),
        feeding(kafka(1)),
        "the same checkpoint location /checkpoints/old",
    ),
    "the same name, though apart": (
        first(kafka(0), query_name="orders"),
        feeding(kafka(1), query_name="orders"),
        "the same query name 'orders'",
    ),
}


@pytest.mark.parametrize("name", AGAINST)
def test_what_is_shared_or_not_known_makes_a_rival(name):
    """Whatever is shared, or is not known, makes a rival, and the words say why."""
    batch, other, words = AGAINST[name]
    assert words in what_speaks_against(batch, other)


def test_one_of_two_sources_is_not_known():
    """A query is known by all of its sources, or not at all."""
    end = {"0": kafka(0)["0"], "1": {"logOffset": 0}}
    assert reads_of(end) is None
    assert reads_of({"0": None}) is None
    assert reads_of({}) is None


def test_the_order_of_two_queries_does_not_make_them_rivals():
    """Which of two queries came first changes nothing."""
    all_reads = [None, *(reads_of(batch.end) for batch, *_ in [*APART.values(), *AGAINST.values()])]
    for one, other in itertools.product(all_reads, repeat=2):
        assert are_apart(one, other) == are_apart(other, one)
        assert not (one and are_apart(one, one))


def test_what_is_read_is_kept():
    """The ledger's form says the same again; what was not known once stays so."""
    reads = Reads(frozenset({("orders", 0), ("orders", 1)}))
    assert recorded_reads(reads.record()) == reads
    assert recorded_reads(None) is None
    assert together(reads, Reads(frozenset({("more", 0)}))).partitions == reads.partitions | {("more", 0)}
    assert together(None, reads) is together(reads, None) is None


def test_folders_that_older_code_has_noted_prove_nothing():
    """What a query with such a record reads is not known, whatever else stands there; without files it is."""
    assert recorded_reads({"kafka": {}, "folders": ["file:/data/a"]}) is None
    assert recorded_reads({"kafka": {"orders": [0]}, "folders": ["file:/data/a"]}) is None
    assert recorded_reads({"kafka": {"orders": [0]}, "folders": []}) == Reads(frozenset({("orders", 0)}))


def test_the_likeliest_rival_stands_first():
    """An error's help is about the query that was probably recreated, not about one of which nothing is known."""
    doubt, partitions = feeding(None, query_id="doubt"), feeding(kafka(0), query_id="partitions")
    same = feeding(kafka(0), query_id="same", checkpoint_location="/here")
    found = rivals_of(first(kafka(0), checkpoint_location="/here"), (doubt, partitions, same), None)
    assert [rival.query_id for rival in found] == ["same", "partitions", "doubt"]


def test_beside_the_query_that_is_replaced_doubt_counts_for_nothing():
    """What a query that ended was to the others, the one that goes on where it ended is to them, too."""
    old, unknown, common = feeding(kafka(0)), feeding(FILES, query_id="files"), feeding(kafka(0), query_id="kafka")
    found = rivals_of(first(kafka(0)), (old, unknown, common), "old")
    assert [rival.query_id for rival in found] == ["old", "kafka"]
    half_known = replace(common, reads=None)
    assert [rival.query_id for rival in rivals_of(first(kafka(0)), (old, half_known), "old")] == ["old", "kafka"]
    assert [rival.query_id for rival in rivals_of(first(kafka(0)), (old, unknown), None)] == ["old", "files"]
    elsewhere = feeding(kafka(7), query_id="apart")
    assert [rival.query_id for rival in rivals_of(first(kafka(0)), (elsewhere,), "apart")] == ["apart"]


def test_a_source_that_is_not_kafkas_was_not_the_replaced_querys():
    """Only a query of Kafka's can be replaced, so another query may feed the files that are read in addition."""
    more, files = first({**kafka(0), "1": {"logOffset": 0}}), feeding(FILES, query_id="files")
    assert [rival.query_id for rival in rivals_of(more, (feeding(kafka(0)), files), "old")] == ["old", "files"]


def test_a_rival_of_the_same_table_says_its_sink():
    """What replaces a query has its sink's name, so a query of another sink is not replaced."""
    batch = first(kafka(0))
    elsewhere = feeding(kafka(0), sink_name="route:kind")
    assert [rival.other_sink for rival in rivals_of(batch, (elsewhere,), None)] == ["route:kind"]
    assert [rival.other_sink for rival in rivals_of(batch, (feeding(kafka(0), sink_name="public.orders"),), None)] == [
        None
    ]
    assert rivals_of(batch, (elsewhere,), "old") == ()
