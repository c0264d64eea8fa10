"""
In which schemas do our own statements look names up? In ``pg_catalog``, and in none that others can write to.

Runs wherever Postgres is spoken to. Invariant: a statement of ours runs under :data:`OURS`, or names the schema of
every table, function, operator and type in it. A statement of the user, and triggers on the user's tables, run under
the user's search_path.

To qualify functions is not enough: an operator such as ``=``, and a type such as ``text``, are looked up along the
search_path too. And an unqualified function whose argument types fit better wins even if ``pg_catalog`` comes first.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

OURS = "pg_catalog, pg_temp"
"""``pg_temp`` is named last, because Postgres looks there first if it is not named."""

KEPT_IN = "pgonce.users_search_path"
"""The setting, local to the transaction, that remembers the user's search_path while ours is in force."""

SET_OURS = f"SET LOCAL search_path = {OURS}"
"""For a transaction in which no name of the user has to be found."""

# A text of several statements is one round trip.
_ENTER = f"SELECT pg_catalog.set_config('{KEPT_IN}', pg_catalog.current_setting('search_path'), true); {SET_OURS}"
_LEAVE = f"SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('{KEPT_IN}'), true)"


def leave_in_tx(connection: psycopg.Connection) -> None:
    """Set the user's search_path again: for the user's SQL, and before COMMIT for deferred triggers."""
    connection.execute(_LEAVE)


ANSWERS_BEFORE = 2
"""In :func:`under_ours`, SELECT and SET LOCAL give an answer each before the statement does."""


def under_ours(statement: sql.Composable) -> sql.Composed:
    """
    The text that runs one statement under our search_path, between statements of the user.

    Several statements in one text cannot be prepared, and take no parameters.
    """
    return sql.SQL("; ").join([sql.SQL(_ENTER), statement, sql.SQL(_LEAVE)])


def execute_in_tx(cursor: psycopg.Cursor[Any], statement: sql.Composable) -> None:
    """Run one statement under our search_path, between statements of the user; the cursor then has its rows."""
    cursor.execute(under_ours(statement), prepare=False)
    for _ in range(ANSWERS_BEFORE):
        cursor.nextset()
