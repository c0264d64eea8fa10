"""The hash of a job's rows: the same for the same rows, however they are ordered and split."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgonce.sink.data_source.parcel import RowSum, content_hash
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns

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
