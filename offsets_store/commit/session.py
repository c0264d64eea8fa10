"""
Which session does a try have?

Runs in the commit. Invariant: each try has a session of its own, with a ledger to lock; one that failed is never used
again. (:mod:`pgonce.offsets_store.ledger.session` opens the ledger for all other purposes.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection

from ..ledger.migrations import ensure_ledger, forget_ledger
from ..postgres.bounds import outlast_locks
from ..postgres.connect import checked_out, driver_connection
from .settings import CommitSettings


def application_name(run_id: str) -> str:
    """The name of this run's sessions in ``pg_stat_activity``: 43 of at most 63 bytes."""
    return f"pgonce {run_id}"


@contextmanager
def session_of_a_try(settings: CommitSettings) -> Iterator[Connection]:
    """A session whose database has a ledger; what the block has not committed is rolled back."""
    with checked_out(settings.url) as connection, _discarded_on_error(connection):
        outlast_locks(driver_connection(connection), settings.url, settings.lock_timeout)
        # SQLAlchemy keeps ``info`` as long as the session: a new one may have found the ledger of a restored database.
        if connection.info.setdefault("pgonce_new", True):
            forget_ledger(settings.url)
        ensure_ledger(settings.url, driver_connection(connection))
        connection.info["pgonce_new"] = False
        yield connection


@contextmanager
def _discarded_on_error(connection: Connection) -> Iterator[None]:
    # The next try gets a new session. This one may be dead (SQLAlchemy does not see errors of psycopg's own COPY), or
    # have settings that an administrator has corrected since.
    try:
        yield
    except BaseException:
        # An explicit rollback, because a server notices a closed connection late and would keep the locks until then.
        with suppress(psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
            driver_connection(connection).rollback()
        connection.invalidate()
        raise
