"""
Does a pooler stand between, and does it leave transactions whole?

Runs in the command ``pgonce check``. Invariant: it leaves nothing in a session that goes to somebody else.
"""

from __future__ import annotations

import psycopg

from ..postgres.bounds import enter_in_tx
from .answers import Answer, Finding, Holds, Question, one_row


def _pooler(connection: psycopg.Connection) -> Answer:
    if one_row(connection, "SELECT pg_backend_pid()")[0] == connection.info.backend_pid:
        return Answer(Holds.YES, "no pooler stands between, or one that keeps a session for each client")
    return Answer(
        Holds.YES,
        "a pooler stands between, and leaves transactions whole (pool_mode is transaction or session)",
        "Leave it one session more than there are queries that commit at once.",
    )


def _settings(connection: psycopg.Connection) -> Answer:
    enter_in_tx(connection, 1.0)
    if one_row(connection, "SELECT current_setting('lock_timeout')")[0] != "1s":
        return Answer(Holds.NO, "SET LOCAL has no effect")
    connection.execute("ROLLBACK")
    # In autocommit mode, this is a transaction of its own.
    if one_row(connection, "SELECT pg_catalog.current_setting('lock_timeout')")[0] == "1s":
        return Answer(Holds.NO, "SET LOCAL outlives its transaction, and would reach others behind a pooler")
    connection.execute("BEGIN")
    return Answer(Holds.YES, "settings for one transaction end with it")


_PROMISE = "Rows and offsets are written in one transaction."


def statement_pooling(said: psycopg.Error) -> Finding:
    """The only answer that there is behind a pooler in statement mode."""
    return Finding(
        "pooler",
        _PROMISE,
        Holds.NO,
        f"a pooler stands between, and forbids transactions: {' '.join(str(said).split())}",
        "Set pool_mode of this database or user to transaction (or session) in PgBouncer, or let url name Postgres "
        "itself.",
    )


QUESTIONS = (
    Question("pooler", _PROMISE, _pooler),
    Question("settings", "A commit's settings (timeouts, search_path) are its own, also behind a pooler.", _settings),
)
