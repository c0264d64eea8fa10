"""
Bad rows are found among many, whatever refuses them, and a search that would last too long ends with an error.

Covers: sink.writing.bad_row, sink.writing.bad_rows.conflicts, sink.writing.by_key.unique_index.
"""

from __future__ import annotations

import psycopg
import pytest
from support.bad_rows import committed, letters, stored

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.sink.writing import bad_row
from pgonce.sink.writing.bad_rows import conflicts

# Enough for some tens of pages, because places are compared by page first.
ROWS, BAD = 4_000, 20
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, amount bigint)"
# What refuses every second row of those that come first. Only rows of the batch break it.
CONSTRAINTS = {
    "expression": "CREATE UNIQUE INDEX ON events (lower(name))",
    "exclusion": "ALTER TABLE events ADD EXCLUDE USING btree (name WITH =)",
    "plain": "CREATE UNIQUE INDEX ON events (name)",
    "partial": "CREATE UNIQUE INDEX ON events (name) WHERE amount = 1",
}
# ON CONFLICT does not take it, so that rows are halved.
DEFERRED = "ALTER TABLE events ADD EXCLUDE USING btree (name WITH =) DEFERRABLE INITIALLY DEFERRED"


def doubled(bad: int = BAD, rows: int = ROWS) -> list[tuple[int, str, int]]:
    """Rows of which the first ``2 * bad`` have each name twice, spread over the batch."""
    step = rows // (2 * bad)
    return [(n, f"twice {n // step // 2}" if n % step == 0 else f"once {n}", 1) for n in range(rows)]


@pytest.mark.parametrize(
    ("constraint", "mode"), [*((constraint, "append") for constraint in CONSTRAINTS), ("expression", "upsert")]
)
def test_few_tries_find_each_bad_row_of_many(constraint, mode, url, admin, monkeypatch):
    """Those that fit are not tried again for every bad one, and so the table does not grow by each try."""
    # Each bad row is looked for by halves: 12 times 4,000 is halved, and each half is tried.
    monkeypatch.setattr(bad_row, "MOST_TRIES", BAD * 2 * 12 + BAD)
    admin.execute(TABLE)
    admin.execute(CONSTRAINTS[constraint])
    admin.execute("ALTER TABLE events SET (autovacuum_enabled = off)")
    rows = doubled()
    committed(url, rows, mode=mode, keys=("id",) if mode == "upsert" else ())
    names: set[str] = set()
    bad = [key for key, name, _ in rows if name in names or names.add(name)]
    assert len(bad) == BAD
    assert [key for key, *_ in letters(admin)] == bad
    assert stored(admin) == sorted({key for key, *_ in rows} - set(bad))
    (size,) = admin.execute("SELECT pg_relation_size('events')").fetchone()
    written = admin.execute("SELECT sum(pg_column_size(events)) FROM events").fetchone()[0]
    assert size < 20 * written


@pytest.mark.parametrize("order_by", [None, "amount"])
@pytest.mark.parametrize("constraint", ["plain", "expression", "partial"])
def test_one_try_finds_a_bad_row_among_those_that_are_written_by_key(constraint, order_by, url, admin):
    """Each is tried by itself once the others are written, if no value can have moved from one row to another."""
    admin.execute(TABLE)
    admin.execute(CONSTRAINTS[constraint])
    admin.execute(
        "CREATE SEQUENCE tries; CREATE FUNCTION count_try() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM nextval('tries'); RETURN NULL; END$$; "
        "CREATE TRIGGER count_try BEFORE INSERT ON events EXECUTE FUNCTION count_try()"
    )
    committed(url, [(-1, "once 7", 1)], mode="upsert", keys=("id",))
    admin.execute("SELECT setval('tries', 1)")
    # Of two rows with one name, the second is bad; the row that has the name of the stored one is, too.
    rows = [(n, name, 1 if constraint == "partial" else n) for n, name, _ in doubled()]
    committed(url, rows, number=1, mode="upsert", keys=("id",), order_by=order_by)
    names: set[str] = {"once 7"}
    bad = [key for key, name, _ in rows if name in names or names.add(name)]
    assert len(bad) == BAD + 1
    assert [key for key, *_ in letters(admin)] == bad
    assert stored(admin) == sorted({-1, *(key for key, *_ in rows)} - set(bad))
    # The batch, its other rows, and each bad row; then the rest once more.
    (tries,) = admin.execute("SELECT last_value FROM tries").fetchone()
    assert tries <= len(bad) + 5


