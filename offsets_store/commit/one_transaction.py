"""
The one transaction of a try: the steps that are the same for a micro-batch and a batch job, from the begin to COMMIT.

Runs in the commit. Invariant: rows and offsets are in one transaction, even if SQL of the user ran in it. Each try has
a session of its own, with a ledger to lock; one that failed is never used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import psycopg
import sqlalchemy.exc
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection

from ..errors import NOTHING, CommitError
from ..ledger.migrations import ensure_ledger, forget_ledger
from ..postgres.bounds import KEEPALIVES, outlast_locks, server_settings, time_limits
from ..postgres.connect import checked_out, driver_connection
from ..postgres.one_trip import Asked, Statement, ask, keep_prepared, one_trip
from ..postgres.search_path import LEAVE, leave_in_tx
from ..postgres.translate import driver_error, leaves_commit_unknown
from .settings import CommitSettings
from .transaction_state import (
    STATE,
    STATE_COLUMNS,
    TransactionState,
    has_failed,
    refuse_another,
    refuse_changed,
    refuse_lost_on_crash,
    state_in,
)
from .work import NamedSink, NameSink, Outcome, asked_sink

_T = TypeVar("_T")

_GIVEN = ("lock_timeout", "application_name", "tcp_user_timeout", *(f"tcp_{name}" for name in KEEPALIVES))


@cache
def _to_begin(lifted: tuple[str, ...]) -> Statement:
    values = dict.fromkeys(lifted, "'0'") | {name: f"${number}" for number, name in enumerate(_GIVEN, 1)}
    to_set = (f"pg_catalog.set_config('{name}', {value}, true)" for name, value in values.items())
    return Statement(", ".join([STATE_COLUMNS, *to_set]), *_GIVEN)


# The last one before COMMIT: deferred triggers of the user's tables run at COMMIT, under the user's search_path. It
# fails in a transaction that is not the one that began, and so COMMIT does nothing.
_LEAVE = Statement(
    f"{LEAVE.as_string(None)}, CASE WHEN pg_current_xact_id()::text = $1 "
    "AND current_setting('synchronous_commit') <> 'off' THEN 0 "
    "ELSE CAST(concat('pgonce does not commit transaction ', pg_current_xact_id()) AS integer) END",
    "xid",
)
# There is nothing to plan.
_COMMIT = Statement("COMMIT", is_prepared=False)
# Behind COMMIT, because the pool gives the session to another query next: what SQL of the user leaves in a session (and
# every DEFAULT, CHECK and event trigger is such SQL) would lead the rows of that query into another table. RESET ALL
# leaves the role as it is.
_FORGET = (
    *map(Statement, ("RESET SESSION AUTHORIZATION", "RESET ROLE", "RESET ALL", "DISCARD TEMP", "UNLISTEN *")),
    *map(Statement, ("CLOSE ALL", "SELECT pg_catalog.pg_advisory_unlock_all()")),
)
# Statements that the user has prepared stay, and what a trigger sets at the login is gone.
_IS_ANOTHER = Statement(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements AS p WHERE p.from_sql) OR EXISTS ("
    "SELECT FROM pg_catalog.pg_event_trigger AS e WHERE e.evtevent OPERATOR(pg_catalog.=) 'login')"
)


def begin_in_tx(connection: Connection, application: str, lock_timeout_seconds: float) -> TransactionState:
    """Set what :func:`ask_to_begin` sets, and say which transaction this is."""
    return state_in(ask_to_begin(connection, application, lock_timeout_seconds))


def ask_to_begin(connection: Connection, application: str, lock_timeout_seconds: float) -> Asked:
    """
    Set our search_path (and the rest), lift the session's time limits, and ask which transaction this is.

    The server is to notice that this client is gone as soon as the client would notice the same of the server, because
    its locks are in the way of others. All settings are local to the transaction, because a pooler gives the session to
    another client afterwards.
    """
    driver = driver_connection(connection)
    settings = {
        "application_name": application,
        "lock_timeout": f"{int(lock_timeout_seconds * 1000)}",
        **server_settings(driver),
    }
    return ask(driver, _to_begin(time_limits(driver)), settings)


def application_name(run_id: str) -> str:
    """The name of this run's sessions in ``pg_stat_activity``: 43 of at most 63 bytes."""
    return f"pgonce {run_id}"


@dataclass(frozen=True)
class Begun(Generic[_T]):
    """A transaction that has begun, the sink that it is for, and what was ``asked`` of the ledger meanwhile."""

    connection: Connection
    sink: NamedSink
    state: TransactionState
    asked: _T


