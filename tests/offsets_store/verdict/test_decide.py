"""
The decision, as a table: every row of the design has a case here.

Covers: offsets_store.offsets, offsets_store.verdict.facts.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import make_batch, make_writer

from pgonce.offsets_store.errors import RefusedBatch
from pgonce.offsets_store.offsets import Span
from pgonce.offsets_store.verdict.decide import PUBLISH, SKIP, Verdict, decide, without_gone
from pgonce.offsets_store.verdict.facts import Batch, Ledger, Recorded, Remedies, Rival
from pgonce.offsets_store.verdict.refused_batch import refusal

OURS, THEIRS = UUID(int=1), UUID(int=2)
NO_REMEDY = Remedies()


def kafka(offset):
    """Offsets of one Kafka source with one partition."""
    return {"0": {"orders": {"0": offset}}}


def text(batch_id):
    """The text of ``offsets/N`` as the first planning wrote it."""
    return f"v1\nplanned once\n{batch_id}"


def batch(batch_id, **changes):
    """Batch N of run r1, which reads offsets 10N to 10N+10."""
    fields = {
        "sink_name": "public.orders",
        "run_id": "r1",
        "attempt": OURS,
        "offset_log": text(batch_id),
        "previous_offset_log": text(batch_id - 1) if batch_id else None,
        "start": kafka(batch_id * 10),
        "end": kafka(batch_id * 10 + 10),
        **changes,
    }
    return make_batch(batch_id, **fields)


REPLACES = Remedies(replaces="q0")


def recorded(batch_id, **changes):
    """The record of batch N, published by an earlier run."""
    published = batch(batch_id)
    record = Recorded(batch_id, "r0", THEIRS, published.start, published.end, published.offset_log)
    return replace(record, **changes)


def ledger(last_batch_id, same_id=None, **changes):
    """A writer that has published up to batch ``last_batch_id``."""
    of_writer = {"last": changes.pop("last")} if "last" in changes else {}
    known = Ledger(writer=known_writer(last_batch_id, kafka(last_batch_id * 10 + 10), **of_writer), same_id=same_id)
    return replace(known, **changes)


def known_writer(last_batch_id, end, **changes):
    """Its row in the ledger; run r0 is the owner, and the last batch is recorded as it was planned."""
    return make_writer("q1", last_batch_id, end, **{"run_id": "r0", "last": recorded(last_batch_id), **changes})


UNKNOWN_TO_LEDGER = Ledger()
RIVAL = Rival(make_writer("q0", 6, kafka(70)), "the same query name 'orders'")


def rival(**changes):
    """The same with another row in the ledger."""
    return replace(RIVAL, writer=replace(RIVAL.writer, **changes))


BESIDE_RIVAL = Ledger(rivals=(RIVAL,))

WITHOUT_REMEDIES = {
    "the first batch of a query that nobody knows": (UNKNOWN_TO_LEDGER, batch(0), Verdict.NEW),
    "the next batch": (ledger(6), batch(7), Verdict.NEW),
    "the next batch of another run, which becomes the owner": (ledger(6), batch(7, run_id="r9"), Verdict.NEW),
    "our own attempt, whose answer was lost": (
        ledger(7, recorded(7, attempt=OURS, run_id="r1")),
        batch(7),
        Verdict.LANDED,
    ),
    "the last batch again, after a restart": (ledger(7, recorded(7)), batch(7), Verdict.REPLAY),
    "an older batch again": (ledger(7, recorded(5)), batch(5), Verdict.REPLAY),
    "a skip whose answer was lost": (ledger(7, recorded(7), skipped_by=OURS), batch(7), Verdict.REPLAY),
    "a batch that this run skipped, handed in again": (
        ledger(7, recorded(7), skipped_by=THEIRS),
        batch(7),
        Verdict.DUPLICATE,
    ),
    "a batch that this run published, handed in again": (
        ledger(7, recorded(7, run_id="r1"), was_owner=True, writer=known_writer(7, kafka(80), run_id="r1")),
        batch(7),
        Verdict.DUPLICATE,
    ),
    "the last batch planned again, with the same offsets": (
        ledger(7, recorded(7)),
        batch(7, offset_log="v1\nplanned again\n7"),
        Verdict.CHANGED,
    ),
    "a batch whose record was pruned": (ledger(700), batch(7), Verdict.CHANGED),
    "a batch after one that never came": (ledger(6), batch(8), Verdict.GAP),
    "a batch after another planning of the last one": (
        ledger(6),
        batch(7, previous_offset_log="v1\nplanned again\n6"),
        Verdict.DISJOINT,
    ),
    "without texts, a start that is not the stored end": (
        ledger(6),
        batch(7, previous_offset_log=None, start=kafka(71)),
        Verdict.DISJOINT,
    ),
    "without texts, a start that is the stored end": (ledger(6), batch(7, previous_offset_log=None), Verdict.NEW),
    "without texts, an unknown start": (ledger(6), batch(7, previous_offset_log=None, start=None), Verdict.DISJOINT),
    "without texts, an empty range again, of a batch that may emit a window that closed": (
        ledger(7, recorded(7, offset_log=None, start=kafka(80), end=kafka(80))),
        batch(7, offset_log=None, start=kafka(80), end=kafka(80)),
        Verdict.CHANGED,
    ),
    "without texts, offsets of files again, which may stand for others": (
        ledger(7, recorded(7, offset_log=None, start={"0": {"logOffset": 6}}, end={"0": {"logOffset": 7}})),
        batch(7, offset_log=None, start={"0": {"logOffset": 6}}, end={"0": {"logOffset": 7}}),
        Verdict.CHANGED,
    ),
    "a range that goes back": (ledger(6), batch(7, end=kafka(5)), Verdict.BACKWARD),
    "a range whose partition vanished": (ledger(6), batch(7, end={"0": {"orders": {}}}), Verdict.BACKWARD),
    "a run that was the owner, after another run published": (ledger(7, was_owner=True), batch(8), Verdict.FENCED),
    "a query whose place another took": (
        ledger(7, writer=known_writer(7, kafka(80), run_id="r1", replaced_by="q2")),
        batch(8),
        Verdict.FENCED,
    ),
    "a writer that was retired, which is for good": (
        ledger(6, writer=known_writer(6, kafka(70), retired_at=datetime(2026, 11, 24, tzinfo=timezone.utc))),
        batch(7),
        Verdict.FENCED,
    ),
    "a past that the ledger did not see": (UNKNOWN_TO_LEDGER, batch(7), Verdict.UNKNOWN),
    "batch 0 of a new query beside a rival": (BESIDE_RIVAL, batch(0), Verdict.FOREIGN),
    "by ids alone, the last batch again": (
        ledger(7, recorded(7, offset_log=None)),
        batch(7, offset_log=None, start=None, end=None, guarantee="ids"),
        Verdict.REPLAY,
    ),
    "by ids alone, the next batch": (
        ledger(6, last=recorded(6, offset_log=None)),
        batch(7, offset_log=None, previous_offset_log=None, start=None, end=None, guarantee="ids"),
        Verdict.NEW,
    ),
    "by ids alone, a gap": (
        ledger(5, last=recorded(5, offset_log=None)),
        batch(7, offset_log=None, previous_offset_log=None, start=None, end=None, guarantee="ids"),
        Verdict.GAP,
    ),
}

WITH_REMEDIES = {
    "a past that the ledger did not see, adopted at this batch": (
        UNKNOWN_TO_LEDGER,
        batch(7),
        Remedies(adopt_checkpoint=7),
        Verdict.NEW,
    ),
    "a past that the ledger did not see, adopted after this batch": (
        UNKNOWN_TO_LEDGER,
        batch(7),
        Remedies(adopt_checkpoint=8),
        Verdict.ADOPTED,
    ),
    "a past that the ledger did not see, adopted at another batch": (
        UNKNOWN_TO_LEDGER,
        batch(7),
        Remedies(adopt_checkpoint=5),
        Verdict.UNKNOWN,
    ),
    "batch 0 beside a rival, said to be independent": (BESIDE_RIVAL, batch(0), Remedies(independent=True), Verdict.NEW),
    "batch 0 beside a rival, which starts at the rival's end": (
        BESIDE_RIVAL,
        batch(0, start=kafka(70), end=kafka(80)),
        REPLACES,
        Verdict.NEW,
    ),
    "batch 0 beside a rival, which starts at the rival's end and has a new partition": (
        BESIDE_RIVAL,
        batch(0, start={"0": {"orders": {"0": 70, "1": 0}}}, end={"0": {"orders": {"0": 80, "1": 3}}}),
        REPLACES,
        Verdict.NEW,
    ),
    "batch 0 beside a rival, which leaves out the first rows of a new partition": (
        BESIDE_RIVAL,
        batch(0, start={"0": {"orders": {"0": 70, "1": 2}}}, end={"0": {"orders": {"0": 80, "1": 3}}}),
        REPLACES,
        Verdict.FOREIGN,
    ),
    "batch 0 beside a rival, which also reads a topic that the rival did not read, from anywhere": (
        BESIDE_RIVAL,
        batch(
            0, start={"0": {**kafka(70)["0"], "clicks": {"0": 5}}}, end={"0": {**kafka(80)["0"], "clicks": {"0": 6}}}
        ),
        REPLACES,
        Verdict.NEW,
    ),
    "batch 0 beside a rival, which starts elsewhere": (
        BESIDE_RIVAL,
        batch(0, start=kafka(0)),
        REPLACES,
        Verdict.FOREIGN,
    ),
    "batch 0 beside a rival, whose start is unknown": (BESIDE_RIVAL, batch(0, start=None), REPLACES, Verdict.FOREIGN),
    "batch 0 beside a rival, which starts at the rival's end and goes back: the topic was recreated": (
        BESIDE_RIVAL,
        batch(0, start=kafka(70), end=kafka(5)),
        REPLACES,
        Verdict.BACKWARD,
    ),
    "an adopted batch that goes back": (
        UNKNOWN_TO_LEDGER,
        batch(7, end=kafka(5)),
        Remedies(adopt_checkpoint=7),
        Verdict.BACKWARD,
    ),
    "adoptCheckpoint=1 beside a rival, left in place for a new checkpoint": (
        BESIDE_RIVAL,
        batch(0),
        Remedies(adopt_checkpoint=1),
        Verdict.FOREIGN,
    ),
    "adoptCheckpoint=0 beside a rival, which says nothing of batch 0": (
        BESIDE_RIVAL,
        batch(0),
        Remedies(adopt_checkpoint=0),
        Verdict.FOREIGN,
    ),
    "a replacement of a query that never fed this sink": (UNKNOWN_TO_LEDGER, batch(0), REPLACES, Verdict.FOREIGN),
}

CASES = {name: (*case[:2], NO_REMEDY, case[2]) for name, case in WITHOUT_REMEDIES.items()} | WITH_REMEDIES


@pytest.mark.parametrize("name", CASES)
def test_each_situation_of_the_design_has_its_verdict(name):
    """Each situation of the design has its verdict."""
    known, this, remedies, expected = CASES[name]
    assert decide(known, this, remedies) is expected


@pytest.mark.parametrize(
    ("planned_again", "proven"),
    [
        ({}, True),
        ({"stateful": True}, False),
        ({"start": kafka(69)}, False),
        ({"end": kafka(81)}, False),
        ({"end": None}, False),
        ({"start": None}, False),
    ],
)
def test_without_texts_only_a_stateless_kafka_range_proves_a_replay(planned_again, proven):
    """Where the offset log's text is missing, equal offsets are proof only if they say which rows, and all of them."""
    this = batch(7, offset_log=None, **planned_again)
    verdict = decide(ledger(7, recorded(7, offset_log=None)), this, NO_REMEDY)
    assert verdict is (Verdict.REPLAY if proven else Verdict.CHANGED)


