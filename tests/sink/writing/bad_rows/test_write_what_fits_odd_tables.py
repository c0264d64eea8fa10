"""
Good rows are in the table and bad rows are put aside, whatever the table has that makes it hard to tell them apart.

Covers: sink.writing.bad_rows.in_turn, sink.writing.bad_rows.value_probe.
"""

from __future__ import annotations

import pytest
from psycopg import sql
from pyspark.sql import types as t
from support.bad_rows import COLUMNS, before_insert, committed, letters, stored

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import grants

ROWS = [(1, "a", 1), (2, "long", 1), (3, "b", 50)]
TOO_LONG = [(2, "name", "22001")]
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3), amount bigint{})"


def table(admin, more=""):
    """The table, with ``more`` columns and constraints."""
    admin.execute(TABLE.format(f", {more}" if more else "").encode())


KNOWN = """
CREATE DOMAIN given AS text NOT NULL; CREATE FUNCTION known(bigint) RETURNS boolean LANGUAGE plpgsql
AS 'BEGIN RETURN $1 < 10 OR EXISTS (SELECT FROM public.events WHERE id < $1); END'
"""
# What only the table itself can say of a row.
OWN = {
    "default in a CHECK": "status text DEFAULT 'new', CHECK (amount < 10 OR status IS NOT NULL)",
    "default of a domain": "status given DEFAULT 'new'",
    "generated of a default": (
        "status text DEFAULT 'new', shown text GENERATED ALWAYS AS (status || 'x') STORED NOT NULL, "
        "CHECK (amount < 10 OR shown IS NOT NULL)"
    ),
    "identity and sequence": "number bigint GENERATED ALWAYS AS IDENTITY, place serial",
    "where the row is": "CHECK (amount < 10 OR tableoid::regclass::text = 'events')",
    "its other rows": "CHECK (known(amount))",
}


@pytest.mark.parametrize("which", OWN)
def test_what_only_the_table_knows_makes_no_row_bad(which, url, admin):
    """Postgres fills in what the rows do not bring; and values are tried in another table, constraints are not."""
    admin.execute(KNOWN)
    table(admin, OWN[which])
    committed(url, ROWS)
    assert stored(admin) == [1, 3]
    assert letters(admin) == TOO_LONG


def test_a_column_that_a_soft_delete_sets_makes_no_row_bad(url, admin):
    """The rows do not bring it."""
    table(admin, "dead boolean, CHECK (amount < 10 OR dead IS NOT NULL)")
    how = {"keys": ("id",), "delete_when": "gone", "deletes": "soft:dead"}
    columns = {**COLUMNS, "gone": t.BooleanType()}
    committed(url, [(*row, False) for row in ROWS], mode="apply", columns=columns, **how)
    assert stored(admin) == [1, 3]
    assert letters(admin) == TOO_LONG


def test_json_that_jsonb_cannot_hold_is_bad_by_itself(url, admin):
    """Its error is also that of a character which the database's encoding lacks, and then it is about no row."""
    admin.execute(b"CREATE TABLE events (id bigint, name jsonb, amount bigint)")
    committed(url, [(1, "{}", 1), (2, '{"x": "\\u0000"}', 1), (3, '"b"', 1)])
    assert stored(admin) == [1, 3]
    assert letters(admin) == [(2, "name", "22P05")]


def test_a_row_that_a_trigger_drops_is_no_dead_letter(url, admin):
    """It is not written, as the trigger wants it; nor does it hide a bad row among those that are staged."""
    table(admin)
    before_insert(admin, "IF new.amount = 0 THEN RETURN NULL; END IF;")
    committed(url, [*ROWS[:2], (3, "b", 0)], staged=True)
    assert stored(admin) == [1]
    assert letters(admin) == TOO_LONG


