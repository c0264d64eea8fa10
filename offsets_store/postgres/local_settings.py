"""
How does one statement run under settings of ours, in a transaction of the user?

Runs wherever Postgres is spoken to. Invariant: once the statement is done, the user's settings are back. If it fails,
the savepoint or the transaction that is rolled back brings them back.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

ANSWERS_BEFORE = 1
"""In :meth:`LocalSettings.around`, the SELECT that sets our values gives an answer before the statement does."""


def kept_in(name: str) -> str:
    """The setting, local to the transaction, that remembers the user's value of ``name`` while ours is in force."""
    return f"pgonce.users_{name}"


class LocalSettings:
    """
    Values of Postgres's settings for single statements, in one round trip with each.

    One that stands around another must not set the same: the inner one would remember our value as the user's.

    >>> LocalSettings(extra_float_digits="1").execute_in_tx(cursor, sql.SQL("SELECT to_jsonb(2.5::float4)"))
    """

    def __init__(self, **values: str) -> None:
        entering, leaving = [], []
        for name, value in values.items():
            to_set = sql.SQL("pg_catalog.set_config({}, {}, true)")
            stored = sql.SQL("pg_catalog.current_setting({})")
            entering.append(to_set.format(kept_in(name), stored.format(name)))
            entering.append(to_set.format(name, value))
            leaving.append(to_set.format(name, stored.format(kept_in(name))))
        # Postgres computes what is selected from left to right: a value is remembered before ours takes its place.
        select = sql.SQL("SELECT {}")
        self.entering = sql.SQL(", ").join(entering)
        """What a SELECT has to compute, to remember the user's values and set ours."""
        self._enter = select.format(self.entering)
        self.leave = select.format(sql.SQL(", ").join(leaving))
        """The statement that sets the user's values again."""

    def around(self, statement: sql.Composable) -> sql.Composed:
        """
        The text that runs one statement under these settings, between statements of the user.

        Several statements in one text cannot be prepared, and take no parameters.
        """
        return sql.SQL("; ").join([self._enter, statement, self.leave])

    def execute_in_tx(self, cursor: psycopg.Cursor[Any], statement: sql.Composable) -> None:
        """Run one statement under these settings; the cursor is then at its answer."""
        cursor.execute(self.around(statement), prepare=False)
        for _ in range(ANSWERS_BEFORE):
            cursor.nextset()
