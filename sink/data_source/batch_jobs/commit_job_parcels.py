"""
Commit the parcels of one run of a batch job.

Runs in the commit worker. Invariant: rows that came inline or were staged go into the target in the one transaction
that records the key, and only the rows that the parcels promised do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from pyspark.sql.datasource import WriterCommitMessage
from sqlalchemy import Connection

from pgonce.offsets_store.commit.batch_job import JobVerdict, JobWork, commit_job
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import connect, driver_connection

from ...encoding.encoded_types import EncodedColumn
from ...options.job_options import JobOptions
from ...writing.publish import Turn, publish_rows_in_tx
from ...writing.rows import Rows
from ...writing.table.table_name import ResolvedName, resolve_table
from ..parcel import Parcel, open_parcels
from ..parcel_rows import parcel_rows
from .content_hash import content_hash
from .job_staging import job_staging_table, sweep_jobs
from .job_task import JobParcel

_log = logging.getLogger("pgonce")


@dataclass
class _RowsIntoTable:
    """The work of the commit; ``found`` is the table after which the sink was named, for the same transaction."""

    options: JobOptions
    rows: Rows
    found: ResolvedName | None = field(default=None)
    sink_name: str = ""

    def name_sink(self, connection: Connection) -> str:
        """The sink's name is the one that the user gave it, else the qualified target table."""
        self.found = resolve_table(driver_connection(connection), self.options.destination.table)
        self.sink_name = self.options.sink_name or self.found.qualified_name
        return self.sink_name

    def publish(self, connection: Connection) -> Published:
        """Write all rows."""
        driver = driver_connection(connection)
        result = publish_rows_in_tx(driver, self.options.destination, self.rows, turn=Turn(self.found))
        targets = {result.table.qualified_name: result.table.oid}
        return Published(self.rows.count(), self.rows.transport, targets=targets, counts=result.counts)


def commit_job_parcels(
    options: JobOptions,
    columns: tuple[EncodedColumn, ...],
    messages: Sequence[WriterCommitMessage | None],
    run: UUID,
) -> JobVerdict:
    """
    Publish the rows that ``messages`` carry, or skip them because their key was published.

    :raises PgonceError: if neither can be done.
    """
    _, parcels = open_parcels(messages, 0)
    table = job_staging_table(options.batch_key, options.sink_label, run)
    rows = parcel_rows(columns, None, parcels, table)
    work = _RowsIntoTable(options, rows)
    content = _hash_of(columns, parcels) if options.batch_hash else None
    job = Job(options.batch_key, run, content, rows.count())
    verdict = commit_job(options.commit, job, JobWork(work.name_sink, work.publish))
    _sweep(options, work.sink_name)
    return verdict


def _hash_of(columns: tuple[EncodedColumn, ...], parcels: Sequence[Parcel]) -> str:
    hashed = [parcel for parcel in parcels if isinstance(parcel, JobParcel)]
    return content_hash(columns, sum(parcel.rows for parcel in hashed), (parcel.row_sum or 0 for parcel in hashed))


def _sweep(options: JobOptions, sink_name: str) -> None:
    """Drop what this run, and runs of keys that are published, have staged: no message tells of what failed."""
    try:
        with connect(options.commit.url, autocommit=True) as connection:
            sweep_jobs(connection, options.sink_label, sink_name)
    except (psycopg.Error, PgonceError) as error:
        # The job is done, and the sweep of the next one finds what is left over.
        _log.warning("staging tables are left for the next batch job's sweep: %s", error)
