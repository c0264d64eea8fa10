"""
How often is a batch tried, and what is known when no try has succeeded?

Runs in the commit worker, in a receiver, or in the foreachBatch function on the driver. Invariant: every try begins at
the first step. The attempt's token in the ledger distinguishes a commit whose answer was lost from one that never
happened. While the ledger cannot be asked, the outcome is called unknown, never failed.
"""

from __future__ import annotations

import logging
import time

import psycopg
import sqlalchemy.exc

from pgonce.offsets_store.commit.one_try import Outcome, Question, Work, try_once
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import NOTHING, CommitError, ConnectError, PgonceError
from pgonce.offsets_store.ledger.migrations import forget_ledger
from pgonce.offsets_store.postgres.backoff import Backoff
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.offsets_store.postgres.translate import (
    driver_error,
    is_ledger_gone,
    is_statement_pooling,
    is_transient,
    ledger_error,
)
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Batch

_log = logging.getLogger("pgonce")

_LOCK_NOT_AVAILABLE = "55P03"


def commit_batch(settings: CommitSettings, batch: Batch, work: Work, *, outcome_unknown: bool = False) -> Verdict:
    """
    Publish ``batch``, or skip it if it is proven to be published; the verdict says which.

    :param outcome_unknown: whether an earlier call for this same attempt may have been committed.
    :raises RefusedBatch: if it is neither new nor a proven replay.
    :raises TargetError: if the table or the rows are the reason.
    :raises CommitError: if Postgres stayed away, or a lock was held, for longer than ``settings`` allow.
    """
    return _patiently(settings, batch, work, outcome_unknown=outcome_unknown)


def what_became_of(settings: CommitSettings, batch: Batch, question: Question) -> Verdict:
    """
    Ask the ledger what ``batch`` is, if another process may have published it; skip it if that is proven.

    The ledger is read under the writer's lock, when no transaction of that process is open any more. A verdict in
    :data:`~pgonce.offsets_store.verdict.decide.PUBLISH` says that the batch is not there. It is not written here.

    :raises RefusedBatch: if it is neither new nor a proven replay.
    :raises PgonceError: if the ledger could not be asked.
    """
    return _patiently(settings, batch, question, outcome_unknown=False)


def _patiently(settings: CommitSettings, batch: Batch, work: Question, *, outcome_unknown: bool) -> Verdict:
    backoff = Backoff(settings.retry_timeout)
    watch = LockWatch(settings.url, settings.lock_timeout)
    outcome = Outcome(outcome_unknown)
    while True:
        try:
            return try_once(settings, batch, work, watch, outcome)
        except (ConnectError, psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
            cause = driver_error(error)
            reason = " ".join(str(cause or error).split()).rstrip(".")
            # While the outcome is unknown, only the ledger can tell it, so whatever prevents asking it is tried again.
            if not (outcome.unknown or _may_try_again(error, cause)):
                # Without its cause: a traceback would print the DETAIL, in which Postgres repeats a whole row.
                if cause is not None and is_ledger_gone(cause):
                    forget_ledger(settings.url)
                raise _translated(error, cause).with_traceback(error.__traceback__) from None
            pause = backoff.next_pause()
            if pause is None:
                patience = settings.retry_timeout
                final = _unknown(batch, reason) if outcome.unknown else _given_up(error, batch, reason, patience, watch)
                raise final from None
            watch.armed |= cause is not None and cause.sqlstate == _LOCK_NOT_AVAILABLE
        except PgonceError as error:
            if not outcome.unknown:
                raise
            # It was raised before the ledger was read, and so without knowing what an earlier try has done.
            raise _unknown(batch, error.what.rstrip(".")) from None
        _log.warning("batch %s of query %s: trying again in %.1f s: %s", batch.batch_id, batch.query_id, pause, reason)
        time.sleep(pause)


def _translated(error: BaseException, cause: psycopg.Error | None) -> BaseException:
    if cause is None:
        return error
    if is_statement_pooling(cause) or is_ledger_gone(cause) or " pgonce." in (getattr(error, "statement", None) or ""):
        return ledger_error(cause, "writing the ledger")
    return target_error(cause)


def _may_try_again(error: BaseException, cause: psycopg.Error | None) -> bool:
    if cause is not None:
        return is_transient(cause)
    return isinstance(error, ConnectError) and error.may_pass


def _given_up(error: BaseException, batch: Batch, reason: str, seconds: float, watch: LockWatch) -> PgonceError:
    cause = driver_error(error)
    if cause is not None and cause.sqlstate == _LOCK_NOT_AVAILABLE:
        return CommitError(
            "LOCKED",
            f"Batch {batch.batch_id} waited {seconds:g} s for a lock that is still held: {watch.holders} (the last "
            f"try: {reason}).",
            NOTHING,
            "End that session or wait for it, then start the query again; lockTimeout and retryTimeout set how long a "
            "batch waits.",
        )
    if isinstance(error, ConnectError):
        return error
    return CommitError(
        "RETRIES_EXHAUSTED",
        f"Batch {batch.batch_id} could not be committed within {seconds:g} s; the last reason: {reason}.",
        NOTHING,
        "Repair the cause and start the query again; retryTimeout sets for how long a batch is tried.",
    )


def left_unknown(error: Exception) -> bool:
    """Whether ``error`` is that of a commit that may have been done."""
    return isinstance(error, CommitError) and error.code == "COMMIT_UNKNOWN"


def _unknown(batch: Batch, reason: str) -> CommitError:
    return unknown_outcome(
        f"The connection was lost while batch {batch.batch_id} was committed, and Postgres could not be asked since: "
        f"{reason}."
    )


def unknown_outcome(what: str) -> CommitError:
    """The error for a batch that may have been committed, while the ledger cannot be asked."""
    return CommitError(
        "COMMIT_UNKNOWN",
        what,
        "Whether the batch was committed is unknown. Its rows and its offsets were committed together, or not at all.",
        "Start the query again when Postgres can be reached: the ledger knows, and no row is lost or doubled.",
    )
