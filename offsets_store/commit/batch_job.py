"""
Publish one batch job: all its rows and its key in one transaction, or nothing.

Runs in the commit worker. Invariant: the key is recorded in the transaction that writes the rows. A key that is
recorded is never published again, however often and under any scheduler.

The steps of a try, in this order:

1. begin, in a session of the try's own: ``session_of_a_try``, ``begin_in_tx``
2. claim the key, which waits for another job that has claimed it: ``claim_in_tx``
3. if it was published: by this attempt, whose COMMIT was not answered; or by another one, and this one is skipped; or
   with other rows, and this one is refused: ``_skip_in_tx``
4. publish the rows, and record the job: ``_publish_in_tx``, ``_record_in_tx``
5. COMMIT: ``send_commit``

Whether another try follows is decided in :mod:`~pgonce.offsets_store.commit.retrying`, as for the batches of a stream.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from ..errors import RefusedBatch
from ..ledger.batch_jobs import Job, RecordedJob, claim_in_tx, record_job_in_tx, record_skip_in_tx
from ..ledger.published import Published
from ..postgres.connect import driver_connection, one_trip
from ..postgres.lock_watch import LockWatch
from ..postgres.search_path import leave_in_tx
from . import one_transaction
from .notification import notify_in_tx
from .one_transaction import TransactionState, application_name, begin_in_tx, session_of_a_try
from .retrying import tried
from .settings import CommitSettings
from .work import Named, Outcome

_log = logging.getLogger("pgonce")


class JobVerdict(enum.Enum):
    """What became of one run of a batch job; the value is the text for it."""

    PUBLISHED = "its rows were written"
    LANDED = "its rows had been written by an earlier try, whose COMMIT was not answered"
    SKIPPED = "its key had been published, so nothing was written"


@dataclass(frozen=True)
class JobWork:
    """What the commit of a job does; both run inside the transaction, and again at every try."""

    name_sink: Callable[[Connection], str]
    publish: Callable[[Connection], Published]


def commit_job(settings: CommitSettings, job: Job, work: JobWork) -> JobVerdict:
    """
    Publish the job's rows, or skip it because its key was published; the verdict says which.

    :raises RefusedBatch: BATCH_CHANGED or BATCH_NOT_HASHED, if the job has a hash and the recorded one is not the same.
    :raises TargetError: if the table or the rows are the reason.
    :raises CommitError: if Postgres was unavailable, or a lock was held, for longer than ``settings`` allow.
    """

    def once(watch: LockWatch, outcome: Outcome) -> JobVerdict:
        return _publish_or_skip(settings, job, work, watch, outcome)

    verdict = tried(settings, _named(job), once, Outcome())
    if verdict is not JobVerdict.SKIPPED:
        _log.info("%s: %s", _named(job).full, verdict.value)
    return verdict


def _named(job: Job) -> Named:
    name = f"batch job {job.batch_key!r}"
    return Named(name, name, "run the job again")


def _publish_or_skip(
    settings: CommitSettings, job: Job, work: JobWork, watch: LockWatch, outcome: Outcome
) -> JobVerdict:
    with session_of_a_try(settings) as pooled:
        # Not the role's default: under a snapshot that is older than the claim, an overwrite would leave the rows of
        # the job that it has waited for.
        connection = pooled.execution_options(isolation_level="READ COMMITTED")
        # Before our search_path is in force, because a table is found along the user's.
        sink_name = work.name_sink(connection)
        began = begin_in_tx(connection, application_name(str(job.attempt)), settings.lock_timeout)
        one_transaction.refuse_lost_on_crash(began)
        with outcome.on_ledger(), watch.looking(began.backend_pid, may_end=True):
            recorded = claim_in_tx(connection, sink_name, job)
        # The run that had the key before is done, so what is recorded now stays so.
        outcome.unknown = False
        if recorded is None:
            with watch.looking(began.backend_pid, may_end=False):
                published = _publish_in_tx(connection, work, began)
                with outcome.on_ledger():
                    _record_in_tx(settings, connection, sink_name, job, published)
            verdict = JobVerdict.PUBLISHED
        elif recorded.attempt == job.attempt:
            return JobVerdict.LANDED
        else:
            with outcome.on_ledger():
                _skip_in_tx(connection, sink_name, job, recorded)
            verdict = JobVerdict.SKIPPED
        one_transaction.send_commit(settings.url, connection, began.backend_pid, _named(job), outcome)
    if recorded is not None:
        # A warning, because Spark shows nothing less of its Python workers, and save() returns as if rows were written.
        _log.warning("%s", _skipped(sink_name, job, recorded))
    return verdict


def _publish_in_tx(connection: Connection, work: JobWork, began: TransactionState) -> Published:
    leave_in_tx(driver_connection(connection))
    published = work.publish(connection)
    one_transaction.refuse_another_in_tx(connection, began)
    return published


def _record_in_tx(
    settings: CommitSettings, connection: Connection, sink_name: str, job: Job, published: Published
) -> None:
    with one_trip(connection):
        record_job_in_tx(connection, sink_name, job, published)
        notify_in_tx(connection, settings.notify_channel, published, sink=sink_name, batch_key=job.batch_key)
        # Deferred triggers of the user's tables run at COMMIT, under the user's search_path.
        leave_in_tx(driver_connection(connection))


def _skip_in_tx(connection: Connection, sink_name: str, job: Job, recorded: RecordedJob) -> None:
    """:raises RefusedBatch: BATCH_CHANGED or BATCH_NOT_HASHED."""
    if job.content_hash is not None and job.content_hash != recorded.content_hash:
        raise _refused(sink_name, job, recorded)
    record_skip_in_tx(connection, sink_name, job)


def _skipped(sink_name: str, job: Job, recorded: RecordedJob) -> str:
    """What the log says of a job that was skipped; more if it surely had other rows than the published one."""
    by = f"run {recorded.attempt}" + (f" ({recorded.application})" if recorded.application else "")
    said = (
        f"{_named(job).full} into {sink_name}: skipped, and nothing was written, because this key was published at "
        f"{recorded.committed_at:%Y-%m-%d %H:%M:%S %Z}, by {by}, with {recorded.rows} rows"
    )
    if job.rows in (None, recorded.rows):
        return said
    return (
        f"{said}. This run has {job.rows} rows, so they are not the same: if they are to be in the table as well, use "
        "another batchKey; batchHash=true refuses such a job"
    )


def _refused(sink_name: str, job: Job, recorded: RecordedJob) -> RefusedBatch:
    was = f"batchKey {job.batch_key!r} was published for {sink_name} at {recorded.committed_at:%Y-%m-%d %H:%M:%S %Z}"
    if recorded.content_hash is None:
        return RefusedBatch(
            "BATCH_NOT_HASHED",
            f"{was}, but without batchHash, so it is unknown whether it had the same rows as this job.",
            "Nothing of this job was written; the rows of that one are in the table.",
            "Leave batchHash out, and the job is skipped; or use another batchKey, and its rows are added.",
        )
    return RefusedBatch(
        "BATCH_CHANGED",
        f"{was} with {recorded.rows} rows, and they are not the rows of this job: batchHash is set, and the hashes "
        "differ.",
        "Nothing of this job was written; the rows of that one are in the table.",
        "Find out why the input has changed. If the new rows are right, write them under another batchKey: with "
        '.mode("overwrite") or mode=upsert they replace the old ones.',
    )
