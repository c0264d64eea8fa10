"""
Commit the parcels of one batch.

Runs in the commit worker. Invariant: inline and staged rows go into the target in the one transaction that records the
batch, and only what the parcels promised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import psycopg
from pyspark.sql.datasource import WriterCommitMessage
from sqlalchemy import Connection

from offsets_store.connect import connect
from offsets_store.errors import PgonceError
from offsets_store.verdict import Batch, Verdict
from sink.attempt import Published, Work, driver_connection
from sink.catalogue import resolve_table
from sink.checkpointed_batch import batch_by_id, batch_from_checkpoint
from sink.committer import commit_batch
from sink.options import SinkOptions
from sink.parcel import Parcel, open_parcels
from sink.publish import BatchRows, publish_rows_in_tx
from sink.staging import StagedRows, sweep
from sink.task_writer import staging_table
from sink.type_mapping import EncodedColumn

_log = logging.getLogger("pgonce")

# Runs and sinks that this worker has swept for; a new worker sweeps once more.
_swept: set[tuple[str, str]] = set()


def commit_parcels(
    options: SinkOptions,
    columns: tuple[EncodedColumn, ...],
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int,
) -> Verdict:
    """
    Publish the batch that ``messages`` carry, or skip it.

    :raises PgonceError: in words, where neither can be done.
    """
    origin, parcels = open_parcels(messages, batch_id)
    if options.offsets_from == "checkpoint":
        batch = batch_from_checkpoint(options.checkpoint_location, origin, options.query_name)
    else:
        batch = batch_by_id(origin, options.query_name, options.checkpoint_location)
    staged = [parcel for parcel in parcels if parcel.staged]
    rows = BatchRows(
        columns=columns,
        count=sum(parcel.rows for parcel in parcels),
        bodies=lambda: (body for parcel in parcels for body in parcel.bodies),
        staged=StagedRows(staging_table(options, origin), tuple((p.task_attempt_id, p.rows) for p in staged))
        if staged
        else None,
    )

    def publish(connection: Connection, _: Batch) -> Published:
        publish_rows_in_tx(driver_connection(connection), options.destination, rows)
        return Published(rows.count, transport(parcels))

    verdict = commit_batch(
        options.commit, batch, Work(sink_namer(options.sink_name, options.destination.table), publish)
    )
    label = staging_table(options, origin).sink_name
    # Also once a run: a try that failed may have staged rows of which no message ever told.
    if staged or (origin.run_id, label) not in _swept:
        _sweep(options, batch, label)
        _swept.add((origin.run_id, label))
    return verdict


def sink_namer(sink_name: str | None, table: str) -> Callable[[Connection], str]:
    """What names the sink inside the transaction: the user's name for it, else the qualified target table."""

    def name(connection: Connection) -> str:
        return sink_name or resolve_table(driver_connection(connection), table).qualified_name

    return name


def transport(parcels: Iterable[Parcel]) -> str:
    """How the rows came, for the ledger: ``inline``, ``staged`` or ``inline+staged``."""
    ways = {"staged" if parcel.staged else "inline" for parcel in parcels if parcel.rows}
    return "+".join(sorted(ways)) or "inline"


def _sweep(options: SinkOptions, batch: Batch, label: str) -> None:
    try:
        with connect(options.commit.url, autocommit=True) as connection:
            sweep(connection, batch.query_id, label, batch.batch_id)
    except (psycopg.Error, PgonceError) as error:
        # The batch is published; what is left over is found by the next batch's sweep.
        _log.warning("staging tables are left for the next sweep: %s", error)
