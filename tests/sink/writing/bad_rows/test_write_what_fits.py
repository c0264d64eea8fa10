"""
Rows that the target refuses for their own values are put aside, and all others are written.

Covers: sink.writing.bad_rows.about_a_row, sink.writing.bad_rows.in_turn, sink.writing.bad_rows.value_probe,
sink.writing.rows, sink.writing.write_table.
"""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from pyspark.sql import types as t
from support.bad_rows import COLUMNS, before_insert, committed, letters, stored, unfit_row
from support.batches import make_batch
from support.typed_rows import commit_typed, typed_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import PgonceError, TargetError
from pgonce.sink.options.destination import destination

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3) NOT NULL, amount int CHECK (amount <> 13))"
GOOD = [(n, "abc", n + 100) for n in range(1, 8)]
# Too long, out of range, null, and against the CHECK.
BAD = [(10, "abcd", 1), (11, "abc", 2**40), (12, None, 1), (13, "abc", 13)]


@pytest.mark.parametrize("staged", [False, True])
def test_rows_that_the_table_refuses_are_put_aside(staged, url, admin):
    """Whatever each of them is refused for, with its column and the SQLSTATE; the others are in the table."""
    admin.execute(TABLE.encode())
    committed(url, [BAD[0], *GOOD, *BAD[1:]], staged=staged)
    assert stored(admin) == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(letters(admin)) == [
        (10, "name", "22001"), (11, "amount", "22003"), (12, "name", "23502"), (13, None, "23514")
    ]  # fmt: skip
    assert admin.execute("SELECT rows, counts FROM pgonce.batches").fetchall() == [
        (7, {"written": 7, "dead_letters": 4})
    ]


def test_a_row_that_refers_to_another_of_the_batch_is_written_with_it(url, admin):
    """A child may come before its parent, and one whose parent is put aside is put aside, too."""
    admin.execute(b"CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3), amount bigint REFERENCES events)")
    committed(url, [(1, "a", 2), (2, "b", 3), (3, "c", None), (4, "d", 5), (5, "too long", None), (6, "f", 99)])
    assert stored(admin) == [1, 2, 3]
    assert sorted(letters(admin)) == [(4, None, "23503"), (5, "name", "22001"), (6, None, "23503")]