def spanning(first, after):
    """Where the rows of a batch lie, in partition 0."""
    return Span(kafka(first), kafka(after))


def by_position(positions, *, last=7, end=None, run_id="r0", previous=None):
    """A writer whose rows are stored up to ``positions``; another run than the tests' wrote them."""
    newest = replace(recorded(last), positions=kafka(positions), end=kafka(end or positions))
    writer = known_writer(last, kafka(end or positions), run_id=run_id, last=newest)
    return Ledger(writer=writer, previous=previous)


def planned_again(batch_id, first, after, **changes):
    """A batch of a run over these rows, which are known by their positions; no record has its entry."""
    ends = {"start": kafka(first), "end": kafka(after), "span": spanning(first, after)}
    return batch(batch_id, **{"offset_log": "planned again", **ends, **changes})


BY_POSITION = {
    "the next batch, from the stored end on": (by_position(80), planned_again(8, 80, 90), Verdict.NEW),
    "an id that comes again over a wider range": (by_position(100, last=9), planned_again(6, 20, 70), Verdict.OVERLAP),
    "the next id, over rows that are stored": (by_position(100), planned_again(8, 70, 90), Verdict.OVERLAP),
    "the next id, over rows of which some are stored": (by_position(80), planned_again(8, 70, 90), Verdict.OVERLAP),
    "an id that comes again over rows of which none is stored": (
        by_position(100),
        planned_again(7, 100, 110),
        Verdict.OVERLAP,
    ),
    "an id further on, over rows that are stored": (by_position(100), planned_again(20, 70, 120), Verdict.OVERLAP),
    "a start past the stored end": (by_position(80), planned_again(8, 90, 99), Verdict.DISJOINT),
    "a start past the stored end, and an id further on": (by_position(80), planned_again(9, 90, 99), Verdict.GAP),
    "a start that is not known": (by_position(80), planned_again(8, 80, 90, start=None), Verdict.GAP),
    "rows between both that were never selected": (by_position(80, end=90), planned_again(8, 90, 99), Verdict.NEW),
    "such a start, after an entry that is recorded": (
        by_position(80, previous=recorded(7)),
        planned_again(8, 90, 99, previous_offset_log=recorded(7).offset_log),
        Verdict.NEW,
    ),
    "such a start, after another entry than the recorded one": (
        by_position(80, previous=recorded(7)),
        planned_again(8, 90, 99, previous_offset_log="another"),
        Verdict.DISJOINT,
    ),
    "a partition of which nothing is stored, not from its first row on": (
        by_position(80),
        planned_again(8, 80, 90, start={"0": {"orders": {"0": 80, "1": 5}}}),
        Verdict.DISJOINT,
    ),
    "of a source that has another name now": (
        by_position(80, previous=recorded(7)),
        planned_again(
            8,
            80,
            90,
            start={"orders_source": {"orders": {"0": 80}}},
            previous_offset_log=recorded(7).offset_log,
        ),
        Verdict.DISJOINT,
    ),
    "within a run, where no start is known": (
        by_position(80, run_id="r1"),
        planned_again(8, 80, 90, start=None),
        Verdict.NEW,
    ),
    "within a run that runs batches again": (
        by_position(100, end=70, run_id="r1"),
        planned_again(8, 70, 90),
        Verdict.OVERLAP,
    ),
    "within a run, rows before its own last ones": (
        by_position(80, run_id="r1"),
        planned_again(8, 5, 90),
        Verdict.BACKWARD,
    ),
    "within a run, an id left out": (by_position(80, run_id="r1"), planned_again(9, 90, 99), Verdict.GAP),
    "within a run, an old id": (by_position(80, run_id="r1"), planned_again(5, 50, 60), Verdict.CHANGED),
    "a range that goes back": (by_position(80), planned_again(8, 80, 90, end=kafka(5)), Verdict.BACKWARD),
    "an entry of this id that was recorded by a driver that had not planned it": (
        replace(by_position(80), same_id=replace(recorded(7), positions=by_position(80).last.positions)),
        planned_again(7, 70, 90, offset_log=recorded(7).offset_log),
        Verdict.OVERLAP,
    ),
    "an entry of this id that is the recorded one, whose rows are stored": (
        replace(by_position(80), same_id=replace(recorded(7), positions=by_position(80).last.positions)),
        planned_again(7, 70, 80, offset_log=recorded(7).offset_log),
        Verdict.REPLAY,
    ),
    "an entry of this id that is the recorded one": (
        replace(by_position(80), same_id=recorded(7)),
        planned_again(7, 70, 80, offset_log=recorded(7).offset_log),
        Verdict.REPLAY,
    ),
    "a writer that has published by other offsets than Kafka's": (
        Ledger(writer=known_writer(7, {"0": 5})),
        planned_again(6, 20, 70),
        Verdict.CHANGED,
    ),
}


