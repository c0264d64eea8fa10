"""Whether a new table has all that the living one has, by the ends of their writers."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.rebuild.feeding import NotComparableError, Reach, missing


def of_t(source, **partitions):
    """Offsets of topic t (partitions p0, p1 ...)."""
    return {source: {"t": {name[1:]: position for name, position in partitions.items()}}}


def end(source="0", ids=None, **partitions):
    """The end of a writer that reads topic t from its beginning."""
    return Reach(of_t(source, **partitions), ids or {}, {})


def between(start, source="0", **partitions):
    """A writer that began at ``start`` (None where that is not known), and its end."""
    return Reach(of_t(source, **partitions), {}, None if start is None else of_t(source, **start))


AT = {"reservoirId": "x", "reservoirVersion": 3, "index": 1}
DELTA = Reach({"0": AT}, {}, {"0": {**AT, "reservoirVersion": 0}})


@pytest.mark.parametrize(
    ("living", "new", "says"),
    [
        ([end(p0=10)], [end(p0=10)], []),
        ([end(p0=10)], [end(p0=11)], []),
        # The source may have another number in a query that was written again.
        ([end(p0=10)], [end("1", p0=10)], []),
        ([end(p0=10)], [end(p0=10, p1=3)], []),
        ([end(p0=10)], [end(p0=9)], ["t-0 is stored up to 10, but in the new table up to 9"]),
        ([end(p0=10, p1=3)], [end(p0=10)], ["t-1 is stored up to 3, but in the new table up to nothing"]),
        # Several writers: each row that any of the old ones has; of the new ones, the last one counts.
        ([end(p0=10), end(p1=4)], [end(p0=10), end(p1=4)], []),
        ([end(p0=10), end(p0=12)], [end(p0=11)], ["t-0 is stored up to 12, but in the new table up to 11"]),
        ([end(p0=10)], [end(p0=10), end(p0=7)], ["t-0 is stored up to 10, but in the new table up to 7"]),
        ([end(p0=10, ids={"t": "one"})], [end(p0=10)], []),
        ([DELTA], [DELTA], []),
        # The start counts too: the new one began where the old one has, or before, or at the beginning.
        ([between({"p0": 5}, p0=10)], [between({"p0": 5}, p0=10)], []),
        ([between({"p0": 5}, p0=10)], [between({"p0": 4}, "1", p0=10)], []),
        ([between(None, p0=10)], [between({"p0": 0}, p0=10)], []),
        ([between({"p0": 5}, p0=10, p1=3)], [between({"p0": 5}, p0=10, p1=3)], []),
        ([between({"p0": 5}, p0=10), between({"p0": 7}, p0=12)], [between({"p0": 5}, p0=12)], []),
        # Of a partition that only the new table has, nothing can be missing.
        ([between({"p0": 5}, p0=10)], [between({"p0": 5, "p1": 9}, p0=10, p1=12)], []),
        (
            [between({"p0": 0}, p0=10)],
            [between({"p0": 9}, p0=9)],
            ["t-0 is stored up to 10, but in the new table up to 9"],
        ),
    ],
)
def test_ends_that_say_which_rows_are_meant(living, new, says):
    """Kafka's are compared by partition, others only if they are the same."""
    assert missing(living, new) == says


FILES = Reach({"0": {"logOffset": 3}}, {})


@pytest.mark.parametrize(
    ("living", "new", "why"),
    [
        ([], [end(p0=1)], "no query feeds the living table"),
        ([end(p0=1)], [], "no query feeds the new table"),
        ([FILES], [FILES], "do not tell which rows"),
        ([Reach(None, {})], [end(p0=1)], "do not tell which rows"),
        ([end(p0=1), FILES], [end(p0=1), FILES], "do not tell which rows"),
        ([end(p0=1, ids={"t": "one"})], [end(p0=1, ids={"t": "other"})], "deleted and created again between them: t"),
        (
            [between({"p0": 0}, p0=50)],
            [between({"p0": 40}, p0=50)],
            "began later: t-0 is stored from 0 on, but in the new table only from 40 on",
        ),
        ([between(None, p0=50)], [between({"p0": 40}, p0=50)], "t-0 is stored perhaps from 0 on, .* from 40 on"),
        ([between({"p0": 0}, p0=50)], [between(None, p0=50)], "no record any more of where"),
        ([end(p0=50)], [end(p0=50), between(None, p0=50)], "no record any more of where"),
        ([end(p0=50)], [between({"p0": 0}, p0=50), between({"p0": 9}, p0=50)], "from 9 on"),
        # A partition that came while the old query ran was read from its beginning.
        ([between({"p0": 5}, p0=50, p1=4)], [between({"p0": 5, "p1": 3}, p0=50, p1=4)], "t-1 is stored from 0 on"),
        ([Reach(DELTA.offsets, {})], [Reach(DELTA.offsets, {})], "began at the same place"),
    ],
)
def test_ends_that_prove_nothing(living, new, why):
    """It is said why, and nothing is guessed."""
    with pytest.raises(NotComparableError, match=why):
        missing(living, new)
