"""
A letter of a stream into several tables is replayed into its own.

Covers: pgonce.dead_letters.replay.
"""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.routed_rows import commit, routes
from support.typed_rows import typed_rows

from pgonce.dead_letters.chosen_letters import chosen_letters
from pgonce.dead_letters.replay import replay_letters

PLAIN = {"kind": t.StringType(), "id": t.LongType(), "name": t.StringType(), "seq": t.LongType()}
CHANGES = {**PLAIN, "o_gone": t.BooleanType(), "c_gone": t.BooleanType()}
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(3), seq bigint);
CREATE TABLE clicks (id bigint PRIMARY KEY, name varchar(3), seq bigint)
"""
BY_KEY = {"mode": "apply", "keys": ("id",), "order_by": "seq", "only_newer": True}


@pytest.fixture
def replayed(url, admin):
    """Shortens the names in all letters, and replays these."""

    def replay():
        admin.execute("UPDATE pgonce.dead_letters SET row_data = jsonb_set(row_data, '{name}', '\"ok\"')")
        return replay_letters(chosen_letters(url, "q1"), url)

    return replay


def in_table(admin, table):
    """The ids and names."""
    return admin.execute(f"SELECT id, name FROM {table} ORDER BY id".encode()).fetchall()


def columns_of(admin, table="clicks"):
    """The table's columns."""
    return [column.name for column in admin.execute(f"SELECT * FROM {table}".encode()).description]


def test_the_column_that_chooses_is_left_out(url, admin, replayed):
    """A table without ``columns`` of its own does not have it, and its replay does not ask for it."""
    admin.execute(TABLES)
    rows = typed_rows(PLAIN, [("orders", 1, "abc", 1), ("orders", 2, "long", 2), ("clicks", 3, "long", 3)])
    listed = {"orders": {"columns": ["id", "name", "seq"]}, "clicks": {}}
    commit(url, make_planned_batch(0), routes(listed, dead_letters=True), rows)
    replayed()
    assert (in_table(admin, "orders"), in_table(admin, "clicks")) == ([(1, "abc"), (2, "ok")], [(3, "ok")])


def test_what_says_that_rows_of_other_tables_delete_is_left_out(url, admin, replayed):
    """Each table has a column of its own for that among the rows, and none of them is one of a table's."""
    admin.execute(TABLES)
    where = routes(
        {"orders": {"deleteWhen": "o_gone"}, "clicks": {"deleteWhen": "c_gone"}}, dead_letters=True, **BY_KEY
    )
    given = [("orders", 1, "abc", 1, False, None), ("orders", 2, "long", 2, False, None)]
    rows = typed_rows(CHANGES, [*given, ("clicks", 3, "long", 3, None, False)])
    commit(url, make_planned_batch(0), where, rows)
    replayed()
    assert (in_table(admin, "orders"), in_table(admin, "clicks")) == ([(1, "abc"), (2, "ok")], [(3, "ok")])


def test_a_replay_adds_no_column_that_is_not_of_the_row(url, admin, replayed):
    """With addColumns, too, the table stays as the batch has left it."""
    admin.execute(TABLES)
    admin.execute(b"ALTER TABLE clicks ADD CHECK (name <> 'bad')")
    rows = typed_rows(PLAIN, [("clicks", 1, "abc", 1), ("clicks", 2, "bad", 2)])
    where = routes({"clicks": {}}, dead_letters=True, schema_evolution="addColumns")
    commit(url, make_planned_batch(0), where, rows)
    replayed()
    assert in_table(admin, "clicks") == [(1, "abc"), (2, "ok")]
    assert columns_of(admin) == ["id", "name", "seq"]


@pytest.mark.parametrize(("child", "parent"), [("clicks", "orders"), ("orders", "clicks")])
def test_a_row_is_written_after_the_one_to_which_it_refers(url, admin, replayed, child, parent):
    """Whatever the tables are called, and whichever row was put aside first."""
    admin.execute(TABLES)
    admin.execute(f"ALTER TABLE {child} ADD FOREIGN KEY (id) REFERENCES {parent}".encode())
    rows = typed_rows(PLAIN, [(child, 1, "long", 2), (parent, 1, "long", 1), (parent, 2, "abc", 1)])
    commit(url, make_planned_batch(0), routes({child: {}, parent: {}}, dead_letters=True), rows)
    replayed()
    assert (in_table(admin, parent), in_table(admin, child)) == ([(1, "ok"), (2, "abc")], [(1, "ok")])


def test_a_replay_creates_no_table(url, admin, replayed):
    """
    The role that replays may have more permissions than the query; so the table has to be there, as the batch left it.
    """
    admin.execute(TABLES)
    rows = typed_rows(PLAIN, [("clicks", 1, "abc", 1), ("clicks", 2, "long", 2)])
    commit(url, make_planned_batch(0), routes({"clicks": {"create_table": True}}, dead_letters=True), rows)
    admin.execute(b"DROP TABLE clicks")
    (group,) = replayed()
    assert ["TARGET_MISSING" in one.why for one in group.kept] == [True]
    assert admin.execute("SELECT to_regclass('clicks')").fetchone() == (None,)


def test_a_column_that_was_of_the_row_is_not_left_out(url, admin, replayed):
    """The table has lost it since, and without it a value would be, too."""
    admin.execute(TABLES)
    commit(
        url,
        make_planned_batch(0),
        routes({"clicks": {}}, dead_letters=True),
        typed_rows(PLAIN, [("clicks", 1, "abc", 1), ("clicks", 2, "long", 2)]),
    )
    admin.execute(b"ALTER TABLE clicks DROP COLUMN seq")
    (group,) = replayed()
    (kept,) = group.kept
    assert ("COLUMN_UNKNOWN" in kept.why, "'seq'" in kept.why) == (True, True)
    assert in_table(admin, "clicks") == [(1, "abc")]
