"""
Is the transaction still the one that began, will its rows survive a crash, and has COMMIT really committed it?

Runs in the commit. Invariant: rows and offsets are in one transaction, whatever SQL of the user ran in it.
"""

from __future__ import annotations

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from ..errors import NOTHING, CommitError
from ..ledger.begin import TransactionState, transaction_state_in_tx
from ..postgres.connect import driver_connection
from ..postgres.translate import leaves_commit_unknown
from .commit_watch import saying_why_it_waits
from .work import Named, Outcome


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
        with saying_why_it_waits(url, backend_pid, what.full):
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
