"""
Commit the parcels of one batch of a stream, or of one run of a batch job, or give them up.

Runs in the commit worker. Invariant: rows that came inline, were staged or were received go into the target in the one
transaction that records the batch or the key, and only the rows that the parcels promised do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

import psycopg
from pyspark.sql.datasource import WriterCommitMessage

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.failures import Failed, failures_kept
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ..encoding.encoded_types import EncodedColumn
from ..identity.from_checkpoint import Origin
from ..identity.planned_batch import planned_batch, staging_table
from ..options.sink_options import JobOptions, SinkOptions
from ..positions import EncodedRows, Reach, widen
from ..staging import drop_staging_table, sweep, sweep_jobs
from ..writing.rooms import Rooms
from ..writing.write_batch import work_into
from .parcel import Parcel, content_hash, open_parcels
from .promise import Promise, promised_rows

_log = logging.getLogger("pgonce")

# A task of a run that was stopped may stage rows after the sweep of its successor's first batch. A sweep that finds
# nothing takes a connection and one statement: a few milliseconds.
SWEEP_SECONDS = 60.0
# When this worker has last swept, by run and sink; a new worker sweeps once more.
_swept: dict[tuple[str, str], float] = {}


def commit_parcels(
    options: SinkOptions,
    columns: tuple[EncodedColumn, ...],
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int,
    rooms: Rooms,
) -> Verdict:
    """
    Publish the batch of a stream that ``messages`` carry, or skip it.

    :raises PgonceError: if neither can be done.
    """
    origin, parcels = open_parcels(messages, batch_id)
    # One plan made all of them.
    columns = parcels[0].columns or columns
    failed = Failed("commit", origin.query_id, options.query_name, run_id=origin.run_id, batch_id=origin.batch_id)
    promised, table = promise(parcels), staging_table(options, origin)
    receiver = next((parcel.offer.receiver() for parcel in parcels if parcel.offer), None)

    def identified() -> PlannedBatch:
        reach = promised.reach if options.positions else None
        return planned_batch(options, origin, reach, receiver.token if receiver else None)

    def work_with(received: Callable[[], Iterable[EncodedRows]]) -> Work[Batch]:
        rows = promised_rows(columns, options.positions, promised, received, table)
        return work_into(options.sink_name, options.destination, rows, rooms=rooms)

    # The error of a commit ends here once, in the driver or in a receiver. (That of an early try does not.)
    with failures_kept(options.commit.url, failed):
        if receiver and promised.received:
            verdict = receiver.commit(options, origin, promised, identified, work_with)
        else:
            if receiver and (promised.staged or receiver.has_kept_rows()):
                # An attempt that Spark did not choose may have begun a transaction in the receiver, and this one would
                # have to wait for it.
                receiver.give_up()
            verdict = commit_batch(options.commit, identified(), work_with(tuple))
    # Now and then in any case, because no message tells of what tries have staged that failed, or were not chosen.
    run = origin.run_id, options.sink_label
    if promised.staged or time.monotonic() >= _swept.get(run, -SWEEP_SECONDS) + SWEEP_SECONDS:
        _sweep(options, lambda c: sweep(c, origin.query_id, options.sink_label, origin.run_id, origin.batch_id))
        _swept[run] = time.monotonic()
    return verdict


def note_unreached(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Have later plans know that executors did not find the receiver of this batch."""
    for parcel in messages:
        if isinstance(parcel, Parcel) and parcel.offer and parcel.unreached:
            parcel.offer.receiver().note_unreached(parcel.unreached)
            return


def commit_job_parcels(
    options: JobOptions,
    columns: tuple[EncodedColumn, ...],
    messages: Sequence[WriterCommitMessage | None],
    rooms: Rooms,
) -> JobVerdict:
    """
    Publish the rows of a batch job that ``messages`` carry, or skip them because their key was published.

    :raises PgonceError: if neither can be done.
    """
    origin, parcels = open_parcels(messages, 0)
    promised = promise(parcels)
    rows = promised_rows(columns, options.positions, promised, tuple, staging_table(options, origin))
    sums = [parcel.row_sum or 0 for parcel in parcels]
    content = content_hash(columns, promised.rows, sums) if options.batch_hash else None
    job = Job(options.batch_key, UUID(origin.run_id), content, promised.rows)
    done = commit_job(options.commit, job, work_into(options.sink_name, options.destination, rows, rooms=rooms))
    # What this run, and runs of keys that are published, have staged: no message tells of what failed.
    _sweep(options, lambda connection: sweep_jobs(connection, done.sink_name, origin.run_id))
    return done.verdict


def give_up_parcels(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """
    Drop what the tasks of a batch that failed have staged, and what a receiver took.

    A commit that is still under way holds a lock on that table, so the table is never dropped under it.
    """
    parcels = [message for message in messages if isinstance(message, Parcel)]
    for offer in {parcel.offer for parcel in parcels if parcel.offer}:
        offer.receiver().give_up()
    tables = {staging_table(options, parcel.origin).name for parcel in parcels if parcel.staged}

    def drop(connection: psycopg.Connection) -> None:
        for name in tables:
            drop_staging_table(connection, name)

    if tables:
        _sweep(options, drop)


def give_up_job_parcels(options: JobOptions, run: Origin, messages: Sequence[WriterCommitMessage | None]) -> None:
    """
    Drop what a run of a batch job has staged, of which a task or the commit has failed.

    A commit that is still under way holds a lock on that table, so the table is never dropped under it. What a task
    that Spark is still killing stages afterwards stays until the key is published.
    """
    # A task that failed has sent no message, and may have staged rows all the same.
    parcels = [message for message in messages if isinstance(message, Parcel)]
    is_complete = 0 < len(parcels) == len(messages)
    if is_complete and not any(parcel.staged for parcel in parcels):
        return

    def drop(connection: psycopg.Connection) -> None:
        # It is missing if no task of any job has staged rows yet.
        ensure_ledger(options.commit.url, connection)
        drop_staging_table(connection, staging_table(options, run).name)

    _sweep(options, drop)


def promise(parcels: Sequence[Parcel]) -> Promise:
    """What these parcels promise."""
    reach: Reach = {}
    for parcel in parcels:
        widen(reach, parcel.reach)
    return Promise(
        "+".join(sorted({way for parcel in parcels if parcel.rows for way in parcel.ways})) or "inline",
        {parcel.partition_id: parcel.received for parcel in parcels if parcel.received},
        tuple(rows for parcel in parcels for rows in parcel.inline),
        tuple(mark for parcel in parcels for mark in parcel.staged),
        tuple(row for parcel in parcels for row in parcel.unfit),
        reach,
    )


def _sweep(options: SinkOptions | JobOptions, drop: Callable[[psycopg.Connection], None]) -> None:
    """Drop staging tables that no batch needs any more."""
    try:
        with connect(options.commit.url, autocommit=True) as connection:
            drop(connection)
    except (psycopg.Error, PgonceError) as error:
        # The batch is decided, and the next sweep finds what is left over.
        _log.warning("staging tables are left for the next sweep: %s", error)
