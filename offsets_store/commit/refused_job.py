"""
What is said of a batch job whose key had been published: why it is skipped, or refused.

Pure: it builds texts from a job and from what the ledger has of its key. Runs in the commit worker, for
:mod:`~pgonce.offsets_store.commit.batch_job`. Each text names the table, the run and the number of rows that were
published, and the statement after which the key can be published again.
"""

from __future__ import annotations

from psycopg import sql

from ..errors import NOTHING_OF_JOB, RefusedBatch
from ..ledger.batch_jobs import Job, RecordedJob

_REPLACE = "To replace the published rows, delete them and the key's record in one transaction, and run the job again:"


def skipped(table: str | None, job: Job, recorded: RecordedJob) -> str:
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


def refuse_elsewhere(table: str, job: Job, recorded: RecordedJob) -> None:
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


def refused(job: Job, recorded: RecordedJob) -> RefusedBatch:
    """The error for a job whose hash is not the recorded one: BATCH_CHANGED, or BATCH_NOT_HASHED if there is none."""
    if recorded.content_hash is None:
        return RefusedBatch(
            "BATCH_NOT_HASHED",
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