@pytest.mark.parametrize("situation", BY_POSITION)
def test_overlap_is_published_in_part_and_a_gap_is_refused_by_position(situation):
    """Where rows carry their positions, a range that overlaps is published in part; one that leaves out is refused."""
    known, this, expected = BY_POSITION[situation]
    assert decide(known, this, NO_REMEDY) is expected


@pytest.mark.parametrize(("start", "expected"), [(0, Verdict.OVERLAP), (70, Verdict.NEW), (71, Verdict.FOREIGN)])
def test_a_replacement_by_position_may_start_before_the_old_end(start, expected):
    """A new checkpoint that reads from the beginning drops what the old query has published."""
    this = batch(0, start=kafka(start), end=kafka(80), span=spanning(start, 80))
    assert decide(BESIDE_RIVAL, this, REPLACES) is expected


@pytest.mark.parametrize("start", [0, 70])
def test_a_query_is_replaced_once(start):
    """A setting that was left in place takes nothing for stored: that query's rows may be gone by now."""
    this = batch(0, start=kafka(start), end=kafka(80), span=spanning(start, 80))
    known = Ledger(rivals=(rival(replaced_by="the one after it"),))
    assert decide(known, this, REPLACES) is Verdict.FOREIGN
    assert "replaced that query" in str(refusal(Verdict.FOREIGN, known, this, REPLACES))


