"""
Publish one batch job: all its rows and its key in one transaction, or nothing.

Runs in the commit worker. Invariant: the key is recorded in the transaction that writes the rows. A key that is
recorded is never published again, however often and under any scheduler.

The steps of a try are those of a micro-batch (:mod:`~pgonce.offsets_store.commit.one_try`). In place of the writer's
row it locks the key, and waits for another job that has claimed it. If the key was published by this attempt, COMMIT
was not answered. If another one has published it, this job is skipped; or refused, if it has other rows, or if those
that were published are not in the table that it writes to. The text for each of these names the table, the run and the
number of rows that were published, and the statement after which the key can be published again.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg import sql

from ..errors import NOTHING_OF_JOB, RefusedBatch, said_of_a_job
from ..ledger.batch_jobs import Job, RecordedJob, claim_in_tx, record_job_in_tx, record_skip_in_tx
from ..ledger.published import Published
from ..postgres.lock_watch import LockWatch
from .one_transaction import begun_transaction, committing
from .report import notify_in_tx
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

    :raises RefusedBatch: BATCH_ELSEWHERE, if the key's rows are not in the job's table; BATCH_CHANGED, if the
        job has a hash and the recorded one is not the same.
    :raises TargetError: if the table or the rows are the reason.
    :raises CommitError: if Postgres was unavailable, or a lock was held, for longer than ``settings`` allow.
    """
    with said_of_a_job():
        return tried(settings, _named(job), Outcome(), partial(_publish_or_skip, settings, job, work))


def _named(job: Job) -> Named:
    name = f"batch job {job.batch_key!r}"
    return Named(name, name, "run the job again", {"batch_key": job.batch_key})


def _publish_or_skip(
    settings: CommitSettings, job: Job, work: Work[None], watch: LockWatch, outcome: Outcome
) -> CommittedJob:
    with begun_transaction(settings, str(job.attempt), work.name_sink, outcome, lambda *_: None) as begun:
        connection, sink_name, began = begun.connection, begun.sink.name, begun.state
        table = next(iter(begun.sink.tables), None)
        # The run that had the key before is done, so what is recorded then stays so.
        with outcome.asking_ledger(), watch.looking(began.backend_pid, may_end=True):
            recorded = claim_in_tx(connection, sink_name, table, job)
        if recorded is None:
            with watch.looking(began.backend_pid, may_end=False):
                work.ready_in_tx(connection)
                published = outcome.sent = work.publish(connection, None, None)
                _refuse_exchanged(begun.sink, published)
                with committing(connection, began, outcome):
                    record_job_in_tx(connection, sink_name, job, published)
                    channel = settings.notify_channel
                    notify_in_tx(connection, channel, published, sink=sink_name, batch_key=job.batch_key)
            return _noted(JobVerdict.PUBLISHED, sink_name, outcome)
        if recorded.attempt == job.attempt:
            # Until this commit has returned, a standby may lack what a primary shows that was started again.
            with committing(connection, began, outcome):
                pass
            return _noted(JobVerdict.LANDED, recorded.sink_name, outcome)
        if table is not None:
            _refuse_elsewhere(table, job, recorded)
        if job.content_hash is not None and job.content_hash != recorded.content_hash:
            raise _refused(job, recorded)
        with committing(connection, began, outcome):
            record_skip_in_tx(connection, recorded.sink_name, job)
    # A warning, because Spark shows nothing less of its Python workers, and save() returns as if rows were written.
    _log.warning("%s", _skipped(table, job, recorded))
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


_REPLACE = "To replace the published rows, delete them and the key's record in one transaction, and run the job again:"


def _skipped(table: str | None, job: Job, recorded: RecordedJob) -> str:
    """What the log says of a job that was skipped; more if the rows of the published one are surely others, or gone."""
    by = f"run {recorded.attempt}" + (f" ({recorded.application})" if recorded.application else "")
    why = f"{_published(job, recorded)}, by {by}"
    said = f"batch job {job.batch_key!r}: skipped, and nothing was written, because {why}"
    if table is not None and _is_created_again(recorded):
        return (
            f"{said}. But {table} was created again since then; if it lacks these rows, delete the key's record, and "
            f"run the job again: {_free(job, recorded)}"
        )
    if job.rows in (None, recorded.rows):
        return said
    return (
        f"{said}. This run has {job.rows} rows, so they are not the same (batchHash=true refuses such a job). "
        f"{_REPLACE} {_free(job, recorded)}"
    )


def _published(job: Job, recorded: RecordedJob) -> str:
    """What the ledger has of the job, as a sentence without its end."""
    tables = recorded.targets or {recorded.sink_name: 0}
    named = "" if recorded.sink_name in tables else f" with sinkName {recorded.sink_name!r}"
    called = "" if recorded.called in (None, *tables) else f", which is called {recorded.called} now,"
    return (
        f"batchKey {job.batch_key!r} was published{named} into {', '.join(tables)}{called} at "
        f"{recorded.committed_at:%Y-%m-%d %H:%M:%S %Z} with {recorded.rows} rows"
    )


def _free(job: Job, recorded: RecordedJob) -> str:
    """The statement after which the key can be published again."""
    statement = sql.SQL("DELETE FROM pgonce.batch_jobs WHERE sink_name = {} AND batch_key = {};")
    return statement.format(recorded.sink_name, job.batch_key).as_string(None)


def _is_created_again(recorded: RecordedJob) -> bool:
    """Whether the table that got the rows is gone; unknown, and so not, if its oid is 0."""
    return recorded.called is None and 0 not in (recorded.targets or {"": 0}).values()


def _refuse_elsewhere(table: str, job: Job, recorded: RecordedJob) -> None:
    """:raises RefusedBatch: BATCH_ELSEWHERE, if the job's table is not the one into which the key was published."""
    targets = recorded.targets or {}
    is_in_place = table in targets and recorded.called is None
    if not targets or (recorded.oid is not None and (recorded.has_rows or is_in_place)):
        return
    if recorded.called is None:
        remedy = f"If no table has its rows, delete the key's record, and run the job again: {_free(job, recorded)}"
    else:
        remedy = (
            f"If the rows belong in {recorded.called}, name it in table, and the job is skipped. If {table} is to "
            "have them as well, give the job a sinkName of its own, or none if it has one."
        )
    there = "does not exist" if recorded.oid is None else "is not known to be that table"
    has_them = f" If {table} has these rows all the same, because they were copied, do not run this job again."
    raise RefusedBatch(
        "BATCH_ELSEWHERE",
        f"{_published(job, recorded)}. But {table}, into which this job writes, {there}.",
        NOTHING_OF_JOB,
        remedy if recorded.oid is None else remedy + has_them,
    )


def _refused(job: Job, recorded: RecordedJob) -> RefusedBatch:
    """The error for a job whose hash is not the recorded one: BATCH_CHANGED."""
    if recorded.content_hash is None:
        return RefusedBatch(
            "BATCH_CHANGED",
            f"{_published(job, recorded)}, but without batchHash, so it is unknown whether this job has the same rows.",
            NOTHING_OF_JOB,
            f"Leave batchHash out, to skip the job. {_REPLACE} {_free(job, recorded)}",
        )
    return RefusedBatch(
        "BATCH_CHANGED",
        f"{_published(job, recorded)}, and they are not the rows of this job: batchHash is set, and the hashes differ.",
        NOTHING_OF_JOB,
        "Find out why the input has changed. To append the new rows under another batchKey would double those that "
        "have not changed, and overwrite would replace all rows of the table, also those of other jobs. "
        f"{_REPLACE} {_free(job, recorded)}",
    )
