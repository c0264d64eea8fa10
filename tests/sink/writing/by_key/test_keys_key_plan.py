"""Columns that cannot be keys are refused before a row is written, and before one is computed."""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql import types as t
from support.typed_rows import commit_typed, struct_of
from support.with_rooms import look_once

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination

WINDOW = struct_of({"start": t.TimestampType(), "end": t.TimestampType()})
NESTED = {
    "a window": WINDOW,
    "a map": t.MapType(t.StringType(), t.LongType()),
    "structs": t.ArrayType(struct_of({"n": t.LongType()})),
}


def columns_with(kind):
    """Columns of which the first is the key."""
    return {"k": kind, "n": t.LongType()}


def looked(url, to, columns):
    """The first look of a query of its own."""
    look_once(object(), url, to, encoded_columns(struct_of(columns)))


def refused(url, to, columns):
    """What the first look says, and the commit says the same."""
    with pytest.raises(TargetError) as early:
        looked(url, to, columns)
    with pytest.raises(TargetError) as late:
        commit_typed(url, 0, to, columns, [])
    assert early.value.code == late.value.code == "NESTED_KEY"
    assert str(early.value) == str(late.value)
    return str(early.value)


class TestNestedKeys:
    def test_no_table_is_made_with_such_a_primary_key(self, admin, url):
        """The columns to make of a window are named, as they are written in Spark."""
        for kind, mode in itertools.product(NESTED, ("upsert", "append")):
            to = destination("counts", mode, ("k",), create_table=True)
            said = refused(url, to, columns_with(NESTED[kind]))
            assert ('col("k.start").alias("k_start"), col("k.end").alias("k_end")' in said) is (kind == "a window")
            assert admin.execute("SELECT to_regclass('counts')").fetchone() == (None,)

    @pytest.mark.parametrize("type_name", ["jsonb", "text"])
    def test_nor_is_a_table_written_that_has_one(self, type_name, admin, url):
        """By the primary key, or by a column that the user names."""
        admin.execute(f"CREATE TABLE counts (k {type_name} PRIMARY KEY, n bigint)".encode())
        for kind in NESTED.values():
            for keys in ((), ("k",)):
                refused(url, destination("counts", "upsert", keys), columns_with(kind))
            refused(url, destination("counts", "apply", ("k",), "n", delete_when="n = 0"), columns_with(kind))

    def test_arrays_of_plain_values_can_be_keys(self, admin, url):
        """Postgres compares their elements as it compares columns."""
        admin.execute("CREATE TABLE lists (k bigint[] PRIMARY KEY, n bigint)")
        for n in (1, 2):
            commit_typed(
                url, n - 1, destination("lists", "upsert", ()), columns_with(t.ArrayType(t.LongType())), [([1, 2], n)]
            )
        assert admin.execute("SELECT k, n FROM lists").fetchall() == [([1, 2], 2)]