@pytest.mark.parametrize(("start", "expected"), [(0, Verdict.FOREIGN), (70, Verdict.NEW)])
def test_a_retired_query_leaves_out_no_rows(start, expected):
    """It may have been forgotten, so that its table could be loaded again. At its end, none of its rows is needed."""
    this = batch(0, start=kafka(start), end=kafka(80), span=spanning(start, 80))
    retired_at = datetime(2026, 11, 24, tzinfo=timezone.utc)
    assert decide(Ledger(rivals=(rival(retired_at=retired_at),)), this, REPLACES) is expected


def test_a_replacement_compares_topic_ids():
    """A topic recreated since the old query's last batch is refused to the one that takes its place, too."""
    known = Ledger(rivals=(rival(last=recorded(6, topic_ids={"orders": "one"})),))
    this = batch(0, start=kafka(70), end=kafka(80), topic_ids={"orders": "another"})
    assert decide(known, this, REPLACES) is Verdict.RECREATED
    same = replace(this, topic_ids={"orders": "one"})
    assert decide(known, same, REPLACES) is Verdict.NEW


def test_a_topic_recreated_since_the_last_batch():
    """Kafka's id tells, whatever the offsets say; one that brokers do not give tells nothing."""
    known = ledger(6, last=recorded(6, topic_ids={"orders": "one"}))
    assert decide(known, batch(7, topic_ids={"orders": "another"}), NO_REMEDY) is Verdict.RECREATED
    assert decide(known, batch(7, topic_ids={"orders": "one", "more": "two"}), NO_REMEDY) is Verdict.NEW
    assert decide(known, batch(7, topic_ids={}), NO_REMEDY) is Verdict.NEW


