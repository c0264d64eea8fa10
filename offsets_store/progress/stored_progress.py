"""
Store progress events in the ledger, and fill in offsets that only they tell.

Runs on the driver, in the listener's thread. Invariant: nothing here waits for a commit: the writer's row is changed
only if no session holds it, and no batch id and no owner ever moves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import Connection, delete, desc, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from ..ledger.record import is_pruned_at
from ..ledger.tables import batches, progress, writers
from ..ledger.writers import records_in_tx, writers_in_tx
from ..postgres.bounds import enter_in_tx
from ..postgres.connect import driver_connection
from ..verdict.facts import Recorded, Writer
from .heard import Heard, disagreement

KEPT_A_QUERY = 1000


def begin_in_tx(connection: Connection) -> None:
    """Set our search_path, and bounds for all that is done in the transaction."""
    # With two listeners on one query, or another session's lock on these tables, transactions must not pile up.
    enter_in_tx(driver_connection(connection), lock_seconds=2, statement_seconds=10)


def store_progress_in_tx(connection: Connection, heard: Heard) -> str | None:
    """
    Store one event, and fill in offsets that are unknown otherwise; return the text for what disagrees with the ledger.
    """
    begin_in_tx(connection)
    found = disagreement(heard, _sinks_in_tx(connection, heard))
    row: dict[str, Any] = {**dataclasses.asdict(heard), "disagreement": found, "lag": heard.lag}
    connection.execute(
        insert(progress)
        .values(row)
        .on_conflict_do_update(
            index_elements=["query_id", "run_id", "batch_id"],
            set_={**row, "received_at": func.clock_timestamp()},
        )
    )
    if is_pruned_at(heard.batch_id):
        _prune_in_tx(connection, heard.query_id)
    if found is None:
        # Last, because it is the only thing that a commit could have to wait for.
        _fill_in_tx(connection, heard)
    return found


def _sinks_in_tx(connection: Connection, heard: Heard) -> list[tuple[Writer, Recorded | None]]:
    """Each writer of the query, with its record of the event's batch."""
    found = []
    for writer in writers_in_tx(connection, writers.c.query_id == heard.query_id):
        records = records_in_tx(connection, writer, batches.c.batch_id == heard.batch_id)
        found.append((writer, records.get(heard.batch_id)))
    return found


def _fill_in_tx(connection: Connection, heard: Heard) -> None:
    """
    Give a batch that is judged by ids alone the offsets of the event, if this run has published it.

    If the next commit holds the writer's row, the row stays as it is: readers look at the batch's record too.
    """
    connection.execute(
        update(batches)
        .where(
            batches.c.writer_id == writers.c.writer_id,
            batches.c.generation == writers.c.generation,
            writers.c.query_id == heard.query_id,
            writers.c.guarantee == "ids",
            batches.c.batch_id == heard.batch_id,
            batches.c.run_id == heard.run_id,
            batches.c.end_offsets.is_(None),
        )
        .values(start_offsets=heard.start_offsets, end_offsets=heard.end_offsets)
    )
    free = (
        select(writers.c.writer_id)
        .where(
            writers.c.query_id == heard.query_id,
            writers.c.guarantee == "ids",
            writers.c.last_batch_id == heard.batch_id,
            writers.c.run_id == heard.run_id,
            writers.c.end_offsets.is_(None),
        )
        .with_for_update(skip_locked=True)
    )
    connection.execute(update(writers).where(writers.c.writer_id.in_(free)).values(end_offsets=heard.end_offsets))


def _prune_in_tx(connection: Connection, query_id: str) -> None:
    key = tuple_(progress.c.run_id, progress.c.batch_id)
    old = (
        select(progress.c.run_id, progress.c.batch_id)
        .where(progress.c.query_id == query_id)
        .order_by(desc(progress.c.progress_at), desc(progress.c.batch_id))
        .offset(KEPT_A_QUERY)
    )
    connection.execute(delete(progress).where(progress.c.query_id == query_id, key.in_(old)))
