"""
Run our own statements under a search_path of ``pg_catalog`` alone, where other roles can create nothing.

Runs where Postgres is spoken to. Invariant: a statement of ours runs under :data:`SEARCH_PATH`, or names the schema
of every table, function, operator and type in it. A statement of the user, and triggers on the user's tables, run under
the user's search_path. Other settings on which our statements rely come and go with it
(:mod:`~pgonce.offsets_store.postgres.settings`).

To qualify functions is not enough: an operator such as ``=``, and a type such as ``text``, are looked up along the
search_path too. And an unqualified function whose argument types fit better wins even if ``pg_catalog`` comes first.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from .settings import FOR_NAMES, OF_VALUES, OURS, LocalSettings

SET_OURS = "; ".join(
    f"SET LOCAL {name} = {value if name == 'search_path' else repr(value)}" for name, value in OURS.items()
)
"""For a transaction in which no name of the user has to be found."""

_OURS = LocalSettings(**OURS)
_FOR_NAMES = LocalSettings(**FOR_NAMES)
_FOR_NAMES_AND_VALUES = LocalSettings(**FOR_NAMES, **OF_VALUES)

ENTER_COLUMNS = _OURS.entering
"""What a SELECT computes to remember the user's settings and to put ours in force until :func:`leave_in_tx`."""


LEAVE = _OURS.leave
"""The statement of :func:`leave_in_tx`, for a text with others."""

# To compose it takes psycopg as long as Postgres needs to run it.
_LEAVE = LEAVE.as_bytes(None)


def leave_in_tx(connection: psycopg.Connection) -> None:
    """Set the user's search_path (and the rest) again: for the user's SQL, and before COMMIT for deferred triggers."""
    connection.execute(_LEAVE)


def under_ours(statement: sql.Composable) -> sql.Composed:
    """The text that runs one statement under our search_path, as :meth:`LocalSettings.around` does."""
    return _FOR_NAMES.around(statement)


def execute_in_tx(cursor: psycopg.Cursor[Any], statement: sql.Composable, *, makes_texts: bool = False) -> None:
    """
    Run one statement under our search_path, between statements of the user; the cursor then has its rows.

    :param makes_texts: whether it makes texts or JSON of values, or reads values in them.
    """
    (_FOR_NAMES_AND_VALUES if makes_texts else _FOR_NAMES).execute_in_tx(cursor, statement)
