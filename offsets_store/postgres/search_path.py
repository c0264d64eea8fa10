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

from pgonce.offsets_store.postgres.local_settings import LocalSettings, kept_in

OURS = "pg_catalog, pg_temp"
"""``pg_temp`` is named last, because Postgres looks there first if it is not named."""

KEPT_IN = kept_in("search_path")
"""Where a batch's transaction remembers the user's search_path while ours is in force."""

SET_OURS = f"SET LOCAL search_path = {OURS}"
"""For a transaction in which no name of the user has to be found."""

_OURS = LocalSettings(search_path=OURS)


def leave_in_tx(connection: psycopg.Connection) -> None:
    """Set the user's search_path again: for the user's SQL, and before COMMIT for deferred triggers."""
    connection.execute(_OURS.leave)


def under_ours(statement: sql.Composable) -> sql.Composed:
    """The text that runs one statement under our search_path, as :meth:`LocalSettings.around` does."""
    return _OURS.around(statement)


def execute_in_tx(cursor: psycopg.Cursor[Any], statement: sql.Composable) -> None:
    """Run one statement under our search_path, between statements of the user; the cursor then has its rows."""
    _OURS.execute_in_tx(cursor, statement)
