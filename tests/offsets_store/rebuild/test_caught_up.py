"""Whether a new table has all that the living one has, by the ends of their writers."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.rebuild.caught_up import End, NotComparableError, missing


def end(source="0", ids=None, **partitions):
    """The end of a writer that reads topic t (partitions p0, p1 ...)."""
    return End({source: {"t": {name[1:]: position for name, position in partitions.items()}}}, ids or {})


@pytest.mark.parametrize(
    ("living", "new", "says"),
    [
        ([end(p0=10)], [end(p0=10)], []),
        ([end(p0=10)], [end(p0=11)], []),
        # The source may have another number in a query that was written again.
        ([end(p0=10)], [end("1", p0=10)], []),
        ([end(p0=10)], [end(p0=10, p1=3)], []),
        ([end(p0=10)], [end(p0=9)], ["t-0 is stored to 10, and in the new table to 9"]),
        ([end(p0=10, p1=3)], [end(p0=10)], ["t-1 is stored to 3, and in the new table to nowhere"]),
        # Several writers: each row that any of the old ones has; of the new ones, the last one counts.
        ([end(p0=10), end(p1=4)], [end(p0=10), end(p1=4)], []),
        ([end(p0=10), end(p0=12)], [end(p0=11)], ["t-0 is stored to 12, and in the new table to 11"]),
        ([end(p0=10)], [end(p0=10), end(p0=7)], ["t-0 is stored to 10, and in the new table to 7"]),
        ([end(p0=10, ids={"t": "one"})], [end(p0=10)], []),
        ([End({"0": {"reservoirId": "x", "reservoirVersion": 3, "index": 1}}, {})] * 1,) * 2 + ([],),
    ],
)
def test_ends_that_say_which_rows_are_meant(living, new, says):
    """Kafka's are compared by partition, others only if they are the same."""
    assert missing(living, new) == says


FILES = End({"0": {"logOffset": 3}}, {})


@pytest.mark.parametrize(
    ("living", "new", "why"),
    [
        ([], [end(p0=1)], "no query feeds the living table"),
        ([end(p0=1)], [], "no query feeds the new table"),
        ([FILES], [FILES], "do not say which rows"),
        ([End(None, {})], [end(p0=1)], "do not say which rows"),
        ([end(p0=1), FILES], [end(p0=1), FILES], "do not say which rows"),
        ([end(p0=1, ids={"t": "one"})], [end(p0=1, ids={"t": "other"})], "different topics of the name t"),
    ],
)
def test_ends_that_prove_nothing(living, new, why):
    """It is said why, and nothing is guessed."""
    with pytest.raises(NotComparableError, match=why):
        missing(living, new)
