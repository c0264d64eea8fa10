"""
Which transaction this is, and whether it is still the one that a try began, as it was then.

Runs in the commit. Invariant: SQL of the user may run between the begin and the record, and what it ends or changes is
found before COMMIT, or makes it fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import psycopg
import sqlalchemy.exc
from psycopg.pq import PipelineStatus, TransactionStatus
from sqlalchemy import Connection, event

from ..errors import NOTHING, CommitError
from ..postgres.connect import driver_connection
from ..postgres.one_trip import Asked, Statement, ask
from ..postgres.search_path import ENTER_COLUMNS
from ..postgres.translate import driver_error


@dataclass(frozen=True)
class TransactionState:
    """
    Which transaction this is, whether its COMMIT waits for the disk, whose it is, whether it may write, and which
    process of the server runs it.
    """

    xid: str
    synchronous_commit: str
    role: str
    read_only: str
    # Asked of the server, because behind a pooler the process id that libpq knows is made up.
    backend_pid: int


# Every name has its schema, because the user's search_path is in force. Postgres keeps this order: the user's settings
# are remembered before ours take their place.
STATE_COLUMNS = (
    "SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text AS xid, "
    "pg_catalog.current_setting('synchronous_commit') AS synchronous_commit, "
    "current_user::pg_catalog.text AS role, pg_catalog.current_setting('transaction_read_only') AS read_only, "
    f"pg_catalog.pg_backend_pid() AS backend_pid, {ENTER_COLUMNS.as_string(None)}"
)
STATE = Statement(STATE_COLUMNS)


def state_in(asked: Asked) -> TransactionState:
    """The state in the answer to :data:`STATE_COLUMNS`."""
    row = asked.one_row()
    return TransactionState(**{each.name: row[each.name] for each in fields(TransactionState)})


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
    """
    From now on, raise TRANSACTION_ENDED after a statement on this connection that has ended the transaction; and
    STATEMENT_FAILED before one that would wait for itself.
    """
    event.listen(connection, "after_cursor_execute", _refuse_ended)
    event.listen(connection, "before_cursor_execute", refuse_open)


def refuse_open(connection: Connection, *_: object) -> None:
    """:raises CommitError: STATEMENT_FAILED, if the function has not read all that a statement of its own answers."""
    driver = driver_connection(connection)
    # psycopg's stream holds the connection's lock until it is closed, and so the next statement would wait for ever.
    is_at_work = driver.info.transaction_status is TransactionStatus.ACTIVE
    if is_at_work and driver.pgconn.pipeline_status == PipelineStatus.OFF:
        raise CommitError(
            "STATEMENT_FAILED",
            "A stream (or a COPY) of psycopg was left open in the function's connection, which can run no other "
            "statement meanwhile.",
            NOTHING,
            "Read it to its end, or close it before the next statement, and before the function returns: "
            "`with contextlib.closing(cursor.stream(...)) as rows`.",
        )


def has_failed(connection: Connection) -> bool:
    """Whether a statement of the transaction has failed, so that Postgres runs no other one."""
    return driver_connection(connection).info.transaction_status is TransactionStatus.INERROR


@contextmanager
def as_it_began_in_tx(connection: Connection, began: TransactionState) -> Iterator[None]:
    """
    Set our search_path again, and run a block on the ledger, if the transaction is still the one that ``began``.

    :raises CommitError: TRANSACTION_ENDED; or SETTINGS_CHANGED, if the block fails for what SQL of the user has set.
    """
    now = state_in(ask(driver_connection(connection), STATE))
    refuse_another(began, now)
    try:
        yield
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        refuse_changed(began, now, error)
        raise


def refuse_another(began: TransactionState, now: TransactionState) -> None:
    """:raises CommitError: TRANSACTION_ENDED, or SETTINGS_CHANGED if COMMIT would not wait for the disk any more."""
    if began.xid != now.xid:
        raise _ended()
    if now.synchronous_commit == "off":
        raise _changed("synchronous_commit is off now")


def refuse_changed(began: TransactionState, now: TransactionState, error: Exception) -> None:
    """:raises CommitError: SETTINGS_CHANGED, if that is why Postgres did not let us write the ledger."""
    if (cause := driver_error(error)) is None:
        return
    if isinstance(cause, psycopg.errors.InsufficientPrivilege) and began.role != now.role:
        raise _changed(f"the role is {now.role}, and was {began.role} before")
    if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction) and began.read_only != now.read_only:
        raise _changed("the transaction is read-only now")


def _changed(what: str) -> CommitError:
    return CommitError(
        "SETTINGS_CHANGED",
        f"SQL of the function, or of a trigger, has changed what the batch must be recorded with: {what}.",
        NOTHING,
        "Take it back before the function returns (RESET ROLE, or SET LOCAL synchronous_commit = on), or do without "
        "it.",
    )


def _refuse_ended(connection: Connection, *_: object) -> None:
    # Raised at once, before the next statement runs in a transaction of its own and perhaps is committed.
    if driver_connection(connection).info.transaction_status is TransactionStatus.IDLE:
        raise _ended()


def _ended() -> CommitError:
    return CommitError(
        "TRANSACTION_ENDED",
        "The batch's transaction was ended by SQL inside the function (ROLLBACK or COMMIT), so rows and offsets "
        "would no longer be committed together.",
        "Nothing that went through tx before was written, and the stored offsets have not moved. But what the SQL "
        "itself has committed since then stays committed.",
        "Remove transaction control from your SQL and from procedures it calls; use tx.connection.begin_nested() "
        "for what may fail.",
    )
