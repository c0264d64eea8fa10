"""
Publish one micro-batch: all its rows and its offsets, or nothing.

Runs in the commit worker, or in the foreachBatch function on the driver. Invariant: the batch is recorded in the
transaction that writes its rows; every try begins at the first step, and the attempt's token in the ledger tells a
commit whose answer was lost from one that never happened.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
import sqlalchemy.exc
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from offsets_store import ledger
from offsets_store.connect import engine_for
from offsets_store.errors import ConnectError, PgonceError
from offsets_store.ledger import LockedWriter, TransactionState
from offsets_store.migrations import ensure_ledger
from offsets_store.postgres_errors import driver_error, is_lost_connection, is_transient, ledger_error
from offsets_store.refusals import refusal
from offsets_store.verdict import PUBLISH, SKIP, Batch, Verdict, decide
from sink.errors import CommitError
from sink.lock_watch import LockWatch
from sink.options import CommitSettings
from sink.target import NOTHING
from sink.target_errors import target_error

_log = logging.getLogger("pgonce")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True)
class Published:
    """What went into the target with a batch: rows, and how they came (``inline``, ``staged``, ``function`` ...)."""

    rows: int
    transport: str


@dataclass(frozen=True)
class Work:
    """
    What one commit does: ``name_sink`` says which sink it is, ``publish`` writes the rows.

    Both run inside the transaction, anew at every try. ``sealed`` is for work that runs SQL of the user's.
    """

    name_sink: Callable[[Connection], str]
    publish: Callable[[Connection, Batch], Published]
    sealed: bool = False


def commit_batch(settings: CommitSettings, batch: Batch, work: Work) -> Verdict:
    """
    Publish ``batch``, or skip it where it is proven to be published; the verdict says which.

    :raises RefusedBatch: where it is neither new nor a proven replay.
    :raises TargetError: where the table or the rows are the reason.
    :raises CommitError: where Postgres stayed away or locked past the bounds in ``settings``.
    """
    deadline: float | None = None
    pause = _FIRST_PAUSE_SECONDS
    watch = LockWatch(settings.url, settings.lock_timeout)
    outcome_unknown = False
    while True:
        try:
            return _try_once(settings, batch, work, watch)
        except (ConnectError, psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
            cause = driver_error(error)
            reason = " ".join(str(cause or error).split())
            outcome_unknown |= cause is not None and is_lost_connection(cause)
            # From the first error on, not from the start: publishing itself may take as long as it needs.
            deadline = deadline or time.monotonic() + settings.retry_timeout
            if not _may_try_again(error, cause):
                raise (
                    _unknown(batch, reason) if outcome_unknown and cause is None else _translated(error, cause)
                ) from cause
            if time.monotonic() + pause > deadline:
                raise _unknown(batch, reason) if outcome_unknown else _given_up(settings, batch, error, watch) from None
            watch.armed |= cause is not None and cause.sqlstate == _LOCK_NOT_AVAILABLE
        _log.warning("batch %s of query %s: trying again in %.1f s: %s", batch.batch_id, batch.query_id, pause, reason)
        # Jitter, so that drivers that failed together do not return together.
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret hangs on it)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _translated(error: BaseException, cause: psycopg.Error | None) -> BaseException:
    if cause is None:
        return error
    if " pgonce." in (getattr(error, "statement", None) or ""):
        return ledger_error(cause, "writing the ledger")
    return target_error(cause)


def _try_once(settings: CommitSettings, batch: Batch, work: Work, watch: LockWatch) -> Verdict:
    ensure_ledger(settings.url)
    with engine_for(settings.url).connect() as connection, _discarded_on_error(connection):
        began = ledger.begin_in_tx(connection, application_name(batch.run_id), settings.lock_timeout)
        _refuse_lost_on_crash(began)
        batch = replace(batch, sink_name=work.name_sink(connection))
        with watch.looking(connection, may_end=True):
            locked = ledger.lock_writer_in_tx(connection, batch, settings.remedies.replaces)
        verdict = decide(locked.ledger, batch, settings.remedies)
        if verdict in PUBLISH:
            with watch.looking(connection, may_end=False):
                _publish_in_tx(connection, settings, batch, work, locked, began)
        elif verdict in SKIP:
            _skip_in_tx(connection, settings, batch, verdict, locked)
        else:
            raise refusal(verdict, locked.ledger, batch, settings.remedies)
        _commit(connection)
        _log.info("batch %s of query %s into %s: %s", batch.batch_id, batch.query_id, batch.sink_name, verdict.name)
        return verdict


@contextmanager
def _discarded_on_error(connection: Connection) -> Iterator[None]:
    # A new session for the next try: this one may be dead (SQLAlchemy does not see errors of psycopg's own COPY), or
    # live with settings that an administrator has mended since.
    try:
        yield
    except BaseException:
        connection.invalidate()
        raise


def application_name(run_id: str) -> str:
    """How this run's sessions show in ``pg_stat_activity``; 43 of 63 bytes."""
    return f"pgonce {run_id}"


