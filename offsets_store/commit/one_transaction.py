"""
The one transaction of a try: its session, its COMMIT, and whether it is still the one that began.

Runs in the commit. Invariant: rows and offsets are in one transaction, whatever SQL of the user ran in it. Each try has
a session of its own, with a ledger to lock; one that failed is never used again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import sqlalchemy.exc
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from ..errors import NOTHING, CommitError, PgonceError
from ..ledger.begin import TransactionState, transaction_state_in_tx
from ..ledger.migrations import ensure_ledger, forget_ledger
from ..postgres.bounds import enter_in_tx, outlast_locks
from ..postgres.connect import checked_out, connect, driver_connection
from ..postgres.translate import leaves_commit_unknown
from .settings import CommitSettings
from .work import Named, Outcome

_log = logging.getLogger("pgonce")

WAIT_LOGGED_EVERY_SECONDS = 30.0


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


def refuse_lost_on_crash(state: TransactionState) -> None:
    """:raises CommitError: SYNCHRONOUS_COMMIT_OFF."""
    if state.synchronous_commit == "off":
        raise CommitError(
            "SYNCHRONOUS_COMMIT_OFF",
            "synchronous_commit is off for this connection: Postgres would answer COMMIT before the rows are on disk, "
            "and a crash would lose batches that Spark believes done.",
            NOTHING,
            "Set synchronous_commit to on (or local) for this role or database, or in url: "
            "options=-csynchronous_commit=on.",
        )


def refuse_when_it_ends(connection: Connection) -> None:
    """From now on, raise TRANSACTION_ENDED after a statement on this connection that has ended the transaction."""
    event.listen(connection, "after_cursor_execute", _refuse_ended)


def refuse_another_in_tx(connection: Connection, began: TransactionState) -> None:
    """
    Set our search_path again, and look whether the transaction is still the one that ``began``.

    :raises CommitError: TRANSACTION_ENDED or SYNCHRONOUS_COMMIT_OFF.
    """
    now = transaction_state_in_tx(connection)
    refuse_lost_on_crash(now)
    if began.xid != now.xid:
        raise _ended()


def send_commit(url: str, connection: Connection, backend_pid: int, what: Named, outcome: Outcome) -> None:
    """
    Send COMMIT, and return when Postgres has answered COMMIT.

    :param outcome: is unknown from the moment at which COMMIT is sent until its answer is there.
    :raises CommitError: ROLLED_BACK.
    :raises psycopg.Error: what Postgres says, or that its answer was lost.
    """
    try:
        with _saying_why_it_waits(url, backend_pid, what.full):
            outcome.unknown = True
            # Not by SQLAlchemy, which hides the answer: COMMIT of a failed transaction answers ROLLBACK.
            tag = driver_connection(connection).execute("COMMIT").statusmessage
    except psycopg.Error as error:
        outcome.unknown = leaves_commit_unknown(error)
        raise
    outcome.unknown = False
    if tag != "COMMIT":
        raise CommitError(
            "ROLLED_BACK",
            f"Postgres answered {tag} to COMMIT: a statement of this transaction had failed, and its error was "
            "swallowed.",
            NOTHING,
            "Let errors of tx.execute and tx.connection out of your function, or wrap what may fail in a savepoint "
            "(tx.connection.begin_nested()).",
        )


@contextmanager
def _saying_why_it_waits(url: str, backend_pid: int, what: str) -> Iterator[None]:
    """
    While the block waits for the COMMIT of ``backend_pid``, log every half minute what the server waits for.

    :param what: what is committed, for the log.
    """
    done = threading.Event()
    threading.Thread(
        target=_watch, args=(url, backend_pid, what, done), name="pgonce-commit-watch", daemon=True
    ).start()
    try:
        yield
    finally:
        done.set()


def _watch(url: str, backend_pid: int, what: str, done: threading.Event) -> None:
    began = time.monotonic()
    while not done.wait(WAIT_LOGGED_EVERY_SECONDS):
        why = _reason(url, backend_pid)
        if not done.is_set():
            waited = time.monotonic() - began
            _log.warning("%s: COMMIT has been waiting for %.0f s: %s", what, waited, why)


def _reason(url: str, backend_pid: int) -> str:
    try:
        with connect(url) as observer:
            enter_in_tx(observer)
            found = observer.execute(_WAITS_FOR, [backend_pid]).fetchone()
    except (psycopg.Error, PgonceError) as error:
        return f"Postgres could not be asked why: {' '.join(str(error).split())}"
    if found is None:
        return f"its session (pid {backend_pid}) is gone"
    waits_for, standbys = found
    if waits_for == "IPC/SyncRep":
        return (
            f"too few synchronous standbys have confirmed it (pid {backend_pid} waits for {waits_for}; "
            f"synchronous_standby_names = {standbys!r})"
        )
    return f"pid {backend_pid} waits for {waits_for}" if waits_for else f"pid {backend_pid} is at work"


_WAITS_FOR = """
SELECT wait_event_type || '/' || wait_event, current_setting('synchronous_standby_names')
FROM pg_stat_activity WHERE pid = %s
"""


def _refuse_ended(connection: Connection, *_: object) -> None:
    # Raised at once, before the next statement runs in a transaction of its own and perhaps is committed.
    if driver_connection(connection).info.transaction_status is TransactionStatus.IDLE:
        raise _ended()


def _ended() -> CommitError:
    return CommitError(
        "TRANSACTION_ENDED",
        "The batch's transaction was ended by SQL inside the function (ROLLBACK or COMMIT), so that rows and offsets "
        "would no longer be one.",
        "Nothing that went through tx before was written, and the stored offsets have not moved; what the SQL then "
        "committed by itself is there.",
        "Remove transaction control from your SQL and from procedures it calls; use tx.connection.begin_nested() "
        "for what may fail.",
    )
