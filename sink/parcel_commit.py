"""
Commit the parcels of one batch.

Runs in the commit worker. Invariant: inline and staged rows go into the target in the one transaction that records the
batch, and only what the parcels promised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import psycopg
from pyspark.sql.datasource import WriterCommitMessage

from offsets_store.connect import connect
from offsets_store.errors import PgonceError
from offsets_store.facts import Batch
from offsets_store.offsets import Offsets
from offsets_store.verdict import Verdict
from sink.checkpointed_batch import batch_by_id, batch_from_checkpoint
from sink.committer import commit_batch
from sink.options import SinkOptions
from sink.parcel import Parcel, open_parcels
from sink.publish import BatchRows, publication
from sink.row_positions import kept_bodies
from sink.staged_rows import StagedRows
from sink.staging import StagingTable, sweep
from sink.task_writer import staging_table
from sink.topic_ids import with_topic_ids
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
        reaches = [parcel.reach for parcel in parcels] if options.positions else None
        batch = with_topic_ids(batch_from_checkpoint(options, origin, reaches), options.bootstrap_servers)
    else:
        batch = batch_by_id(origin, options.query_name, options.checkpoint_location)
    table = staging_table(options, origin)
    rows = _rows(options, columns, parcels, table)
    work = publication(options.sink_name, options.destination, rows, transport(parcels))
    verdict = commit_batch(options.commit, batch, work)
    # Also once a run: a try that failed may have staged rows of which no message ever told.
    if rows.staged or (origin.run_id, table.sink_name) not in _swept:
        _sweep(options, batch, table.sink_name)
        _swept.add((origin.run_id, table.sink_name))
    return verdict


def _rows(
    options: SinkOptions, columns: tuple[EncodedColumn, ...], parcels: Sequence[Parcel], table: StagingTable
) -> BatchRows:
    promised = tuple(promise for parcel in parcels for promise in parcel.staged)
    staged = StagedRows(table, promised, options.positions) if promised else None

    def since(stored: Offsets) -> BatchRows:
        kept = [body for parcel in parcels for body in kept_bodies(parcel.bodies, parcel.positions, stored)]
        return BatchRows(
            columns=columns,
            count=lambda: sum(count for _, count in kept) + sum(count for _, count in promised),
            bodies=lambda: (body for body, _ in kept),
            staged=staged and replace(staged, stored=stored),
        )

    return BatchRows(
        columns=columns,
        count=lambda: sum(parcel.rows for parcel in parcels),
        bodies=lambda: (body for parcel in parcels for body in parcel.bodies),
        staged=staged,
        since=since if options.positions else None,
    )


def transport(parcels: Iterable[Parcel]) -> str:
    """How the rows came, for the ledger: ``inline``, ``staged`` or ``inline+staged``."""
    ways = {"staged" if parcel.staged else "inline" for parcel in parcels if parcel.rows}
    return "+".join(sorted(ways)) or "inline"


def _sweep(options: SinkOptions, batch: Batch, label: str) -> None:
    try:
        with connect(options.commit.url, autocommit=True) as connection:
            sweep(connection, batch.query_id, label, batch.run_id, batch.batch_id)
    except (psycopg.Error, PgonceError) as error:
        # The batch is published; what is left over is found by the next batch's sweep.
        _log.warning("staging tables are left for the next sweep: %s", error)
