"""
Which schemas do our own statements look into? ``pg_catalog``, and nothing that anybody else can write to.

Runs wherever Postgres is spoken to. Invariant: a statement of ours runs under :data:`OURS`, or names the schema of
every table, function, operator and type in it; a statement of the user's, and triggers on the user's tables, run under
the user's search_path.

Qualified functions are not enough: an operator such as ``=``, and a type such as ``text``, are looked up along the
search_path too. And an unqualified function whose argument types fit better wins even where ``pg_catalog`` comes first.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

OURS = "pg_catalog, pg_temp"
"""``pg_temp`` is named, and last, because Postgres otherwise looks there first of all."""

KEPT_IN = "pgonce.users_search_path"
"""The setting, local to the transaction, that keeps the user's search_path while ours is in force."""

SET_OURS = f"SET LOCAL search_path = {OURS}"
"""For a transaction in which no name of the user's is looked up."""

# Texts of several statements are one round trip.
_ENTER = f"SELECT pg_catalog.set_config('{KEPT_IN}', pg_catalog.current_setting('search_path'), true); {SET_OURS}"
_LEAVE = f"SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('{KEPT_IN}'), true)"


def leave_in_tx(connection: psycopg.Connection) -> None:
    """Put the user's search_path in force again: for the user's SQL, and for deferred triggers before COMMIT."""
    connection.execute(_LEAVE)


ANSWERS_BEFORE = 2
"""What SELECT and SET LOCAL answer, before the statement in :func:`under_ours` does."""


def under_ours(statement: sql.Composable) -> sql.Composed:
    """
    The text that runs one statement under our search_path in the midst of the user's.

    Several statements in one text cannot be prepared, and take no parameters.
    """
    return sql.SQL("; ").join([sql.SQL(_ENTER), statement, sql.SQL(_LEAVE)])


def execute_in_tx(cursor: psycopg.Cursor[Any], statement: sql.Composable) -> None:
    """Run one statement under our search_path in the midst of the user's; the cursor has its rows."""
    cursor.execute(under_ours(statement), prepare=False)
    for _ in range(ANSWERS_BEFORE):
        cursor.nextset()
