"""Commit messages: how much may travel in them, and what is refused of them."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.data_source.parcel import ALWAYS_INLINE_BYTES, Parcel, RowSum, content_hash, inline_cap, open_parcels
from pgonce.sink.data_source.workers import LOADED_VERSION
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
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
    with pytest.raises(PgonceError, match=r"\[NOT_ON_EXECUTORS\]") as refused:
        open_parcels([parcel(), arrived], 7)
    assert (made_by or "an older version") in refused.value.what
    assert LOADED_VERSION in refused.value.what


STRUCT = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])
ROWS = st.lists(st.tuples(st.none() | st.integers(-3, 3), st.none() | st.text("ab", max_size=2)), max_size=8)


def arrow(rows):
    """The rows as Spark sends them."""
    ids, names = ([row[n] for row in rows] for n in (0, 1))
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(names, pa.string())], names=["id", "name"])


def hash_of(*partitions, struct_type=STRUCT):
    """The hash of rows in partitions."""
    sums = []
    for rows in partitions:
        row_sum = RowSum()
        row_sum.add(CopyEncoder(STRUCT).encode(arrow(rows)))
        sums.append(row_sum.value)
    return content_hash(encoded_columns(struct_type), sum(map(len, partitions)), sums)


@settings(deadline=None)
@given(ROWS, st.randoms(), st.integers(0, 8))
def test_order_and_partitions_do_not_count(rows, random, cut):
    """The same rows in any order, in one partition or in two."""
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert hash_of(rows) == hash_of(shuffled[:cut], shuffled[cut:])


@settings(deadline=None)
@given(ROWS, ROWS)
def test_other_rows_have_another_hash(one, other):
    """A row more or less counts, also if it is there twice, and null is no value."""
    assume(sorted(map(repr, one)) != sorted(map(repr, other)))
    assert hash_of(one) != hash_of(other)


def test_other_columns_have_another_hash():
    """The same values under another name are other rows."""
    renamed = t.StructType([STRUCT[0], t.StructField("title", t.StringType())])
    assert hash_of([(1, "a")]) != hash_of([(1, "a")], struct_type=renamed)


def test_a_hash_stays_what_it_is():
    """Hashes are kept in the ledger: another way to make them needs another version in front."""
    expected = "1:1ec832d57adb7966840ea157d66e1ffe4919dbcbd90cbedce13471dc4379eb9f"
    assert hash_of([(1, "a"), (None, None)]) == expected
