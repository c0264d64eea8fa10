"""
Write the ledger inside the transaction that publishes a batch, or that skips one.

Runs in the commit, after the verdict. Invariant: every function takes a connection whose transaction the caller owns,
and a writer that is locked in it.
"""

from __future__ import annotations

import os
import socket

from sqlalchemy import Connection, and_, delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore

from offsets_store.ledger import LockedWriter
from offsets_store.tables import batches, replays, runs, writers
from offsets_store.verdict import Batch

# Deleting a few rows every so often is cheaper than one row every time.
_PRUNE_EVERY = 16
# After retainBatches was lowered there may be any number to delete; 9,000 took a commit a second, for each is a
# deferred check of ``last_batch_is_recorded``.
_PRUNE_AT_MOST = 1000


def record_batch_in_tx(
    connection: Connection, locked: LockedWriter, batch: Batch, *, rows: int, transport: str, retain_batches: int
) -> None:
    """Record the batch, move the writer's row to it, and make this run the owner."""
    connection.execute(
        insert(batches).values(
            writer_id=locked.writer_id,
            generation=locked.generation,
            batch_id=batch.batch_id,
            run_id=batch.run_id,
            attempt=batch.attempt,
            start_offsets=batch.start,
            end_offsets=batch.end,
            offset_log=batch.offset_log,
            rows=rows,
            transport=transport,
        )
    )
    connection.execute(
        update(writers)
        .where(writers.c.writer_id == locked.writer_id)
        .values(
            query_name=batch.query_name,
            checkpoint_location=batch.checkpoint_location,
            run_id=batch.run_id,
            last_batch_id=batch.batch_id,
            end_offsets=batch.end,
            guarantee=batch.guarantee,
            updated_at=func.clock_timestamp(),
        )
    )
    owner = locked.ledger.writer
    if owner is None or owner.run_id != batch.run_id:
        _own_in_tx(connection, locked.writer_id, batch)
    if batch.batch_id % _PRUNE_EVERY == 0:
        _prune_in_tx(connection, locked, batch.batch_id - retain_batches)


def _own_in_tx(connection: Connection, writer_id: int, batch: Batch) -> None:
    connection.execute(
        insert_or_ignore(runs)
        .values(
            writer_id=writer_id,
            run_id=batch.run_id,
            first_batch_id=batch.batch_id,
            application=f"{socket.gethostname()} pid {os.getpid()}",
        )
        .on_conflict_do_nothing()
    )


def _prune_in_tx(connection: Connection, locked: LockedWriter, newest_to_go: int) -> None:
    for table in (batches, replays):
        of_this_writer = and_(table.c.writer_id == locked.writer_id, table.c.generation == locked.generation)
        oldest = select(func.min(table.c.batch_id)).where(of_this_writer).scalar_subquery()
        connection.execute(
            delete(table).where(
                of_this_writer, table.c.batch_id <= newest_to_go, table.c.batch_id < oldest + _PRUNE_AT_MOST
            )
        )


def replace_writer_in_tx(connection: Connection, locked: LockedWriter, batch: Batch, replaces: str) -> None:
    """Give the place of query ``replaces`` to this one: the old one may publish no more."""
    connection.execute(
        update(writers)
        .where(writers.c.query_id == replaces, writers.c.sink_name == batch.sink_name)
        .values(replaced_by=batch.query_id)
    )
    connection.execute(update(writers).where(writers.c.writer_id == locked.writer_id).values(replaces=replaces))


def seal_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> None:
    """
    Make any COMMIT fail until the batch is recorded.

    The writer names a batch that is not there yet; the deferred constraint ``last_batch_is_recorded`` refuses that.
    """
    connection.execute(
        update(writers).where(writers.c.writer_id == locked.writer_id).values(last_batch_id=batch.batch_id)
    )


def record_replay_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> None:
    """Record that this run skipped this batch."""
    connection.execute(
        insert_or_ignore(replays)
        .values(
            writer_id=locked.writer_id,
            generation=locked.generation,
            batch_id=batch.batch_id,
            run_id=batch.run_id,
            attempt=batch.attempt,
        )
        .on_conflict_do_nothing()
    )
