"""
Is the batch's transaction still the one that began, and will its rows survive a crash once they are committed?

Runs in the commit. Invariant: rows and offsets are in one transaction, whatever SQL of the user ran in it.
"""

from __future__ import annotations

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from pgonce.offsets_store.errors import NOTHING, CommitError
from pgonce.offsets_store.ledger.begin import TransactionState, transaction_state_in_tx
from pgonce.offsets_store.postgres.connect import driver_connection


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
