"""
Commit the parcels of one batch.

Runs in the commit worker. Invariant: rows that came inline, were staged or were received go into the target in the one
transaction that records the batch, and only the rows that the parcels promised do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import psycopg
from pyspark.sql.datasource import WriterCommitMessage

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.data_source.parcel import Parcel, open_parcels
from pgonce.sink.data_source.receiver.client import give_up
from pgonce.sink.data_source.receiver.messages import Promise
from pgonce.sink.data_source.receiver.outcome import finished
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.identity.origin import Origin
from pgonce.sink.identity.planned_batch import planned_batch, staging_table
from pgonce.sink.options import SinkOptions
from pgonce.sink.positions.drop_stored_arrow import kept_bodies
from pgonce.sink.staging.staged_rows import StagedRows
from pgonce.sink.staging.table import StagingTable, sweep
from pgonce.sink.target.batch_rows import BatchRows
from pgonce.sink.target.publish import publication

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

    :raises PgonceError: if neither can be done.
    """
    origin, parcels = open_parcels(messages, batch_id)
    reaches = [parcel.reach for parcel in parcels] if options.positions else None
    table = staging_table(options, origin)
    rows = _rows(options, columns, parcels, table)
    receiver = next((parcel.receiver for parcel in parcels if parcel.receiver), None)

    def identified() -> PlannedBatch:
        batch = planned_batch(options, origin, reaches)
        # One token for all tries of this plan: the receiver may have skipped the batch already.
        return replace(batch, attempt=receiver.token) if receiver else batch

    work = publication(options.sink_name, options.destination, rows, transport(parcels))
    # Sweep at least once in a run: a try that failed may have staged rows that no message ever mentioned.
    may_sweep = bool(rows.staged) or (origin.run_id, table.sink_name) not in _swept
    if receiver and any(parcel.way == "received" for parcel in parcels):
        promise = _promise(parcels, rows)
        answer = finished(options, receiver, origin, promise, identified, work.name_sink)
        # Attempts that Spark did not choose may have staged rows because they could not reach the receiver.
        verdict, may_sweep = answer.verdict, may_sweep or answer.may_sweep
    else:
        if receiver and rows.staged:
            # An attempt that Spark did not choose may have begun a transaction in the receiver, and this one would have
            # to wait for it.
            give_up(receiver)
        verdict = commit_batch(options.commit, identified(), work)
    if may_sweep:
        _sweep(options, origin, table.sink_name)
        _swept.add((origin.run_id, table.sink_name))
    return verdict


def _promise(parcels: Sequence[Parcel], rows: BatchRows) -> Promise:
    return Promise(
        transport(parcels),
        {p.partition_id: (p.received_as, p.rows) for p in parcels if p.received_as is not None},
        tuple(rows.bodies()),
        sum(parcel.rows for parcel in parcels if parcel.way == "inline"),
        rows.staged.promised if rows.staged else (),
    )


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
            positions=options.positions,
        )

    return BatchRows(
        columns=columns,
        count=lambda: sum(parcel.rows for parcel in parcels),
        bodies=lambda: (body for parcel in parcels for body in parcel.bodies),
        staged=staged,
        since=since if options.positions else None,
        positions=options.positions,
    )


def transport(parcels: Iterable[Parcel]) -> str:
    """How the rows came, for the ledger: ``inline``, ``received``, ``staged``, or several of them joined by ``+``."""
    ways = {parcel.way for parcel in parcels if parcel.rows}
    return "+".join(sorted(ways)) or "inline"


def _sweep(options: SinkOptions, origin: Origin, label: str) -> None:
    try:
        with connect(options.commit.url, autocommit=True) as connection:
            sweep(connection, origin.query_id, label, origin.run_id, origin.batch_id)
    except (psycopg.Error, PgonceError) as error:
        # The batch is published, and the next batch's sweep finds what is left over.
        _log.warning("staging tables are left for the next sweep: %s", error)