@pytest.mark.parametrize("mode", ["upsert", "apply"])
def test_a_bad_change_leaves_what_an_earlier_one_of_its_key_wrote(mode, url, admin):
    """A bad change leaves what an earlier one of its key has written, and one without a key is put aside."""
    admin.execute(TABLE.encode())
    columns = {**COLUMNS, "seq": t.LongType(), "gone": t.BooleanType()}
    admin.execute(b"ALTER TABLE events ADD seq bigint, ADD gone boolean")
    how = {"delete_when": "gone"} if mode == "apply" else {}
    rows = [
        (1, "a", 1, 1, False),
        (1, "long", 1, 2, False),
        (2, "b", 1, 1, False),
        (None, "c", 1, 1, False),
        (3, None, None, 1, True),
    ]
    rows = rows if mode == "apply" else rows[:4]
    committed(url, rows, mode=mode, columns=columns, order_by="seq", **how)
    assert admin.execute("SELECT id, name FROM events ORDER BY id").fetchall() == [(1, "a"), (2, "b")]
    assert sorted(letters(admin), key=str) == [(1, "name", "22001"), (None, "id", "NULL_KEYS")]
    (rows, counts), *_ = admin.execute("SELECT rows, counts FROM pgonce.batches").fetchall()
    assert sum(counts.values()) == rows + counts["dead_letters"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_bad_change_that_a_newer_one_supersedes_is_no_dead_letter(is_reversed, url, admin):
    """In whichever order they come; and each row of the batch is counted once."""
    admin.execute(b"CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3), amount bigint, seq bigint)")
    rows = [
        (1, "a", 1, 1, False),
        (1, "long", 1, 2, False),
        (1, None, None, 3, True),
        (2, "b", 1, None, False),
        (3, "c", 1, 1, False),
        (None, "d", 1, 1, False),
    ]
    how = {"keys": ("id",), "order_by": "seq", "only_newer": True, "delete_when": "gone"}
    columns = {**COLUMNS, "seq": t.LongType(), "gone": t.BooleanType()}
    committed(url, rows[::-1] if is_reversed else rows, mode="apply", columns=columns, **how)
    assert stored(admin) == [3]
    assert sorted(letters(admin), key=str) == [(2, "seq", "NULL_ORDER"), (None, "id", "NULL_KEYS")]
    number, counts = admin.execute("SELECT rows, counts FROM pgonce.batches").fetchone()
    assert sum(counts.values()) == number + counts["dead_letters"] == len(rows)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_bad_change_whose_values_a_newer_one_would_be_inserted_with_is_put_aside(is_reversed, url, admin):
    """With updateColumns: once the newer one is stored, the bad one is passed over, which is no reason to stop."""
    admin.execute(TABLE.encode())
    admin.execute(b"ALTER TABLE events ADD seq bigint")
    rows = [(1, "a", 13, 1), (1, "b", 1, 2), (2, "c", 1, 1)]
    how = {"keys": ("id",), "order_by": "seq", "only_newer": True, "update_columns": ("name",)}
    columns = {**COLUMNS, "seq": t.LongType()}
    committed(url, rows[::-1] if is_reversed else rows, mode="upsert", columns=columns, **how)
    assert admin.execute("SELECT id, name, amount FROM events ORDER BY id").fetchall() == [(1, "b", 1), (2, "c", 1)]
    assert letters(admin) == [(1, None, "23514")]


def test_a_bad_value_is_one_though_the_update_of_a_stored_row_leaves_its_column_alone(url, admin):
    """With updateColumns, also beside a value that the source could not read: Postgres looks at the whole row."""
    admin.execute(TABLE.encode())
    admin.execute(b"INSERT INTO events VALUES (1, 'abc', 1), (2, 'abc', 2)")
    how = {"keys": ("id",), "order_by": "id", "update_columns": ("amount",), "keep_where": "?"}
    committed(url, [(1, "long", 10)], mode="upsert", **how)
    committed(url, [(2, "?", 20), (3, "long", 30), (4, "abc", 40)], 1, mode="upsert", **how)
    stored_now = admin.execute("SELECT * FROM events ORDER BY id").fetchall()
    assert stored_now == [(1, "abc", 1), (2, "abc", 20), (4, "abc", 40)]
    assert letters(admin) == [(1, "name", "22001"), (3, "name", "22001")]


def test_a_key_of_a_delete_that_cannot_be_read_is_put_aside(url, admin):
    """And a delete needs no other column."""
    admin.execute(b"CREATE TABLE events (id uuid PRIMARY KEY, name text NOT NULL)")
    good = "00000000-0000-0000-0000-000000000001"
    columns = {"id": t.StringType(), "name": t.StringType(), "gone": t.BooleanType()}
    committed(url, [(good, "a", False)], mode="apply", columns=columns, delete_when="gone")
    committed(url, [("no uuid", None, True), (good, None, True)], 1, mode="apply", columns=columns, delete_when="gone")
    assert stored(admin) == []
    assert admin.execute("SELECT column_name, code FROM pgonce.dead_letters").fetchall() == [("id", "22P02")]


def test_a_value_that_a_trigger_fills_in_is_no_bad_one(url, admin):
    """A row that the table's types and constraints refuse may be accepted after all."""
    admin.execute(TABLE.encode())
    before_insert(admin, "new.name := coalesce(new.name, '?');")
    committed(url, [(1, None, 1), (2, "long", 1), (3, "c", 1)])
    assert stored(admin) == [1, 3]
    assert letters(admin) == [(2, "name", "22001")]


def test_a_row_that_only_a_bad_one_keeps_out_is_written(url, admin):
    """The first row has no parent, which is found last; the second has its name, and fits without it."""
    admin.execute(
        "CREATE TABLE parents (id bigint PRIMARY KEY); INSERT INTO parents VALUES (1); CREATE TABLE events (id bigint "
        "PRIMARY KEY, name text UNIQUE, amount bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED)"
    )
    committed(url, [(1, "x", 99), (2, "x", 1), (3, "z", 1)], mode="upsert", keys=("id",))
    assert stored(admin) == [2, 3]
    assert [key for key, *_ in letters(admin)] == [1]


def test_the_constraint_of_a_partition_is_one_of_the_target(url, admin):
    """Postgres names the partition."""
    admin.execute(
        b"CREATE TABLE events (id bigint, name text, amount bigint) PARTITION BY LIST (id);"
        b"CREATE TABLE first PARTITION OF events DEFAULT; ALTER TABLE first ADD UNIQUE (name)"
    )
    committed(url, [(1, "a", 1), (2, "a", 1), (3, "b", 1)])
    assert stored(admin) == [1, 3]
    assert letters(admin) == [(2, None, "23505")]


def test_more_bad_rows_than_are_allowed_refuse_the_batch(url, admin):
    """Nothing of it is written."""
    admin.execute(TABLE.encode())
    with pytest.raises(PgonceError, match="TOO_MANY_DEAD_LETTERS.*22001"):
        committed(url, [(n, "long", n) for n in range(4)] + [(9, "abc", 1)], max_dead_letters=3)
    assert stored(admin) == letters(admin) == []
    committed(url, [(n, "long", n) for n in range(3)] + [(9, "abc", 1)], max_dead_letters=3)
    assert stored(admin) == [9]


def test_a_batch_of_which_no_row_fits_is_refused(url, admin):
    """The cause is no single row; but one that comes alone may be bad."""
    admin.execute(TABLE.encode())
    with pytest.raises(PgonceError, match="ALL_ROWS_REFUSED"):
        committed(url, [(n, "long", n) for n in range(4)])
    committed(url, [(1, "long", 1)])
    assert letters(admin) == [(1, "name", "22001")]


# The second row, the ids of rows that could not be encoded, the options, and the error's code.
REFUSED = {
    "too many of both kinds": ("long", (3,), {"max_dead_letters": 1}, "TOO_MANY_DEAD_LETTERS"),
    "too many not encoded": ("b", (3, 4), {"max_dead_letters": 1}, "TOO_MANY_DEAD_LETTERS"),
    "too many for a table that may get columns": (
        "b", (3, 4), {"max_dead_letters": 1, "schema_evolution": "addColumns"}, "TOO_MANY_DEAD_LETTERS"
    ),
}  # fmt: skip


def test_who_swallows_the_error_commits_nothing(url, admin):
    """The transaction has failed, so that the good rows are not written without the record of the others."""
    admin.execute(b"CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3))")
    for why, (name, unfit, options, code) in REFUSED.items():
        encoded = typed_rows({"id": t.LongType(), "name": t.StringType()}, [(1, "a"), (2, name)])
        rows = replace(encoded, unfit=lambda unfit=unfit: [unfit_row(id=n) for n in unfit])
        where = destination("events", **{"dead_letters": True, **options})
        with psycopg.connect(url) as connection:
            with pytest.raises(TargetError, match=code):
                write_batch_in_tx(connection, where, rows, batch=make_batch())
            connection.commit()
        assert (why, stored(admin), letters(admin)) == (why, [], [])


@pytest.mark.parametrize("when", ["", "DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("constraint", ["UNIQUE (name)", "EXCLUDE (name WITH =)"])
@pytest.mark.parametrize("mode", ["upsert", "apply"])
def test_a_value_that_moves_beside_another_bad_row(mode, constraint, when, url, admin):
    """A row that takes it too early fits in the end, also if another is refused when constraints are checked."""
    admin.execute(
        "CREATE TABLE parents (id bigint PRIMARY KEY); CREATE TABLE events (id bigint PRIMARY KEY, name text, "
        f"parent bigint REFERENCES parents {when}, seq bigint, {constraint}); "
        "INSERT INTO events VALUES (1, 'c'), (3, 'b')".encode()
    )
    columns = {"id": t.LongType(), "name": t.StringType(), "parent": t.LongType(), "seq": t.LongType()}
    rows = [(1, "b", None, 10), (3, "a", None, 11), (4, "z", 9, 12)]
    how = {}
    if mode == "apply":
        columns, rows, how = {**columns, "gone": t.BooleanType()}, [(*row, False) for row in rows], {"only_newer": True}
        how["delete_when"] = "gone"
    commit_typed(url, 0, destination("events", mode, ["id"], "seq", dead_letters=True, **how), columns, rows)
    assert admin.execute("SELECT id, name FROM events ORDER BY id").fetchall() == [(1, "b"), (3, "a")]
    found = admin.execute("SELECT (row_data ->> 'id')::int, code FROM pgonce.dead_letters ORDER BY 1").fetchall()
    assert found == [(4, "23503")]
