"""Joins of a batch's rows with the target's find rows by their keys, and leave the user's settings as they were."""

from __future__ import annotations

import time

import psycopg
from support.applied_changes import DELETE, WRITE, apply

SETTINGS = ("seq_page_cost", "random_page_cost", "enable_hashjoin")


def test_the_settings_are_those_of_the_user_again(url, admin):
    """Within the transaction and after it, whatever they were."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)")
    with psycopg.connect(url) as connection:
        for name, value in zip(SETTINGS, ("0.5", "2.5", "off"), strict=True):
            connection.execute(f"SET {name} = {value}".encode())
        connection.commit()
        apply(connection, (1, "a", 1, WRITE), (2, None, 1, DELETE))
        found = [connection.execute(f"SHOW {name}".encode()).fetchone()[0] for name in SETTINGS]
    assert found == ["0.5", "2.5", "off"]


def test_a_table_that_was_almost_empty_when_it_was_analyzed(url, admin):
    """Postgres believes that it still is; the stored rows of thousands of changes are found in no time all the same."""
    rows = "INSERT INTO events SELECT g, repeat('x', 60), 1 FROM generate_series(1, {}) AS g"
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint) WITH (autovacuum_enabled = off)")
    admin.execute(rows.format(100_000).encode())
    admin.execute("DELETE FROM events WHERE id < 100000")
    admin.execute("VACUUM ANALYZE events")
    admin.execute(rows.format(99_999).encode())
    began = time.monotonic()
    counts = apply(url, *((n * 30, "y", 2, n % 10 == 0) for n in range(1, 3000)))
    assert counts == {"written": 2700, "deleted": 299}
    # Looking through all rows for each change takes more than half a minute.
    assert time.monotonic() - began < 10