def test_any_number_of_refused_values_takes_as_many_round_trips(url, admin, monkeypatch):
    """The server goes from one to the next, and so a batch that has thousands of them is committed in seconds."""
    execute, sent = psycopg.Cursor.execute, []
    monkeypatch.setattr(
        psycopg.Cursor, "execute", lambda cursor, *given, **how: sent.append(1) or execute(cursor, *given, **how)
    )
    admin.execute("CREATE TABLE events (id bigint NOT NULL, name varchar(3), amount smallint CHECK (amount > 0))")
    found = []
    for number, every in enumerate((400, 4)):
        rows = [
            ((n, "long", 1), (n, "abc", 70_000), (n, "abc", 0), (None, "abc", 1))[n // every % 4]
            if n % every == 0
            else (n, "abc", 1)
            for n in range(ROWS)
        ]
        sent.clear()
        committed(url, rows, number=number, max_dead_letters=ROWS)
        found.append(len(sent))
    assert found[1] <= found[0]
    reasons = admin.execute("SELECT code, column_name, count(*) FROM pgonce.dead_letters GROUP BY 1, 2").fetchall()
    assert sorted(reasons) == [
        ("22001", "name", 253),
        ("22003", "amount", 253),
        ("23502", "id", 252),
        ("23514", None, 252),
    ]


@pytest.mark.parametrize(
    ("name", "most"),
    [("MOST_TRIES", 20), ("MOST_SECONDS", -1)],
)
def test_a_search_that_lasts_too_long_refuses_the_batch(name, most, url, admin, monkeypatch):
    """The error says what Postgres has refused, that nothing was written, and what to do."""
    monkeypatch.setattr(bad_row, name, most)
    admin.execute(TABLE)
    admin.execute(DEFERRED)
    with pytest.raises(TargetError) as raised:
        committed(url, doubled(5, 400))
    assert raised.value.code == "SEARCH_TOO_LONG"
    for said in (
        "public.events",
        str(most),
        "23P01",
        "events_name_excl",
        NOTHING,
        "maxOffsetsPerTrigger",
    ):
        assert said in str(raised.value)
    assert stored(admin) == letters(admin) == []


def test_so_does_one_for_values_that_types_refuse(url, admin, monkeypatch):
    """Each row is assigned once, so that only the time counts."""
    admin.execute("CREATE TABLE events (id bigint, name varchar(3), amount bigint)")
    rows = [(n, "long" if n < 30 else "abc", 1) for n in range(40)]
    monkeypatch.setattr(bad_row, "MOST_TRIES", 0)
    committed(url, rows)
    assert len(letters(admin)) == 30
    monkeypatch.setattr(bad_row, "MOST_SECONDS", -1)
    with pytest.raises(TargetError, match=r"SEARCH_TOO_LONG.*22001"):
        committed(url, rows, number=1)


def test_letters_come_in_the_order_of_their_rows(url, admin):
    """A row of page 9 comes before one of page 10, although its place as a text does not."""
    admin.execute(TABLE)
    committed(url, [(0, "a", 1)])
    bad = range(100, 3_000, 250)
    committed(url, [(0 if n in bad else n, str(n), n) for n in range(1, 3_000)], number=1)
    found = admin.execute("SELECT (row_data ->> 'name')::int FROM pgonce.dead_letters ORDER BY dead_letter_id")
    assert [key for (key,) in found.fetchall()] == list(bad)


@pytest.mark.parametrize("may_create", [True, False])
def test_bad_rows_are_found_without_a_function_too(may_create, url, admin, monkeypatch):
    """Where the role may not create one, the halves are tried from here, with the same letters."""
    if not may_create:
        monkeypatch.setattr(conflicts, "_FUNCTION", "DO $$ BEGIN RAISE insufficient_privilege; END $$")
    admin.execute(TABLE)
    admin.execute(DEFERRED)
    committed(url, doubled(5, 100))
    assert [key for key, *_ in letters(admin)] == [10, 30, 50, 70, 90]
    assert len(stored(admin)) == 95
