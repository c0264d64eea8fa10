"""
A table that is created has the columns of the rows, and the keys as the rows' columns are written.

Covers: sink.writing.table.new_table.
"""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.routed_rows import commit, routed, routes
from support.typed_rows import commit_typed

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.options.destination import destination

COLUMNS = {"id": t.LongType(), "name": t.StringType()}
PRIMARY_KEY = (
    "SELECT a.attname::text FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid "
    "AND a.attnum = ANY (i.indkey) WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY 1"
)


def test_keys_may_differ_in_case_from_the_columns(admin, url):
    """As they may where the table is there already."""
    to = destination("events", "upsert", ["ID"], create_table=True)
    commit_typed(url, 0, to, COLUMNS, [(1, "a")])
    commit_typed(url, 1, to, COLUMNS, [(1, "b")])
    assert admin.execute(PRIMARY_KEY, ["events"]).fetchall() == [("id",)]
    assert admin.execute("SELECT id, name FROM events").fetchall() == [(1, "b")]


def test_a_key_that_the_rows_do_not_have(admin, url):
    """It is refused by its name, and no table is made."""
    with pytest.raises(TargetError, match=r"KEY_UNKNOWN.*'number'.* id, name"):
        commit_typed(url, 0, destination("events", "upsert", ["number"], create_table=True), COLUMNS, [(1, "a")])
    assert admin.execute("SELECT to_regclass('events')").fetchone() == (None,)


def test_the_column_that_chooses_the_table_is_created_if_it_is_a_key(admin, url):
    """Otherwise it says only where a row goes."""
    where = routes(
        {"fresh": {"mode": "upsert", "keys": ["kind", "id"]}, "plain": {"mode": "upsert", "keys": ["id"]}},
        create_table=True,
    )
    commit(url, make_planned_batch(0), where, routed(("fresh", 1, "a"), ("plain", 2, "b")))
    assert admin.execute(PRIMARY_KEY, ["fresh"]).fetchall() == [("id",), ("kind",)]
    assert admin.execute("SELECT kind, id, name FROM fresh").fetchall() == [("fresh", 1, "a")]
    assert admin.execute("SELECT * FROM plain").fetchall() == [(2, "b")]


def test_an_order_that_is_about_the_change_is_created_if_it_is_compared(admin, url):
    """With onlyNewer the stored order counts; without, such a column says only which change of a batch is the last."""
    columns = {**COLUMNS, "_commit_version": t.LongType(), "pgonce_deleted": t.BooleanType()}
    for table, only_newer in (("newer", True), ("last", False)):
        how = {"change_feed": "delta", "only_newer": only_newer, "create_table": True}
        to = destination(table, "apply", ["id"], "_commit_version", **how)
        commit_typed(url, 0, to, columns, [(1, "a", 7, False)], query=table)
    assert admin.execute("SELECT * FROM newer").fetchall() == [(1, "a", 7)]
    assert admin.execute("SELECT * FROM last").fetchall() == [(1, "a")]
