"""Rows that are written in their turn are named, counted and bounded as those of any other batch."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.evil_schema import make_evil
from support.fixtures.postgres import url_with
from support.typed_rows import commit_typed

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.options.destination import destination

TEXT, LONG = t.StringType(), t.LongType()
COLUMNS = {"id": TEXT, "name": TEXT, "seq": LONG, "gone": t.BooleanType()}
CHANGES = {"mode": "apply", "keys": ("id",), "order_by": "seq", "delete_when": "gone"}
KEY = "8a7e5c1e-0000-4000-8000-00000000000"
ROWS = [(f"{KEY}{n}", "too long" if n == 2 else "a", n, False) for n in range(1, 5)]


def letters(admin):
    """What is known of each letter."""
    return admin.execute("SELECT row_data ->> 'id', code, column_name FROM pgonce.dead_letters ORDER BY 1").fetchall()


@pytest.mark.parametrize("dead_letters", [False, True])
def test_the_types_of_a_table_are_those_of_the_catalogue(dead_letters, url, admin):
    """A type of the same name in the user's search_path is another one, and its code would run as this role."""
    make_evil(admin)
    admin.execute("CREATE TABLE public.events (id uuid PRIMARY KEY, name text, seq bigint, more varchar(4))")
    admin.execute(
        "CREATE FUNCTION public.same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'; "
        "CREATE TRIGGER same BEFORE UPDATE ON public.events FOR EACH ROW EXECUTE FUNCTION public.same()"
    )
    evil = url_with(url, options="-csearch_path=evil,\\ pg_catalog")
    where = destination("public.events", **CHANGES, dead_letters=dead_letters)
    columns = {**COLUMNS, "more": TEXT}
    commit_typed(evil, 0, where, columns, [(f"{KEY}1", "a", 1, False, "a")])
    commit_typed(evil, 1, where, columns, [(f"{KEY}1", "a", 1, False, "a"), (f"{KEY}3", "b", 2, False, "b")])
    if dead_letters:
        commit_typed(evil, 2, where, columns, [(*row[:3], False, row[1]) for row in ROWS])
        assert letters(admin) == [(f"{KEY}2", "22001", "more")]


@pytest.mark.parametrize("mode", ["upsert", "apply"])
@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_chain_of_moved_values_takes_an_id_a_row(dead_letters, mode, url, admin):
    """Each row takes the value of the next one, so that all but the last wait for another."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, place bigint UNIQUE, seq bigint)")
    admin.execute("INSERT INTO events SELECT i, i, 0 FROM generate_series(1, 200) AS i")
    columns = {"id": LONG, "place": LONG, "seq": LONG, "gone": t.BooleanType()}
    how = dict(CHANGES) if mode == "apply" else {"mode": mode, "keys": ("id",), "order_by": "seq"}
    width = 4 if mode == "apply" else 3
    before = admin.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0]
    rows = [(i, i + 1, i, False)[:width] for i in range(1, 201)]
    where = destination("events", **how, dead_letters=dead_letters)
    commit_typed(url, 0, where, dict([*columns.items()][:width]), rows)
    assert admin.execute("SELECT count(*) FROM events WHERE place <> id + 1").fetchone() == (0,)
    assert admin.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0] - before < 3 * len(rows)


@pytest.mark.parametrize("bad", [(2, "too long", 5, 2), (2, None, 5, 2), (2, "no", 5, 2)])
def test_a_row_is_named_though_another_one_has_sent_the_batch_into_turns(bad, url, admin):
    """The error is as short as that of a batch in which nothing else was wrong."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name varchar(4) NOT NULL CHECK (name <> 'no'), "
        "place bigint UNIQUE, seq bigint); INSERT INTO events VALUES (9, 'a', 900, 0)"
    )
    columns = {"id": LONG, "name": TEXT, "place": LONG, "seq": LONG}
    with pytest.raises(TargetError) as raised:
        commit_typed(url, 0, destination("events", "upsert", ("id",), "seq"), columns, [(1, "a", 900, 1), bad])
    assert "the row with id = 2" in raised.value.what
    assert "INSERT INTO" not in raised.value.what


@pytest.mark.parametrize("bad", [0, 1])
def test_a_key_that_cannot_be_read_is_named_though_another_one_cannot_either(bad, url, admin):
    """The first of them ends the look."""
    admin.execute("CREATE TABLE events (id uuid PRIMARY KEY, name text, seq bigint)")
    rows = [(f"{KEY}1", "a", 1, False), ("no uuid", "b", 2, False), ("no uuid either", "c", 3, False)]
    with pytest.raises(TargetError, match="the row with id = no uuid"):
        commit_typed(url, 0, destination("events", **CHANGES), COLUMNS, rows[bad:])


@pytest.mark.parametrize("name", ["bad", "due_deletes", "due_writes", "done", "code", "n"])
@pytest.mark.parametrize("kind", ["bigint", "varchar(4)"])
def test_a_column_may_be_called_as_a_variable_of_ours(kind, name, url, admin):
    """In the server's code a column has the name, where both have it."""
    admin.execute(f'CREATE TABLE events (id bigint PRIMARY KEY, seq bigint, short varchar(4) UNIQUE, "{name}" {kind})')
    value = 1 if kind == "bigint" else "1"
    columns = {
        "id": LONG, "seq": LONG, "short": TEXT, name: LONG if kind == "bigint" else TEXT, "gone": t.BooleanType(),
    }  # fmt: skip
    where = destination("events", **CHANGES, dead_letters=True, only_newer=True)
    commit_typed(url, 0, where, columns, [(60, 5, None, value, True), (61, 5, "x", value, False)])
    rows = [(i, 20 + i, "too long" if i == 3 else f"{i}", value, False) for i in range(1, 8)]
    commit_typed(url, 1, where, columns, [*rows, (8, 28, "4", value, False), (50, 29, None, None, True)])
    assert letters(admin) == [("3", "22001", "short"), ("8", "23505", None)]


def test_a_delete_that_is_left_out_is_no_letter(url, admin):
    """Also if its key could not be read, and whether or not another row is bad."""
    admin.execute("CREATE TABLE events (id uuid PRIMARY KEY, name varchar(4), seq bigint)")
    where = destination("events", **CHANGES, deletes="ignore", dead_letters=True)
    commit_typed(url, 0, where, COLUMNS, [*ROWS, ("no uuid", None, 9, True)])
    assert letters(admin) == [(f"{KEY}2", "22001", "name")]
    assert admin.execute("SELECT counts ->> 'ignored' FROM pgonce.batches").fetchone() == ("1",)
