"""
Bad rows are found among many, whatever refuses them.

Covers: sink.writing.bad_rows.about_a_row, sink.writing.bad_rows.in_turn, sink.writing.bad_rows.turns.
"""

from __future__ import annotations

import psycopg
import pytest
from support.bad_rows import committed, letters, stored

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
# It is checked when a part is written, so that parts are halved.
DEFERRED = "ALTER TABLE events ADD EXCLUDE USING btree (name WITH =) DEFERRABLE INITIALLY DEFERRED"


def doubled(bad: int = BAD, rows: int = ROWS) -> list[tuple[int, str, int]]:
    """Rows of which the first ``2 * bad`` have each name twice, spread over the batch."""
    step = rows // (2 * bad)
    return [(n, f"twice {n // step // 2}" if n % step == 0 else f"once {n}", 1) for n in range(rows)]


# The table, and how many times a statement may write into it for each bad row: it is refused with the rows before it,
# and these are written. If nothing tells which row of a part it was, the part is halved.
HALVED = pytest.param("deferred", "append", 20, id="deferred")


@pytest.mark.parametrize("order_by", [None, "id"])
@pytest.mark.parametrize(
    ("constraint", "mode", "most"),
    [*((name, mode, 4) for name in CONSTRAINTS for mode in ("append", "upsert")), HALVED],
)
def test_few_tries_find_each_bad_row_of_many(constraint, mode, most, order_by, url, admin):
    """Those that fit are not tried again for every bad one, and so the table does not grow by each try."""
    by_key = {"keys": ("id",), "order_by": order_by} if mode == "upsert" else {}
    admin.execute(TABLE)
    admin.execute({**CONSTRAINTS, "deferred": DEFERRED}[constraint])
    admin.execute("ALTER TABLE events SET (autovacuum_enabled = off)")
    admin.execute(
        "CREATE SEQUENCE tries; CREATE FUNCTION count_try() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM nextval('tries'); RETURN NULL; END$$; "
        "CREATE TRIGGER count_try BEFORE INSERT ON events EXECUTE FUNCTION count_try()"
    )
    rows = doubled()
    committed(url, rows, mode=mode, **by_key)
    names: set[str] = set()
    bad = [key for key, name, _ in rows if name in names or names.add(name)]
    assert len(bad) == BAD
    assert [key for key, *_ in letters(admin)] == bad
    assert stored(admin) == sorted({key for key, *_ in rows} - set(bad))
    (tries,) = admin.execute("SELECT last_value FROM tries").fetchone()
    assert tries <= (most + 1) * BAD
    (size,) = admin.execute("SELECT pg_relation_size('events')").fetchone()
    written = admin.execute("SELECT sum(pg_column_size(events)) FROM events").fetchone()[0]
    assert size < 20 * written


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


def test_letters_come_in_the_order_of_their_rows(url, admin):
    """A row of page 9 comes before one of page 10, although its place as a text does not."""
    admin.execute(TABLE)
    committed(url, [(0, "a", 1)])
    bad = range(100, 3_000, 250)
    committed(url, [(0 if n in bad else n, str(n), n) for n in range(1, 3_000)], number=1)
    found = admin.execute("SELECT (row_data ->> 'name')::int FROM pgonce.dead_letters ORDER BY dead_letter_id")
    assert [key for (key,) in found.fetchall()] == list(bad)