@pytest.mark.parametrize("how", [{}, {"mode": "upsert", "keys": ("id",)}])
def test_rows_that_refer_to_each_other_are_written_together(how, url, admin):
    """Neither can be written before the other; if a bad row comes between them, both are put aside with it."""
    admin.execute(b"CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3), amount bigint REFERENCES events)")
    committed(url, [(1, "a", 2), (2, "b", 1), (4, "d", None), (3, "c", 99)], **how)
    assert stored(admin) == [1, 2, 4]
    assert letters(admin) == [(3, None, "23503")]
    committed(url, [(5, "a", 6), (7, "c", 99), (6, "b", 5), (8, "d", None)], 1, **how)
    assert stored(admin) == [1, 2, 4, 8]
    assert [key for key, *_ in letters(admin)] == [3, 5, 7, 6]


def test_a_key_is_written_though_the_first_row_that_has_it_is_bad(url, admin):
    """The first one that fits is written, and the others break the key."""
    admin.execute(b"CREATE TABLE parents (id bigint PRIMARY KEY); INSERT INTO parents VALUES (1)")
    admin.execute(b"CREATE TABLE events (id bigint PRIMARY KEY, name text, amount bigint REFERENCES parents)")
    committed(url, [(1, "a", 99), (1, "b", 1), (1, "c", 1), (2, "d", 1)])
    assert admin.execute("SELECT id, name FROM events ORDER BY id").fetchall() == [(1, "b"), (2, "d")]
    aside = "SELECT row_data ->> 'name', code FROM pgonce.dead_letters ORDER BY 1"
    assert admin.execute(aside).fetchall() == [("a", "23505"), ("c", "23505")]


UUIDS = {"id": t.LongType(), "ref": t.StringType(), "gone": t.BooleanType()}


def test_a_delete_needs_no_value_but_its_key(url, admin):
    """Another value that cannot be cast is not looked at, once the rows are written in their turn."""
    admin.execute(b"CREATE TABLE events (id bigint PRIMARY KEY, ref uuid); INSERT INTO events VALUES (1), (2)")
    committed(url, [(1, "no uuid", True), (2, None, True)], mode="apply", columns=UUIDS, delete_when="gone")
    assert stored(admin) == []
    assert letters(admin) == []


def test_names_may_have_any_characters(url, admin):
    """Those of psycopg's placeholders, of formats and of quotes; and those of the search's own columns."""
    odd = '"Ev%s{}""x"'
    admin.execute(
        f'CREATE TABLE {odd} ("Id" bigint PRIMARY KEY, "na%me" varchar(3), "{{amount}}" int, "qu""ote" int,'
        " place int UNIQUE, number int, target int, s int)".encode()
    )
    names = ("id", "NA%ME", "{amount}", 'qu"ote', "place", "number", "target", "s")
    columns = {name: t.StringType() if name == "NA%ME" else t.LongType() for name in names}
    rows = [
        (1, "a", 1, 1, 1),
        (2, "long", 1, 1, 2),
        (3, "a", 2**40, 1, 3),
        (4, "a", 1, 2**40, 4),
        (5, "a", 1, 1, 1),
        (1, "a", 1, 1, 9),
    ]
    committed(url, [(*row, 1, 1, 1) for row in rows], columns=columns, table=odd)
    assert admin.execute(f'SELECT "Id", place FROM {odd}'.encode()).fetchall() == [(1, 1)]
    assert sorted(letters(admin)) == [
        (1, None, "23505"),
        (2, "na%me", "22001"),
        (3, "{amount}", "22003"),
        (4, 'qu"ote', "22003"),
        (5, None, "23505"),
    ]


def test_a_role_that_may_not_create_temporary_tables_is_told_why_its_batch_is_refused(url, admin, login):
    """The rows cannot be looked at without one; good batches are published."""
    table(admin)
    committed(url, [(0, "a", 1)])
    admin.execute(sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC").format(sql.Identifier(admin.info.dbname)))
    for grant in (*grants(login.user), f"GRANT INSERT, SELECT ON events TO {login.user}"):
        admin.execute(grant.encode())
    committed(login.url, [(1, "a", 1)], 1)
    with pytest.raises(PgonceError, match="VALUE_NOT_STORABLE"):
        committed(login.url, [(2, "a", 1), (3, "long", 1)], 2)
    assert stored(admin) == [0, 1]
    assert letters(admin) == []
