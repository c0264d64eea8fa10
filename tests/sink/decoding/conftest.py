"""What the tests of decoding share: a table that is called t, and what is in it."""

from __future__ import annotations

import psycopg
import pytest


@pytest.fixture
def create(url):
    """Create table t; if nothing else is said, for rows with a key, a part and a name."""

    def run(columns="id bigint PRIMARY KEY, part int, name text"):
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE t ({columns})")

    return run


@pytest.fixture
def stored(url):
    """The rows of table t."""

    def read(what="*"):
        with psycopg.connect(url) as connection:
            return connection.execute(f"SELECT {what} FROM t ORDER BY 1").fetchall()

    return read
