"""Do the positions that rows carry lie in the range that their batch reads?"""

import pytest
from support.batches import make_batch

from pgonce.offsets_store.offsets.positions import Span
from pgonce.sink.errors import EncodingError
from pgonce.sink.positions.reach import reach_of, refuse_outside


def batch(start=None, end=None, resumes_at=None):
    """A batch of a query over topic t, as far as its range is known: offsets by partition."""
    ranges = ({"0": {"t": known}} if known is not None else None for known in (start, end, resumes_at))
    begins, ends, resumes = ranges
    return make_batch(7, start=begins, end=ends, resumes_at=resumes)


def rows(partition, first, last, topic="t"):
    """Rows from these records of a partition."""
    return Span({"0": {topic: {partition: first}}}, {"0": {topic: {partition: last + 1}}})


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 10, 19)),
        ({"start": {"0": 10}, "end": {"0": 20, "1": 5}}, rows("1", 0, 4)),
        ({"end": {"0": 20}}, rows("0", 0, 19)),
        ({"resumes_at": {"0": 10}}, rows("0", 10, 10_000)),
        ({"resumes_at": {"0": 10}}, rows("1", 0, 3)),
        ({}, rows("0", 0, 3)),
        ({"start": {"0": 10}, "end": {"0": 20}}, Span({}, {})),
    ],
    ids=["whole range", "new partition", "unknown start", "unknown end", "new partition, unknown end", "?", "no rows"],
)
def test_rows_of_the_batch_pass(known, found):
    """Rows from within the range, as far as it is known, are the batch's."""
    refuse_outside(found, batch(**known))


@pytest.mark.parametrize(
    ("known", "found", "says"),
    [
        (
            {"start": {"0": 10}, "end": {"0": 20}},
            rows("0", 9, 19),
            "records 9 to 19 .* reads from 10 and ends before 20",
        ),
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 10, 20), "records 10 to 20 .* ends before 20"),
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("2", 0, 0), "partition 2 of topic 't'.* ends before 0"),
        ({"start": {"0": 10}, "end": {"0": 20}}, rows("0", 10, 12, topic="u"), "topic 'u'"),
        ({"resumes_at": {"0": 10}}, rows("0", 9, 12), "reads from 10 on"),
        ({"start": {"0": 10}, "resumes_at": {"0": 5}, "end": {"0": 20}}, rows("0", 5, 12), "reads from 10"),
    ],
    ids=["before", "past the end", "other partition", "other topic", "before, unknown end", "before the start"],
)
def test_rows_from_elsewhere_are_refused(known, found, says):
    """Rows that say that they come from a record outside the range are refused, with the range."""
    with pytest.raises(EncodingError, match=f"POSITION_OUTSIDE.*{says}"):
        refuse_outside(found, batch(**known))


def test_single_rows_reach_as_far_as_batches_of_them():
    """Rows that were put aside say where they come from, as the others do."""
    records = [("t", 0, 7), ("t", 1, 3), ("t", 0, 5), ("u", 0, 1)]
    assert reach_of(records) == {"t": {"0": (5, 8), "1": (3, 4)}, "u": {"0": (1, 2)}}
    assert reach_of([]) == {}
