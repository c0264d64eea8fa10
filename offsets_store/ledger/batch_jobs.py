"""
Record batch jobs, and claim their keys.

Runs in the commit of a batch job. Invariant: every function takes a connection whose transaction the caller owns, at
READ COMMITTED. After one job has claimed a key, another job with that key waits for it; a key that was published stays.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.dialects import postgresql

from ..postgres.connect import driver_connection
from ..postgres.one_trip import Asked
from .compiled import Compiled, send_once
from .migrations import refuse_too_new
from .published import Published
from .tables import LEAST_READER, batch_job_skips, batch_jobs


@dataclass(frozen=True)
class Job:
    """
    One run of a batch job: the key that its rows count once for, and a random id that no other run has.

    ``content_hash`` is None if the rows were not hashed, and ``rows`` if they were not counted.
    """

    batch_key: str
    attempt: UUID
    content_hash: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class RecordedJob:
    """What was published under a key, the attempt that published it, and its process (host and number)."""

    attempt: UUID
    rows: int
    content_hash: str | None
    committed_at: datetime
    application: str | None


_IS_IT = (batch_jobs.c.sink_name == bindparam("sink")) & (batch_jobs.c.batch_key == bindparam("key"))
# INSERT, never SELECT and then INSERT: two jobs could both read "absent". The primary key makes the second one wait
# until the first one's transaction is over.
_CLAIM = (
    postgresql.insert(batch_jobs)
    .values(sink_name=bindparam("sink"), batch_key=bindparam("key"), attempt=bindparam("attempt"))
    .on_conflict_do_nothing()
    .returning(LEAST_READER)
)
_FIND = select(
    batch_jobs.c.attempt,
    batch_jobs.c.rows,
    batch_jobs.c.content_hash,
    batch_jobs.c.committed_at,
    batch_jobs.c.application,
).where(_IS_IT)
_RECORD = Compiled(
    update(batch_jobs)
    .where(_IS_IT)
    .values(
        {
            "rows": bindparam("published_rows"),
            "transport": bindparam("came"),
            "content_hash": bindparam("hash"),
            "targets": bindparam("tables"),
            "counts": bindparam("outcomes"),
            "application": bindparam("application_name"),
            "committed_at": func.clock_timestamp(),
        }
    )
)


def claim_in_tx(connection: Connection, sink_name: str, job: Job) -> RecordedJob | None:
    """
    Claim the job's key for this transaction: None if it is ours now, else what was published under it.

    It waits for another transaction that has claimed the key, and then either has it or sees what was published.

    :raises LedgerError: LEDGER_TOO_NEW.
    """
    asked = {"sink": sink_name, "key": job.batch_key}
    # More than once only if a person deletes the record between the two statements.
    while (claimed := connection.execute(_CLAIM, {**asked, "attempt": job.attempt}).first()) is None:
        found = connection.execute(_FIND, asked).one_or_none()
        if found is not None:
            return RecordedJob(*found)
    # Another job may have upgraded the ledger since this process first looked at it.
    refuse_too_new(claimed.least_reader)
    return None


def record_job_in_tx(connection: Connection, sink_name: str, job: Job, published: Published) -> None:
    """Record what was published under the key that this transaction has claimed."""
    Asked(
        driver_connection(connection),
        _RECORD,
        {
            "sink": sink_name,
            "key": job.batch_key,
            "published_rows": published.rows,
            "came": published.transport,
            "hash": job.content_hash,
            "tables": published.targets,
            "outcomes": published.counts,
            "application_name": f"{socket.gethostname()} pid {os.getpid()}",
        },
    )


def record_skip_in_tx(connection: Connection, sink_name: str, job: Job) -> None:
    """Record that this attempt was skipped; once, however often its commit is tried."""
    skip = postgresql.insert(batch_job_skips).values(sink_name=sink_name, batch_key=job.batch_key, attempt=job.attempt)
    send_once(connection, skip.on_conflict_do_nothing())
