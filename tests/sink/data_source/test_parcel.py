"""Commit messages: how much may travel in them, and what is refused of them."""

from __future__ import annotations

import pickle

import pytest

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.data_source.parcel import ALWAYS_INLINE_BYTES, Parcel, inline_cap, open_parcels
from pgonce.sink.data_source.workers import LOADED_VERSION
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.positions import EncodedRows

ORIGIN = Origin("q1", "r1", 7, OffsetLogEntry(7, "abc"))


def parcel(**changes):
    """A parcel of one row."""
    return Parcel(**{"origin": ORIGIN, "partition_id": 0, "rows": 1, **changes})


@pytest.mark.parametrize("partitions", [1, 8, 200, 100_000])
def test_all_inline_rows_together_are_bounded(partitions):
    """Their messages stay below 13.2 times inlineBytes, and 4 kB for each task."""
    assert sum(inline_cap(1_000_000, n) for n in range(partitions)) <= 13_200_000 + partitions * 4096


def test_the_first_partitions_may_send_all_of_inline_bytes():
    """Few partitions need no thought: each may fill what the option says."""
    assert {inline_cap(1_000_000, n) for n in range(8)} == {1_000_000}
    assert inline_cap(1_000_000, 8) == 250_000


def test_a_few_rows_travel_inline_whatever_their_partition_is():
    """Thousands of small tasks need no connection; inlineBytes=0 still stages every row."""
    assert inline_cap(1_000_000, 4000) == ALWAYS_INLINE_BYTES == 4096
    assert inline_cap(1000, 4000) == 1000
    assert inline_cap(0, 4000) == inline_cap(0, 0) == 0


@pytest.mark.parametrize(
    ("where", "ways"),
    [
        ({"inline": (EncodedRows(b"row", 1),)}, "inline"),
        ({"staged": ((8, 2),)}, "staged"),
        ({"received": (1, 3)}, "received"),
        ({"received": (1, 3), "staged": ((8, 2),)}, "received+staged"),
    ],
)
def test_a_parcel_says_how_its_rows_travel(where, ways):
    """Also where a receiver has kept the first rows and not the others; its text in a log shows no row."""
    sent = parcel(**where)
    assert pickle.loads(pickle.dumps(sent)) == sent
    assert sent.ways == tuple(ways.split("+"))
    assert f", {ways})" in repr(sent)
    assert "row" not in repr(sent.inline)


@pytest.mark.parametrize("messages", [[], [None], [parcel(), None]])
def test_a_missing_message_means_that_rows_were_not_delivered(messages):
    """Spark drops the rows of a continuous query and commits all the same: refused."""
    with pytest.raises(PgonceError, match="NO_ROWS_DELIVERED"):
        open_parcels(messages, 7)


@pytest.mark.parametrize(
    ("others", "batch_id"),
    [([Origin("q2", "r1", 7, None)], 7), ([Origin("q1", "r1", 8, OffsetLogEntry(8, "abc"))], 7), ([], 8)],
)
def test_parcels_of_different_batches_are_refused(others, batch_id):
    """Messages that do not agree on what they belong to are not committed, nor those of another batch than Spark's."""
    with pytest.raises(PgonceError, match="NOT_CALLED_BY_SPARK"):
        open_parcels([parcel(), *(parcel(origin=other) for other in others)], batch_id)


@pytest.mark.parametrize("made_by", ["0.0.9", None])
def test_a_parcel_that_another_version_made_is_refused(made_by):
    """Its rows may be encoded otherwise; one that does not say which version made it is older than this rule."""
    other = Parcel(ORIGIN, 1, 1)
    vars(other).pop("made_by") if made_by is None else vars(other).update(made_by=made_by)
    arrived = pickle.loads(pickle.dumps(other))
    with pytest.raises(PgonceError) as refused:
        open_parcels([parcel(), arrived], 7)
    assert refused.value.code == "NOT_ON_EXECUTORS"
    assert (made_by or "an older version") in refused.value.what
    assert LOADED_VERSION in refused.value.what
