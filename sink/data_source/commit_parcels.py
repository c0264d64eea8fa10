"""
Commit the parcels of one batch.

Runs in the commit worker. Invariant: rows that came inline, were staged or were received go into the target in the one
transaction that records the batch, and only the rows that the parcels promised do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import psycopg
from pyspark.sql.datasource import WriterCommitMessage

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..encoding.encoded_types import EncodedColumn
from ..identity.origin import Origin
from ..identity.planned_batch import planned_batch, staging_table
from ..options.sink_options import SinkOptions
from ..staging.table import sweep
from ..writing.routes.publication import publication_into
from .parcel import open_parcels
from .parcel_rows import has_received, parcel_rows, promise

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
) -> Verdict:
    """
    Publish the batch that ``messages`` carry, or skip it.

    :raises PgonceError: if neither can be done.
    """
    origin, parcels = open_parcels(messages, batch_id)
    carrier = next((parcel.carrier for parcel in parcels if parcel.carrier), None)

    def identified() -> PlannedBatch:
        reaches = [parcel.reach for parcel in parcels] if options.positions else None
        return planned_batch(options, origin, reaches, carrier.token if carrier else None)

    rows = parcel_rows(columns, options.positions, parcels, staging_table(options, origin))
    work = publication_into(options.sink_name, options.destination, rows)
    may_be_left = bool(rows.staged)
    if carrier and has_received(parcels):
        # Attempts that Spark did not choose may have staged rows because they could not reach the carrier.
        carried = carrier.commit(options, origin, promise(parcels, rows), identified, work.name_sink)
        verdict, may_be_left = carried.verdict, may_be_left or carried.may_sweep
    else:
        if carrier and rows.staged:
            # An attempt that Spark did not choose may have begun a transaction in the carrier, and this one would have
            # to wait for it.
            carrier.give_up()
        verdict = commit_batch(options.commit, identified(), work)
    _sweep(options, origin, may_be_left=may_be_left)
    return verdict


def _sweep(options: SinkOptions, origin: Origin, *, may_be_left: bool) -> None:
    """Drop staging tables that may be left, now and then in any case: no message tells of what failed tries staged."""
    run = origin.run_id, options.sink_label
    if not may_be_left and time.monotonic() < _swept.get(run, -SWEEP_SECONDS) + SWEEP_SECONDS:
        return
    try:
        with connect(options.commit.url, autocommit=True) as connection:
            sweep(connection, origin.query_id, options.sink_label, origin.run_id, origin.batch_id)
    except (psycopg.Error, PgonceError) as error:
        # The batch is published, and the next batch's sweep finds what is left over.
        _log.warning("staging tables are left for the next sweep: %s", error)
    _swept[run] = time.monotonic()