def test_a_batch_without_the_ids_that_its_writer_has():
    """Where brokers were asked once, a run that has not asked them does not go on, nor does one that replaces it."""
    last = recorded(6, topic_ids={"orders": "one"})
    error = refusal(Verdict.RECREATED, ledger(6, last=last), batch(7), NO_REMEDY)
    assert decide(ledger(6, last=last), batch(7), NO_REMEDY) is Verdict.RECREATED
    assert decide(ledger(7, last=last, same_id=recorded(7)), batch(7), NO_REMEDY) is Verdict.REPLAY
    assert "bootstrapServers" in error.remedy
    instead = batch(0, start=kafka(70), end=kafka(80))
    assert decide(Ledger(rivals=(rival(last=last),)), instead, REPLACES) is Verdict.RECREATED


REFUSED = [name for name, case in CASES.items() if case[3] not in PUBLISH | SKIP]


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_happened_what_it_means_and_what_to_do(name):
    """Every refusal names its verdict, the query and a way out."""
    known, this, remedies, verdict = CASES[name]
    error = refusal(verdict, known, this, remedies)
    assert isinstance(error, RefusedBatch)
    assert error.code == verdict.name
    assert this.query_id in str(error) or this.run_id in str(error)
    # Where a batch of this number was published before, its rows are there.
    is_there = verdict in (Verdict.FENCED, Verdict.DUPLICATE, Verdict.CHANGED)
    assert ("Nothing was written this time" if is_there else "Nothing of this batch was written") in error.data
    assert "Help: " in str(error)
    assert len(error.remedy) > 20