@contextmanager
def begun_transaction(
    settings: CommitSettings,
    run_id: str,
    name_sink: NameSink,
    outcome: Outcome,
    ask_ledger: Callable[[Connection, str | None], _T],
) -> Iterator[Begun[_T]]:
    """
    Begin the transaction of a try; what the block does not commit is rolled back.

    BEGIN, and all that has to be asked, travel in one round trip.

    :param ask_ledger: asks the ledger in the same trip, and gets the sink's name if it is known by then.
    :raises CommitError: SYNCHRONOUS_COMMIT_OFF.
    """
    with session_of_a_try(settings) as connection:
        begin: Asked | None = None
        try:
            with one_trip(driver_connection(connection)):
                # Before our search_path is in force, because a table is found along the user's.
                sink = asked_sink(name_sink, connection)
                begin = ask_to_begin(connection, application_name(run_id), settings.lock_timeout)
                asked = ask_ledger(connection, sink.name)
        except psycopg.Error:
            outcome.in_ledger = begin is not None and begin.is_answered
            if not outcome.in_ledger:
                # By itself, what is wrong with a table's name can be told.
                driver_connection(connection).rollback()
                asked_sink(name_sink, connection).read()
            raise
        state = state_in(begin)
        outcome.database = driver_connection(connection).info.dbname
        keep_prepared(driver_connection(connection), settings.url, state.backend_pid)
        refuse_lost_on_crash(state)
        yield Begun(connection, sink.read(), state, asked)


@contextmanager
def session_of_a_try(settings: CommitSettings) -> Iterator[Connection]:
    """A session whose database has a ledger; what the block has not committed is rolled back."""
    with checked_out(settings.url) as connection:
        try:
            outlast_locks(driver_connection(connection), settings.url, settings.lock_timeout)
            # SQLAlchemy keeps ``info`` as long as the session: a new one may have found a restored database's ledger.
            if connection.info.setdefault("pgonce_new", True):
                forget_ledger(settings.url)
            ensure_ledger(settings.url, driver_connection(connection))
            connection.info["pgonce_new"] = False
            yield connection
        except BaseException:
            # An explicit end, because a server notices a closed connection late and would keep the locks until then.
            # psycopg's stream holds a lock until it is closed, for which a rollback would wait.
            with suppress(psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
                driver = driver_connection(connection)
                is_at_work = driver.info.transaction_status is TransactionStatus.ACTIVE
                (driver.cancel_safe if is_at_work else driver.rollback)()
            # The next try gets a new session. This one may be dead (SQLAlchemy does not see errors of psycopg's own
            # COPY), or have settings that an administrator has corrected since.
            connection.invalidate()
            raise


@contextmanager
def committing(connection: Connection, began: TransactionState, outcome: Outcome) -> Iterator[None]:
    """
    Run the block, which records what was written, and COMMIT, in one round trip; Postgres has answered COMMIT then.

    The same trip makes the session what it was when it was opened, or it is not used again. Behind a pooler the session
    is another client's after COMMIT, and what the pooler has set there for this one has to stay.

    :param outcome: is unknown from the time when COMMIT is sent until its answer is there.
    :raises CommitError: TRANSACTION_ENDED, if it is not the transaction that ``began``; SETTINGS_CHANGED, if SQL
        of the user keeps it from being recorded; STATEMENT_FAILED.
    :raises psycopg.Error: what Postgres says, or that its answer was lost.
    """
    driver = driver_connection(connection)
    if has_failed(connection):
        # Raises that it has failed: an error was swallowed, and it was not one of the ledger's.
        leave_in_tx(driver)
    state = left = answer = is_another = None
    try:
        with outcome.on_ledger(), one_trip(driver):
            # This sets our search_path again.
            state = ask(driver, STATE)
            yield
            left = ask(driver, _LEAVE, {"xid": began.xid})
            answer = ask(driver, _COMMIT)
            # What libpq knows of a pooler's session is made up.
            if driver.info.backend_pid == began.backend_pid:
                for statement in _FORGET:
                    ask(driver, statement)
                is_another = ask(driver, _IS_ANOTHER)
            # It is sent when the block ends.
            outcome.unknown = True
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        if answer is None or not answer.is_answered:
            # An error of a statement before COMMIT, and of COMMIT itself, say alike that nothing is committed.
            cause = driver_error(error)
            outcome.unknown = outcome.unknown and (cause is None or leaves_commit_unknown(cause))
            # Constraints of the user's tables may be checked at COMMIT.
            outcome.in_ledger = left is None or not left.is_answered
            if not outcome.unknown and state is not None and state.is_answered:
                # In another transaction, the record may also refer to what was rolled back.
                now = state_in(state)
                refuse_another(began, now)
                refuse_changed(began, now, error)
            raise
    outcome.unknown = False
    if answer.tag != "COMMIT":
        raise CommitError(
            "STATEMENT_FAILED",
            f"Postgres answered {answer.tag} to COMMIT: a statement of this transaction had failed, and its error was "
            "swallowed.",
            NOTHING,
            "Let errors of tx.execute and tx.connection out of your function, or wrap what may fail in a savepoint "
            "(tx.connection.begin_nested()).",
        )
    if driver.closed or (is_another is not None and is_another.rows() != [(False,)]):
        connection.invalidate()
