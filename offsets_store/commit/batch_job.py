"""
Publish one batch job: all its rows and its key in one transaction, or nothing.

Runs in the commit worker. Invariant: the key is recorded in the transaction that writes the rows. A key that is
recorded is never published again, however often and under any scheduler.

The steps of a try are those of a micro-batch (:mod:`~pgonce.offsets_store.commit.one_try`). In place of the writer's
row it locks the key, and waits for another job that has claimed it. If the key was published by this attempt, COMMIT
was not answered. If another one has published it, this job is skipped; or refused, if it has other rows, or if those
that were published are not in the table that it writes to.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

import psycopg

from ..errors import said_of_a_job
from ..ledger.batch_jobs import Job, claim_in_tx, record_job_in_tx, record_skip_in_tx
from ..ledger.published import Published
from ..postgres.connect import forget_users_settings
from ..postgres.lock_watch import LockWatch
from .notification import notify_in_tx
from .one_transaction import begun_transaction, committing
from .refused_job import refuse_elsewhere, refused, skipped
from .retrying import tried
from .settings import CommitSettings
from .work import Done, Named, NamedSink, Outcome, Work

_log = logging.getLogger("pgonce")


class JobVerdict(enum.Enum):
    """What became of one run of a batch job; the value is the text for it."""

    PUBLISHED = "its rows were written"
    LANDED = "its rows had been written by an earlier try, whose COMMIT was not answered"
    SKIPPED = "its key had been published, so nothing was written"


@dataclass(frozen=True)
class CommittedJob:
    """What became of one run of a batch job, and the name of the sink under which its key is recorded."""

    verdict: JobVerdict
    sink_name: str


def commit_job(settings: CommitSettings, job: Job, work: Work[None]) -> CommittedJob:
    """
    Publish the job's rows, or skip it because its key was published; the verdict says which.

    Whether another try follows is decided in :mod:`~pgonce.offsets_store.commit.retrying`, as for batches of a stream.

    :raises RefusedBatch: BATCH_ELSEWHERE, if the key's rows are not in the job's table; BATCH_CHANGED or
        BATCH_NOT_HASHED, if the job has a hash and the recorded one is not the same.
    :raises TargetError: if the table or the rows are the reason.
    :raises CommitError: if Postgres was unavailable, or a lock was held, for longer than ``settings`` allow.
    """

    def once(watch: LockWatch, outcome: Outcome) -> CommittedJob:
        return _publish_or_skip(settings, job, work, watch, outcome)

    with said_of_a_job():
        return tried(settings, _named(job), once, Outcome())


def _named(job: Job) -> Named:
    name = f"batch job {job.batch_key!r}"
    return Named(name, name, "run the job again", {"batch_key": job.batch_key})


def _publish_or_skip(
    settings: CommitSettings, job: Job, work: Work[None], watch: LockWatch, outcome: Outcome
) -> CommittedJob:
    what = _named(job)
    # Not the role's default: under a snapshot that is older than the claim, an overwrite would leave the rows of the
    # job that it has waited for.
    with begun_transaction(
        settings, str(job.attempt), work.name_sink, outcome, lambda *_: None, isolation_level="READ COMMITTED"
    ) as begun:
        connection, sink_name, began = begun.connection, begun.sink.name, begun.state
        table = next(iter(begun.sink.tables), None)
        # The run that had the key before is done, so what is recorded then stays so.
        with outcome.asking_ledger(), watch.looking(began.backend_pid, may_end=True):
            recorded = claim_in_tx(connection, sink_name, table, job)
        if recorded is None:
            with watch.looking(began.backend_pid, may_end=False):
                published = outcome.sent = work.publish_in_tx(connection, None, None)
                _refuse_exchanged(begun.sink, published)
                with committing(settings.url, connection, began, what, outcome):
                    record_job_in_tx(connection, sink_name, job, published)
                    channel = settings.notify_channel
                    notify_in_tx(connection, channel, published, sink=sink_name, batch_key=job.batch_key)
            if published.ran_triggers:
                forget_users_settings(connection, began.backend_pid)
            return _noted(JobVerdict.PUBLISHED, sink_name, outcome)
        if recorded.attempt == job.attempt:
            return _noted(JobVerdict.LANDED, recorded.sink_name, outcome)
        if table is not None:
            refuse_elsewhere(table, job, recorded)
        if job.content_hash is not None and job.content_hash != recorded.content_hash:
            raise refused(job, recorded)
        with committing(settings.url, connection, began, what, outcome):
            record_skip_in_tx(connection, recorded.sink_name, job)
    # A warning, because Spark shows nothing less of its Python workers, and save() returns as if rows were written.
    _log.warning("%s", skipped(table, job, recorded))
    return _noted(JobVerdict.SKIPPED, recorded.sink_name, outcome)


def _refuse_exchanged(sink: NamedSink, published: Published) -> None:
    """:raises psycopg.errors.SerializationFailure: if the table is not the one for which the key was claimed."""
    claimed, written = sink.tables.get(sink.name), (published.targets or {}).get(sink.name)
    if claimed is not None and written != claimed:
        # The other one may have had another name, and have the key's rows under that.
        raise psycopg.errors.SerializationFailure(f"{sink.name} became another table while the job waited for it")


def _noted(verdict: JobVerdict, sink_name: str, outcome: Outcome) -> CommittedJob:
    is_skipped = verdict is JobVerdict.SKIPPED
    outcome.done = Done(verdict.name, sink_name, None if is_skipped else outcome.sent, is_skipped)
    return CommittedJob(verdict, sink_name)
