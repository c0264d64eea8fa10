"""
Which batch jobs were published, and how often was each skipped?

Runs wherever somebody asks. Invariant: it only reads, in a transaction that the caller owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, desc, func, select

from ..ledger.tables import batch_job_skips, batch_jobs


@dataclass(frozen=True)
class StoredJob:
    """
    One published batch job. ``attempt`` is the random id of the run that published it.

    ``skips`` counts the runs that were skipped since, the newest of them at ``last_skipped_at``. ``content_hash`` is
    None if the rows were not hashed. ``counts`` says what became of the rows, as in
    :class:`~pgonce.offsets_store.status.stored.StoredBatch`.
    """

    sink_name: str
    batch_key: str
    attempt: UUID
    rows: int
    transport: str
    content_hash: str | None
    targets: dict[str, int] | None
    counts: dict[str, int] | None
    application: str | None
    committed_at: datetime
    skips: int
    last_skipped_at: datetime | None


def newest_jobs(
    connection: Connection, limit: int, sink: str | None = None, batch_key: str | None = None
) -> list[StoredJob]:
    """The newest ``limit`` batch jobs, the newest first; of one sink, or under one key, if these are given."""
    chosen = select(batch_jobs).order_by(desc(batch_jobs.c.committed_at)).limit(limit)
    if sink is not None:
        chosen = chosen.where(batch_jobs.c.sink_name == sink)
    if batch_key is not None:
        chosen = chosen.where(batch_jobs.c.batch_key == batch_key)
    job = chosen.subquery("job")
    of_job = (batch_job_skips.c.sink_name == job.c.sink_name) & (batch_job_skips.c.batch_key == job.c.batch_key)
    found = select(
        job,
        select(func.count()).where(of_job).scalar_subquery().label("skips"),
        select(func.max(batch_job_skips.c.skipped_at)).where(of_job).scalar_subquery().label("last_skipped_at"),
    ).order_by(desc(job.c.committed_at))
    return [StoredJob(**row) for row in connection.execute(found).mappings()]
