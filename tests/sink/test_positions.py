"""Positions of rows must lie in the range of their batch, and rows that are stored already are dropped."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.batches import make_batch

from pgonce.offsets_store.offsets import Span
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.errors import EncodingError
from pgonce.sink.positions import EncodedRows, encoded_rows, not_stored, reach, refuse_outside, span_of


def batch(end, start=None):
    """A batch of a query over topic t, whose start may be unknown: offsets by partition."""
    return make_batch(7, start=start and {"0": {"t": start}}, end={"0": {"t": end}})


def rows(partition, first, last, topic="t"):
    """Rows from these records of a partition."""
    return Span({"0": {topic: {partition: first}}}, {"0": {topic: {partition: last + 1}}})


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 10, 19)),
        ({"start": {"0": 10}, "end": {"0": 20, "1": 5}}, rows("1", 0, 4)),
        ({"end": {"0": 20}}, rows("0", 0, 19)),
        ({"start": {"0": 10}, "end": {"0": 20}}, Span({}, {})),
    ],
    ids=["whole range", "new partition", "unknown start", "no rows"],
)
def test_rows_of_the_batch_pass(known, found):
    """Rows from within the range, as far as it is known, are the batch's."""
    refuse_outside(found, batch(**known))


@pytest.mark.parametrize(
    ("known", "found", "says"),
    [
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 9, 19), r"records 9 to 19 .* 10 .* 20\b"),
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 10, 20), r"records 10 to 20 .* 20\b"),
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("2", 0, 0), r"partition 2 of topic 't'.* before 0\b"),
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 10, 12, topic="u"), "topic 'u'"),
    ],
    ids=["before", "past the end", "other partition", "other topic"],
)
def test_rows_from_elsewhere_are_refused(known, found, says):
    """Rows that say that they come from a record outside the range are refused, with the range."""
    with pytest.raises(EncodingError, match=f"POSITION_COLUMNS.*{says}"):
        refuse_outside(found, batch(**known))


STORED = {"0": {"orders": {"0": 5, "7": 100}, "refunds": {"0": 3}}, "1": {"others": {"0": 50}}}


def positions(*of):
    """Rows of these topics, partitions and offsets, as tasks note them."""
    topics, partitions, offsets = zip(*of, strict=True)
    arrays = [pa.array(topics).dictionary_encode(), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, names=["topic", "partition", "offset"])


def test_each_row_is_compared_with_the_end_of_its_own_partition():
    """A partition, or a topic, of which nothing is stored keeps all its rows."""
    kept = {
        ("orders", 0, 4): False,
        ("orders", 0, 5): True,
        ("orders", 7, 99): False,
        ("orders", 7, 100): True,
        ("orders", 1, 0): True,
        ("refunds", 0, 2): False,
        ("refunds", 0, 4): True,
        ("refunds", 7, 0): True,
        ("others", 0, 49): False,
        ("unheard of", 0, 0): True,
    }
    assert not_stored(positions(*kept), STORED).to_pylist() == list(kept.values())
    assert not_stored(positions(*kept), {}).to_pylist() == [True] * len(kept)


def test_rows_reach_as_far_as_all_their_parts():
    """By topic and partition, from the least position to one past the greatest."""
    found = reach([positions(("t", 0, 7), ("t", 1, 3), ("t", 0, 5)), positions(("u", 0, 1), ("t", 0, 6))])
    assert found == {"t": {"0": (5, 8), "1": (3, 4)}, "u": {"0": (1, 2)}}
    assert span_of("0", found) == Span(
        {"0": {"t": {"0": 5, "1": 3}, "u": {"0": 1}}}, {"0": {"t": {"0": 8, "1": 4}, "u": {"0": 2}}}
    )
    assert span_of("0", reach([])) == Span({}, {})


STRUCT = t.StructType([t.StructField("name", t.StringType()), t.StructField("number", t.LongType())])


def sent(*of):
    """Rows of two columns, one of them null now and then, from these places; as they arrive from a line."""
    names = [None if offset % 3 == 0 else f"{topic} {partition} {offset}" for topic, partition, offset in of]
    numbers = [offset for _, _, offset in of]
    batch = pa.record_batch({"name": pa.array(names, pa.string()), "number": pa.array(numbers, pa.int64())})
    places = positions(*of) if of else positions(("t", 0, 0)).slice(1)
    rows = encoded_rows(CopyEncoder(STRUCT).encode(batch), len(of), places)
    return EncodedRows(bytearray(rows.body), rows.count, bytearray(rows.positions))


OLD = [("orders", 0, 3), ("orders", 0, 4), ("refunds", 0, 2)]
NEW = [("orders", 0, 5), ("orders", 7, 100), ("others", 0, 60)]


@pytest.mark.parametrize("places", [[*OLD, *NEW], [*NEW, *OLD], [*NEW[:1], *OLD, *NEW[1:]], OLD, NEW, []])
def test_of_encoded_rows_exactly_those_that_are_not_stored_are_left(places):
    """Their body is the one that they would have had alone, and their number is right."""
    left = [place for place in places if not_stored(positions(place), STORED).to_pylist() == [True]]
    found = sent(*places).since(STORED)
    assert (bytes(found.body), found.count) == (bytes(sent(*left).body), len(left))