def _publish_in_tx(
    connection: Connection,
    settings: CommitSettings,
    batch: Batch,
    work: Work,
    locked: LockedWriter,
    began: TransactionState,
) -> None:
    if work.sealed:
        event.listen(connection, "after_cursor_execute", _refuse_ended_transaction)
        ledger.seal_in_tx(connection, locked, batch)
    published = work.publish(connection, batch)
    if work.sealed:
        _refuse_broken_transaction(began, ledger.transaction_state_in_tx(connection))
    ledger.record_batch_in_tx(
        connection,
        locked,
        batch,
        rows=published.rows,
        transport=published.transport,
        retain_batches=settings.retain_batches,
    )
    if locked.ledger.writer is None and settings.remedies.replaces:
        ledger.replace_writer_in_tx(connection, locked, batch, settings.remedies.replaces)


def _skip_in_tx(
    connection: Connection, settings: CommitSettings, batch: Batch, verdict: Verdict, locked: LockedWriter
) -> None:
    if verdict is Verdict.REPLAY:
        ledger.record_replay_in_tx(connection, locked, batch)
    elif verdict is Verdict.ADOPTED:
        ledger.record_batch_in_tx(
            connection, locked, batch, rows=0, transport="adopted", retain_batches=settings.retain_batches
        )


def _commit(connection: Connection) -> None:
    # By hand, for its tag: COMMIT of a failed transaction answers ROLLBACK, and SQLAlchemy would not tell.
    tag = driver_connection(connection).execute("COMMIT").statusmessage
    if tag != "COMMIT":
        raise CommitError(
            "ROLLED_BACK",
            f"Postgres answered {tag} to COMMIT: a statement of this transaction had failed, and its error was "
            "swallowed.",
            NOTHING,
            "Let errors of tx.execute and tx.connection out of your function, or wrap what may fail in a savepoint "
            "(tx.connection.begin_nested()).",
        )


def driver_connection(connection: Connection) -> psycopg.Connection:
    """The psycopg connection under a SQLAlchemy one: only it can COPY."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)  # noqa: S101 (the engine is made for psycopg)
    return raw


def _refuse_lost_on_crash(state: TransactionState) -> None:
    if state.synchronous_commit == "off":
        raise CommitError(
            "SYNCHRONOUS_COMMIT_OFF",
            "synchronous_commit is off for this connection: Postgres would answer COMMIT before the rows are on "
            "disk, and "
            "a crash would lose batches that Spark believes done.",
            NOTHING,
            "Set synchronous_commit to on (or local) for this role or database, or in url: "
            "options=-csynchronous_commit=on.",
        )


def _refuse_broken_transaction(began: TransactionState, ended: TransactionState) -> None:
    _refuse_lost_on_crash(ended)
    if began.xid != ended.xid:
        raise _transaction_ended()


def _transaction_ended() -> CommitError:
    return CommitError(
        "TRANSACTION_ENDED",
        "The batch's transaction was ended by SQL inside the function (ROLLBACK or COMMIT), so that rows and "
        "offsets "
        "would no longer be one.",
        NOTHING,
        "Remove transaction control from your SQL and from procedures it calls; use "
        "tx.connection.begin_nested() for "
        "what may fail.",
    )


def _refuse_ended_transaction(connection: Connection, *_: object) -> None:
    # At once, before the next statement runs, and perhaps is committed, in a transaction of its own.
    if driver_connection(connection).info.transaction_status is TransactionStatus.IDLE:
        raise _transaction_ended()


def _may_try_again(error: BaseException, cause: psycopg.Error | None) -> bool:
    if cause is not None:
        return is_transient(cause)
    return isinstance(error, ConnectError) and error.code == "CONNECT_FAILED"


def _given_up(settings: CommitSettings, batch: Batch, error: BaseException, watch: LockWatch) -> PgonceError:
    cause = driver_error(error)
    if cause is not None and cause.sqlstate == _LOCK_NOT_AVAILABLE:
        return CommitError(
            "LOCKED",
            f"Batch {batch.batch_id} waited {settings.retry_timeout:g} s for a lock that is still held: "
            f"{watch.holders}.",
            NOTHING,
            "End that session or wait for it, then start the query again; lockTimeout and retryTimeout set how "
            "long is waited.",
        )
    if isinstance(error, ConnectError):
        return error
    return CommitError(
        "RETRIES_EXHAUSTED",
        f"Batch {batch.batch_id} could not be committed within {settings.retry_timeout:g} s; the last reason: "
        f"{' '.join(str(cause or error).split())}.",
        NOTHING,
        "Mend the cause and start the query again; retryTimeout sets how long is tried.",
    )


def _unknown(batch: Batch, reason: str) -> CommitError:
    return CommitError(
        "COMMIT_UNKNOWN",
        f"The connection was lost while batch {batch.batch_id} was committed, and Postgres could not be asked since: "
        f"{reason}.",
        "Whether the batch was committed is unknown; its rows and its offsets were, together, or neither.",
        "Start the query again once Postgres can be reached: the ledger tells, and no row is lost or doubled.",
    )
