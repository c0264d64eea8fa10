"""
The one transaction of a try: the steps that are the same for a micro-batch and a batch job, from the begin to COMMIT.

Runs in the commit. Invariant: rows and offsets are in one transaction, even if SQL of the user ran in it. Each try has
a session of its own, with a ledger to lock; one that failed is never used again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import psycopg
import sqlalchemy.exc
from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, bindparam, event, func, literal_column, select

from ..errors import NOTHING, CommitError, PgonceError
from ..ledger.lock import PLACES_IN_ORDER
from ..ledger.migrations import ensure_ledger, forget_ledger
from ..postgres.bounds import enter_in_tx, outlast_locks, server_settings
from ..postgres.connect import checked_out, connect, driver_connection
from ..postgres.one_trip import Asked, one_trip
from ..postgres.search_path import ENTER_COLUMNS, leave_in_tx
from ..postgres.translate import leaves_commit_unknown
from .settings import CommitSettings
from .work import Named, NamedSink, NameSink, Outcome, asked_sink

_log = logging.getLogger("pgonce")

WAIT_LOGGED_EVERY_SECONDS = 30.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class TransactionState:
    """Which transaction this is, whether its COMMIT waits for the disk, and which process of the server runs it."""

    xid: str
    synchronous_commit: str
    # Asked of the server, because behind a pooler the process id that libpq knows is made up.
    backend_pid: int


# Every name has its schema, because the user's search_path is in force. Postgres keeps this order: the user's settings
# are remembered before ours take their place.
_STATE = select(
    literal_column("pg_catalog.pg_current_xact_id()::pg_catalog.text").label("xid"),
    func.pg_catalog.current_setting("synchronous_commit").label("synchronous_commit"),
    func.pg_catalog.pg_backend_pid().label("backend_pid"),
    literal_column(ENTER_COLUMNS.as_string(None)),
)
_BEGIN = _STATE.add_columns(
    *(
        func.pg_catalog.set_config(name, value, True)
        for name, value in {
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": "0",
            "lock_timeout": bindparam("lock_timeout"),
            "application_name": bindparam("application"),
            "tcp_user_timeout": bindparam("tcp_user_timeout"),
            "tcp_keepalives_idle": bindparam("tcp_keepalives_idle"),
            "tcp_keepalives_interval": bindparam("tcp_keepalives_interval"),
            "tcp_keepalives_count": bindparam("tcp_keepalives_count"),
        }.items()
    )
)
_BEGIN_17 = _BEGIN.add_columns(func.pg_catalog.set_config("transaction_timeout", "0", True))


def begin_in_tx(connection: Connection, application: str, lock_timeout_seconds: float) -> TransactionState:
    """Set what :func:`ask_to_begin` sets, and say which transaction this is."""
    return _state_in(ask_to_begin(connection, application, lock_timeout_seconds))


def ask_to_begin(connection: Connection, application: str, lock_timeout_seconds: float) -> Asked:
    """
    Set our search_path (and the rest), lift the session's time limits, and ask which transaction this is.

    The server is to notice that this client is gone as soon as the client would notice the same of the server, because
    its locks are in the way of others. All settings are local to the transaction, because a pooler gives the session to
    another client afterwards.
    """
    is_17 = connection.dialect.server_version_info >= (17,)  # type: ignore[operator]
    settings = {
        "application": application,
        "lock_timeout": f"{int(lock_timeout_seconds * 1000)}",
        **server_settings(driver_connection(connection)),
    }
    return Asked(connection, _BEGIN_17 if is_17 else _BEGIN, settings)


def begin_again_in_tx(
    connection: Connection, places: Sequence[str], application: str, lock_timeout_seconds: float
) -> TransactionState:
    """
    Begin another transaction, which sees all queries that have fed these places and keeps new ones out meanwhile.

    :param places: the names of the sink and of its tables.
    """
    # One text, so that no pooler can give the session to others while the session holds a lock. AND CHAIN keeps the
    # user's isolation level. The second lock takes the new snapshot, under the protection of the first. (If another
    # driver of this writer holds its row and waits for the lock, Postgres reports a deadlock, and the batch is tried
    # again.)
    again = sql.SQL(
        "SELECT pg_catalog.pg_advisory_lock(k.key) FROM {keys}; ROLLBACK AND CHAIN; "
        "SELECT pg_catalog.pg_advisory_xact_lock(k.key) FROM {keys}; "
        "SELECT pg_catalog.pg_advisory_unlock(k.key) FROM {keys}"
    ).format(keys=sql.SQL(PLACES_IN_ORDER).format(sql.Literal(list(places))))
    driver_connection(connection).execute(again)
    return begin_in_tx(connection, application, lock_timeout_seconds)


def _state_in(asked: Asked) -> TransactionState:
    row = asked.row()
    assert row is not None  # noqa: S101 (a SELECT without FROM has a row)
    return TransactionState(row["xid"], row["synchronous_commit"], row["backend_pid"])


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
    ask: Callable[[Connection, str | None], _T],
    isolation_level: Literal["READ COMMITTED"] | None = None,
) -> Iterator[Begun[_T]]:
    """
    Begin the transaction of a try; what the block does not commit is rolled back.

    After BEGIN, all that has to be asked travels in one round trip.

    :param ask: asks the ledger in the same trip, and gets the sink's name if it is known by then.
    :param isolation_level: given if the transaction needs it, whatever the role's default is.
    :raises CommitError: SYNCHRONOUS_COMMIT_OFF.
    """
    with session_of_a_try(settings) as session:
        connection = session.execution_options(isolation_level=isolation_level) if isolation_level else session
        begin: Asked | None = None
        try:
            with one_trip(connection):
                # Before our search_path is in force, because a table is found along the user's.
                sink = asked_sink(name_sink, connection)
                begin = ask_to_begin(connection, application_name(run_id), settings.lock_timeout)
                asked = ask(connection, sink.name)
        except psycopg.Error:
            outcome.in_ledger = begin is not None and begin.is_answered
            if not outcome.in_ledger:
                # By itself, what is wrong with a table's name can be told.
                driver_connection(connection).rollback()
                asked_sink(name_sink, connection).read()
            raise
        state = _state_in(begin)
        refuse_lost_on_crash(state)
        yield Begun(connection, sink.read(), state, asked)


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
    _refuse_another(began, _state_in(Asked(connection, _STATE, {})))


def _refuse_another(began: TransactionState, now: TransactionState) -> None:
    refuse_lost_on_crash(now)
    if began.xid != now.xid:
        raise _ended()


@contextmanager
def recording_in_tx(connection: Connection, began: TransactionState, outcome: Outcome) -> Iterator[None]:
    """
    Run the block, which records what was written, in one round trip; the transaction is ready for COMMIT then.

    :raises CommitError: TRANSACTION_ENDED, if it is not the transaction that ``began``; SYNCHRONOUS_COMMIT_OFF.
    """
    driver = driver_connection(connection)
    if driver.info.transaction_status is TransactionStatus.INERROR:
        # Raises that it has failed: an error was swallowed, and it was not one of the ledger's.
        leave_in_tx(driver)
    state: Asked | None = None
    try:
        with outcome.on_ledger(), one_trip(connection):
            # This sets our search_path again.
            state = Asked(connection, _STATE, {})
            yield
            # Deferred triggers of the user's tables run at COMMIT, under the user's search_path.
            leave_in_tx(driver)
    except (psycopg.Error, sqlalchemy.exc.DBAPIError):
        # In another transaction, the record may refer to what was rolled back.
        if state is not None and state.is_answered:
            _refuse_another(began, _state_in(state))
        raise
    # What was recorded in another transaction is rolled back.
    _refuse_another(began, _state_in(state))


def send_commit(url: str, connection: Connection, backend_pid: int, what: Named, outcome: Outcome) -> None:
    """
    Send COMMIT, and return when Postgres has answered COMMIT.

    :param outcome: is unknown from the time when COMMIT is sent until its answer is there.
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
        "The batch's transaction was ended by SQL inside the function (ROLLBACK or COMMIT), so rows and offsets "
        "would no longer be committed together.",
        "Nothing that went through tx before was written, and the stored offsets have not moved. But what the SQL "
        "itself has committed since then stays committed.",
        "Remove transaction control from your SQL and from procedures it calls; use tx.connection.begin_nested() "
        "for what may fail.",
    )
