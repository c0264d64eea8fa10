"""
Commit a batch: try it until it is committed, or until it is known why it cannot be.

Runs in the commit worker, in a receiver, or in the foreachBatch function on the driver. Invariant: every try begins at
the first step. The attempt's token in the ledger distinguishes a commit whose answer was lost from one that never
happened. While the ledger cannot be asked, the outcome is called unknown, never failed.

A transaction may begin before all rows are there (:class:`EarlyTry`). It is one try: if it fails, the commit that
begins after the rows are there meets the same error, and raises it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TypeVar

import psycopg
import sqlalchemy.exc

from ..errors import NOTHING, CommitError, ConnectError, PgonceError, UnknownOutcomeError, without_its_words
from ..ledger.migrations import forget_ledger
from ..postgres.backoff import Tries, in_one_line
from ..postgres.lock_watch import HeldByOthersError, LockWatch
from ..postgres.refused_rows import target_error
from ..postgres.translate import (
    driver_error,
    is_ledger_gone,
    is_standby,
    is_statement_pooling,
    ledger_error,
    passes,
    without_values,
)
from ..verdict.decide import Verdict
from ..verdict.facts import Batch, PlannedBatch
from .one_try import ask_or_skip, has_committed, publish_or_skip
from .report import reported
from .settings import CommitSettings
from .work import Named, NameSink, NotNowError, Outcome, Work, named

_log = logging.getLogger("pgonce")

_T = TypeVar("_T")


def commit_batch(
    settings: CommitSettings, planned: PlannedBatch, work: Work[Batch], *, outcome_unknown: bool = False
) -> Verdict:
    """
    Publish the batch, or skip it if it is proven to be published; the verdict says which.

    :param outcome_unknown: whether an earlier call for this same attempt may have been committed.
    :raises RefusedBatch: if it is neither new nor a proven replay.
    :raises TargetError: if the table or the rows are the reason.
    :raises CommitError: if Postgres was unavailable, or a lock was held, for longer than ``settings`` allow.
    """
    return tried(settings, named(planned), Outcome(outcome_unknown), partial(publish_or_skip, settings, planned, work))


def what_became_of(settings: CommitSettings, planned: PlannedBatch, name_sink: NameSink) -> Verdict:
    """
    Ask the ledger what the batch is, if another process may have published it; skip it if that is proven.

    The ledger is read under the writer's lock, when no transaction of that process is open any more. A verdict in
    :data:`~pgonce.offsets_store.verdict.decide.PUBLISH` says that the batch is not there. It is not written here.

    :raises RefusedBatch: if it is neither new nor a proven replay.
    :raises PgonceError: if the ledger could not be asked.
    """
    return tried(settings, named(planned), Outcome(), partial(ask_or_skip, settings, planned, name_sink))


def tried(settings: CommitSettings, what: Named, outcome: Outcome, one_try: Callable[[LockWatch, Outcome], _T]) -> _T:
    """The answer of the first try that needs no other one, which is reported; or the error for the last one."""
    tries = _CommitTries(settings, what, outcome)
    with reported(what, outcome):
        while True:
            with tries as watch:
                return one_try(watch, outcome)


_BEGINS_AGAIN = "batch %s begins again when all its rows have arrived: %s"


@dataclass
class EarlyTry:
    """
    The one try that may come before the commit.

    Call :meth:`begin` first, or not at all. Then call :meth:`commit`, unless ``verdict`` says what became of the batch.

    ``verdict`` is what became of the batch, if the try succeeded. ``outcome_unknown`` tells the commit that follows
    that the try may have been committed, although its answer was lost.
    """

    settings: CommitSettings
    verdict: Verdict | None = None
    outcome_unknown: bool = False

    def begin(self, planned: PlannedBatch, work: Work[Batch]) -> None:
        """Publish or skip the batch now, or leave it to :meth:`commit`. No error gets out of this."""
        try:
            # One try only: while rows are missing, this transaction should not hold up other sessions, or end them.
            self.verdict = commit_batch(replace(self.settings, retry_timeout=0), planned, work)
        except NotNowError as why:
            _log.info(_BEGINS_AGAIN, planned.batch_id, why)
        except Exception as error:  # noqa: BLE001 (an error that lasts is met again)
            self.outcome_unknown = isinstance(error, UnknownOutcomeError)
            _log.warning(_BEGINS_AGAIN, planned.batch_id, _reason(error))

    def commit(self, planned: PlannedBatch, work: Work[Batch]) -> Verdict:
        """Publish or skip the batch, after any outcome of the early try, in as many tries as the settings allow."""
        return commit_batch(self.settings, planned, work, outcome_unknown=self.outcome_unknown)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PgonceError) else without_its_words(error)


class _CommitTries(Tries):
    """
    The tries of one commit, as often as ``settings`` allow. Each gets the watch that finds out who holds locks.

    The error that is raised says what is known of the batch then.
    """

    def __init__(self, settings: CommitSettings, what: Named, outcome: Outcome) -> None:
        trying = f"{what.full}: trying again"
        super().__init__(settings.retry_timeout, log=_log, trying=trying, failed=self._final)
        self._what, self._outcome, self._settings = what, outcome, settings
        self._watch = LockWatch(settings.url, settings.lock_timeout)

    def __enter__(self) -> LockWatch:
        """Begin a try, which has not come to the ledger yet."""
        super().__enter__()
        self._outcome.in_ledger = False
        return self._watch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """After a try that did not get a lock, have the next one find out who holds it."""
        if isinstance(error, (psycopg.Error, sqlalchemy.exc.DBAPIError)):
            self._watch.armed |= _is_lock_timeout(error)
            self._watch.holders = error.holders if isinstance(error, HeldByOthersError) else self._watch.holders
        return super().__exit__(kind, error, at)

    def may_pass(self, error: Exception) -> bool:
        """While the outcome is unknown, also any error that prevents asking the ledger, which alone can tell it."""
        is_of_postgres = isinstance(error, ConnectError) or not isinstance(error, PgonceError)
        return (
            passes(error) or (self._outcome.unknown and is_of_postgres) or _will_be_promoted(error, self._settings.url)
        )

    def _final(self, error: Exception) -> Exception:
        if self._outcome.unknown:
            # This try failed before it could read the ledger, and only the ledger tells what an earlier try has done.
            final: Exception = _unknown(self._what, error)
        elif self.may_pass(error):
            # But the time is up.
            final = _given_up(error, self._what, self._settings, self._watch, self._outcome)
        else:
            final = _translated(error, self._settings.url, self._what, in_ledger=self._outcome.in_ledger)
        if isinstance(final, PgonceError):
            final.sink_name = self._outcome.sink_name
        return final


def _translated(error: Exception, url: str, what: Named, *, in_ledger: bool) -> Exception:
    cause = driver_error(error)
    if cause is None:
        return error
    if is_ledger_gone(cause):
        forget_ledger(url)
    if in_ledger or is_statement_pooling(cause) or is_ledger_gone(cause):
        return ledger_error(cause, "writing the ledger")
    return target_error(cause, again=what.again)


def _will_be_promoted(error: Exception, url: str) -> bool:
    # A process that has committed before may now meet a standby: in a failover, its name or address may lead there
    # before it is promoted, or to a primary that has just become a standby.
    cause = driver_error(error)
    return cause is not None and is_standby(cause) and has_committed(url)


def _is_lock_timeout(error: Exception) -> bool:
    return isinstance(driver_error(error), psycopg.errors.LockNotAvailable)


def _given_up(error: Exception, what: Named, settings: CommitSettings, watch: LockWatch, outcome: Outcome) -> Exception:
    seconds, reason, cause = settings.retry_timeout, in_one_line(error), driver_error(error)
    if _is_lock_timeout(error):
        # The first try waits for lock_timeout, however short the time for others is.
        waited = max(seconds, settings.lock_timeout)
        within = (
            "The session is of this same run: if a function calls another writer for a table that it has locked "
            "itself, have it write through tx. Otherwise: "
        )
        held = f"{what.begins} waited {waited:g} s for a lock that is still held: {watch.holders}"
        locked = CommitError(
            "LOCKED",
            f"{held} (the last try: {reason}).",
            NOTHING,
            f"{within if watch.has_own else ''}End that session or wait for it, then {what.again}; lockTimeout and "
            "retryTimeout set how long a batch waits.",
        )
        locked.kept = f"{held}."
        return locked
    if isinstance(error, ConnectError) or _will_be_promoted(error, settings.url):
        return _translated(error, settings.url, what, in_ledger=outcome.in_ledger)
    gave_up = f"{what.begins} could not be committed within {seconds:g} s."
    exhausted = CommitError(
        "RETRIES_EXHAUSTED",
        f"{gave_up} The last error was: {reason}.",
        NOTHING,
        f"Repair the cause and {what.again}; retryTimeout sets for how long a batch is tried.",
    )
    exhausted.kept = f"{gave_up} The last error was {without_values(cause)}." if cause else gave_up
    return exhausted


def _unknown(what: Named, error: Exception) -> UnknownOutcomeError:
    reason = error.what.rstrip(".") if isinstance(error, PgonceError) else in_one_line(error)
    return unknown_outcome(
        f"The connection was lost while {what.short} was committed, and Postgres could not be asked afterwards: "
        f"{reason}.",
        what.again,
    )


def unknown_outcome(what: str, again: str = "start the query again") -> UnknownOutcomeError:
    """The error for a batch that may have been committed, while the ledger cannot be asked."""
    unknown = UnknownOutcomeError(
        "COMMIT_UNKNOWN",
        what,
        "Whether the batch was committed is unknown. Its rows and its offsets were committed together, or not at all.",
        f"When Postgres can be reached, {again}: the ledger shows whether the batch was committed, and no row is "
        "lost or doubled.",
    )
    unknown.kept = "The COMMIT of the batch was not answered, and the ledger could not be asked afterwards."
    return unknown