offsets = st.one_of(st.none(), st.integers(0, 3).map(kafka), st.integers(0, 3).map(lambda n: {"0": {"logOffset": n}}))
texts = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
records = st.builds(
    Recorded, st.integers(0, 3), st.sampled_from(["r0", "r1"]), st.sampled_from([OURS, THEIRS]), offsets, offsets, texts
)
writers = st.builds(
    make_writer,
    last_batch_id=st.integers(0, 3),
    end_offsets=offsets,
    run_id=st.sampled_from(["r0", "r1"]),
    guarantee=st.sampled_from(["offsets", "ids"]),
    replaced_by=st.sampled_from([None, "q2"]),
)
batches = st.builds(
    Batch,
    query_id=st.just("q1"),
    sink_name=st.just("s"),
    run_id=st.sampled_from(["r0", "r1"]),
    batch_id=st.integers(0, 5),
    attempt=st.sampled_from([OURS, THEIRS]),
    offset_log=texts,
    previous_offset_log=texts,
    start=offsets,
    end=offsets,
    stateful=st.booleans(),
)


@st.composite
def worlds(draw):
    """A ledger and a batch that might meet; the record of the batch's id belongs to that id."""
    this = draw(batches)
    writer = draw(st.one_of(st.none(), writers))
    if writer is None:
        return Ledger(), this
    has_record = this.batch_id <= writer.last_batch_id and draw(st.booleans())
    same_id = replace(draw(records), batch_id=this.batch_id) if has_record else None
    last = replace(draw(records), batch_id=writer.last_batch_id)
    known = Ledger(
        writer=replace(writer, last=last),
        same_id=same_id,
        was_owner=draw(st.booleans()),
        skipped_by=draw(st.sampled_from([None, OURS, THEIRS])),
    )
    return known, this


@given(worlds())
def test_a_batch_is_published_only_as_the_very_next_one(world):
    """Whatever the ledger holds, NEW is the successor of the last batch, or the first batch of all."""
    known, this = world
    if decide(known, this, NO_REMEDY) is Verdict.NEW:
        assert this.batch_id == (known.writer.last_batch_id + 1 if known.writer else 0)


@given(worlds())
def test_a_batch_is_skipped_only_with_a_record_of_the_same_text_or_range(world):
    """Whatever the ledger holds, a skip has a record; where both texts are known they are equal."""
    known, this = world
    if decide(known, this, NO_REMEDY) is Verdict.REPLAY:
        assert known.same_id is not None
        if known.same_id.offset_log is not None and this.offset_log is not None:
            assert known.same_id.offset_log == this.offset_log
        else:
            assert (this.start, this.end) == (known.same_id.start, known.same_id.end)
            assert not this.stateful


@given(worlds())
def test_every_refusal_can_be_said(world):
    """No situation is without words."""
    known, this = world
    verdict = decide(known, this, NO_REMEDY)
    if verdict not in PUBLISH | SKIP:
        assert str(refusal(verdict, known, this, NO_REMEDY)).startswith(f"[{verdict.name}]")


def test_of_a_topic_that_was_created_again_nothing_counts():
    """Its range goes back; the other topic's offsets stay."""
    known = {"0": {"old": {"0": 1000}, "other": {"0": 7}}}
    again = batch(7, start=known, end={"0": {"old": {"0": 50}, "other": {"0": 9}}})
    assert without_gone(known, again) == {"0": {"other": {"0": 7}}}
    assert without_gone(known, batch(7, start=known, end=known)) == known
