"""
Large batches of writes and deletes: one MERGE leaves what deletes and writes leave, and steps back where it might not.

Covers: sink.target.applying.merge_changes, sink.target.keys.by_index.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes

import pgonce.sink.target.applying.merge_changes
import pgonce.sink.target.keys.upsert
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.by_key import DELETED_COLUMN
from pgonce.sink.target.keys.upsert import merged

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"


@pytest.fixture
def admin(url):
    """A connection that may do anything, to a database with a ledger."""
    ensure_ledger(url)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def merges(admin, monkeypatch):
    """Batches of any size may be merged; a list of how many rows each such statement changed, or None."""
    outcomes = []

    def noted(*arguments):
        outcomes.append(merged(*arguments))
        return outcomes[-1]

    monkeypatch.setattr(pgonce.sink.target.keys.upsert, "MERGED_ROWS", 0)
    monkeypatch.setattr(pgonce.sink.target.applying.merge_changes, "merged", noted)
    return outcomes


def stored(admin, columns="*"):
    """The rows of the table."""
    return admin.execute(f"SELECT {columns} FROM events ORDER BY id".encode()).fetchall()


def is_merged_on(admin, *rows):
    """What the list of merges then has; Postgres 14 knows no MERGE."""
    return list(rows) if admin.info.server_version >= 150000 else []


def test_one_statement_writes_and_deletes(url, admin, merges):
    """What becomes of each change is counted as it is without MERGE: a delete that finds no row, too."""
    admin.execute(TABLE)
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (3, "c", 1, WRITE))
    given = [
        (1, "A", 2, WRITE), (2, None, 2, DELETE), (4, "d", 2, WRITE), (5, None, 2, DELETE),
        # Deleted and written again, and the other way round.
        (3, None, 2, DELETE), (3, "C", 3, WRITE), (6, "f", 2, WRITE), (6, None, 3, DELETE),
    ]  # fmt: skip
    counts = apply(url, *given)
    assert counts == {"written": 3, "deleted": 1, "not_found": 2, "superseded": 2}
    assert stored(admin) == [(1, "A", 2), (3, "C", 3), (4, "d", 2)]
    assert merges == is_merged_on(admin, 4)


@pytest.mark.parametrize(
    "more",
    [
        "ALTER TABLE events ADD note text",
        "ALTER TABLE events ADD twice bigint GENERATED ALWAYS AS (seq * 2) STORED",
        "CREATE TABLE others (id bigint REFERENCES events ON DELETE CASCADE)",
        "ALTER TABLE events ADD CHECK (seq > 0)",
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        "CREATE TRIGGER look AFTER DELETE ON events FOR EACH ROW EXECUTE FUNCTION look()",
        "ALTER TABLE events ENABLE ROW LEVEL SECURITY; ALTER TABLE events FORCE ROW LEVEL SECURITY; "
        "CREATE POLICY all_rows ON events USING (true)",
    ],
    ids=["a_column_more", "a_generated_column", "referenced", "checked", "a_trigger", "policies"],
)
def test_where_somebody_could_tell(more, url, admin, login, merges):
    """If the batch does not have all of a row, or others see how it came about, deletes and writes stay apart."""
    admin.execute(f"{TABLE}; {more}; GRANT ALL ON events TO {login.user}".encode())
    where = login.url if "POLICY" in more else url
    apply(where, (1, "a", 1, WRITE), (2, "b", 1, WRITE))
    assert apply(where, (1, None, 2, DELETE), (2, "B", 2, WRITE)) == {"deleted": 1, "written": 1}
    assert stored(admin, "id, name, seq") == [(2, "B", 2)]
    assert merges == []


def test_a_row_that_is_written_again_loses_what_others_put_into_it(url, admin, merges):
    """So it does without MERGE: a column that the changes do not have keeps the two apart."""
    admin.execute(f"{TABLE}; ALTER TABLE events ADD note text")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE))
    admin.execute("UPDATE events SET note = 'by hand'")
    apply(url, (1, None, 2, DELETE), (1, "A", 3, WRITE), (2, "B", 2, WRITE))
    assert stored(admin) == [(1, "A", 3, None), (2, "B", 2, "by hand")]
    assert merges == []


@pytest.mark.parametrize("feed", ["spark", "delta"])
def test_a_version_that_deletes_and_inserts_has_replaced_the_row(feed, url, admin, merges):
    """In whatever order the two come; one statement decides it by the same rule as several."""
    admin.execute(TABLE)
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (3, "c", 1, WRITE))
    struct = changes(id=t.LongType(), name=t.StringType(), seq=t.LongType(), delete_column=DELETED_COLUMN)
    rows = [(1, "A", 2, WRITE), (1, None, 2, DELETE), (2, None, 2, DELETE), (2, "B", 2, WRITE), (3, None, 2, DELETE)]
    apply(url, *rows, struct=struct, delete_when=None, change_feed=feed)
    assert stored(admin) == [(1, "A", 2), (2, "B", 2)]
    assert merges == is_merged_on(admin, 3)


def test_a_value_that_moves_to_an_earlier_key(url, admin, merges):
    """MERGE writes it before its old row is deleted, and fails; deletes that writes follow do not."""
    admin.execute(f"{TABLE}; ALTER TABLE events ADD UNIQUE (name)")
    apply(url, (2, "a", 1, WRITE), (3, "b", 1, WRITE))
    counts = apply(url, (1, "a", 2, WRITE), (2, None, 2, DELETE), (3, "B", 2, WRITE), (3, None, 1, DELETE))
    assert counts == {"written": 2, "deleted": 1, "superseded": 1}
    assert stored(admin) == [(1, "a", 2), (3, "B", 2)]
    assert merges == is_merged_on(admin, None)


def test_small_and_large_batches_leave_the_same(url, admin, monkeypatch, merges):
    """Random changes, with and without MERGE."""
    admin.execute(f"{TABLE}; CREATE TABLE others (LIKE events INCLUDING ALL)")
    dice = random.Random(7)
    for batch in range(30):
        given = [
            (dice.randrange(12), dice.choice("abc"), batch * 20 + n, dice.choice([WRITE, WRITE, DELETE]))
            for n in range(dice.randrange(1, 20))
        ]
        monkeypatch.setattr(pgonce.sink.target.keys.upsert, "MERGED_ROWS", 0)
        at_once = apply(url, *given)
        monkeypatch.setattr(pgonce.sink.target.keys.upsert, "MERGED_ROWS", 1000)
        # One statement supersedes a delete that a write of its key follows; else it is done, and counted as such.
        assert apply(url, *given, table="others").get("written") == at_once.get("written")
        assert stored(admin) == admin.execute("SELECT * FROM others ORDER BY id").fetchall()
    assert None not in merges
    assert len(merges) > 15 or admin.info.server_version < 150000
