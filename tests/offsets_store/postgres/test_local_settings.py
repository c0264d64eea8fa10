"""A statement runs under settings of ours, and those of the user are in force before it and after it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from pgonce.offsets_store.postgres.local_settings import LocalSettings

OURS = LocalSettings(extra_float_digits="1", search_path="pg_catalog, pg_temp")
LOOK = "SELECT pg_catalog.current_setting('extra_float_digits'), pg_catalog.current_setting('search_path')"
USERS = ("-3", "public, pg_catalog")


@pytest.fixture
def connection(url):
    """A connection whose user has set both settings, in a transaction."""
    with psycopg.connect(url) as opened:
        opened.execute("SET extra_float_digits = -3")
        opened.execute("SET search_path = public, pg_catalog")
        opened.commit()
        yield opened


def test_the_statement_sees_ours(connection):
    """In one round trip, after which the cursor is at the statement's answer."""
    cursor = connection.cursor()
    OURS.execute_in_tx(cursor, sql.SQL(LOOK))
    assert cursor.fetchone() == ("1", "pg_catalog, pg_temp")
    assert connection.execute(LOOK).fetchone() == USERS


def test_one_within_another(connection):
    """One may stand around another that sets something else: each brings back its own."""
    costs = LocalSettings(seq_page_cost="7")
    cursor = connection.cursor()
    OURS.execute_in_tx(cursor, costs.around(sql.SQL("SELECT 1")))
    asked = connection.execute(f"{LOOK}, pg_catalog.current_setting('seq_page_cost')".encode()).fetchone()
    assert asked == (*USERS, "1")


def test_a_statement_that_fails(connection):
    """The savepoint that is rolled back brings the user's settings back."""
    with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
        OURS.execute_in_tx(connection.cursor(), sql.SQL("SELECT 1 / 0"))
    assert connection.execute(LOOK).fetchone() == USERS


def test_after_the_transaction(connection):
    """The session has nothing of it."""
    OURS.execute_in_tx(connection.cursor(), sql.SQL("SELECT 1"))
    connection.commit()
    assert connection.execute(LOOK).fetchone() == USERS
