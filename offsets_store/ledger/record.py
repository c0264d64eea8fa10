"""
Write the ledger inside the transaction that publishes a batch, or that skips one.

Runs in the commit, after the verdict. Invariant: every function takes a connection whose transaction the caller owns,
and a writer whose row is locked in it. One transaction deletes a bounded number of a writer's old records, and never
the newest ones.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    Connection,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql

from ..offsets import Offsets, furthest
from ..postgres.connect import driver_connection
from ..postgres.one_trip import ask
from ..verdict.facts import Batch
from ..verdict.reads import Reads, reads_of, together
from .compiled import Compiled, given, of_columns, send_once
from .lock import LockedWriter
from .published import Published, WrittenAs, WrittenTables
from .tables import batches, replays, runs, target_changes, writers

# All but the times, which Postgres fills in.
_RECORDED = tuple(column.name for column in batches.columns if column.name not in ("committed_at", "begun_at"))
_RECORD = Compiled(insert(batches).values(given(*_RECORDED)))
_MOVE = Compiled(
    update(writers)
    .where(writers.c.writer_id == bindparam("writer"))
    .values(
        updated_at=func.clock_timestamp(),
        **given("query_name", "checkpoint_location", "run_id", "generation", "last_batch_id", "end_offsets"),
        **given("guarantee", "targets", "offsets_read_by"),
    )
)


def record_batch_in_tx(
    connection: Connection,
    locked: LockedWriter,
    batch: Batch,
    published: Published,
    tables: WrittenTables,
    *,
    stored: Offsets | None,
    retain_batches: int,
) -> None:
    """
    Record the batch, move the writer's row to it, and make this run the owner.

    :param stored: the positions below which rows were stored already.
    """
    generation = generation_of(locked, batch)
    known = locked.ledger.writer
    moved = {
        "query_name": batch.query_name,
        "checkpoint_location": batch.checkpoint_location,
        "run_id": batch.run_id,
        "generation": generation,
        "last_batch_id": batch.batch_id,
        "end_offsets": batch.end,
        "guarantee": batch.guarantee,
        "offsets_read_by": batch.offsets_read_by,
        "targets": tables.known or (known and known.targets),
    }
    recorded = {
        "writer_id": locked.writer_id,
        "generation": generation,
        "batch_id": batch.batch_id,
        "run_id": batch.run_id,
        "attempt": batch.attempt,
        "start_offsets": batch.start,
        "end_offsets": batch.end,
        "offset_log": batch.offset_log,
        "rows": published.rows,
        "transport": published.transport,
        "positions": batch.span and furthest(stored, batch.span.next),
        "dropped_rows": published.dropped,
        "counts": published.counts,
        "tables": published.tables,
        "stateful": batch.stateful,
        # If the brokers were not asked this time, what was known stays known.
        "topic_ids": {**(known.topic_ids if known else {}), **(batch.topic_ids or {})} or None,
    }
    driver = driver_connection(connection)
    ask(driver, _RECORD, of_columns(recorded))
    ask(driver, _MOVE, {"writer": locked.writer_id, **of_columns(moved)})
    row = {"writer_id": locked.writer_id, "generation": generation, "batch_id": batch.batch_id}
    for name, change in tables.changes.items():
        both = " ".join(filter(None, [change, published.notes.get(name)]))
        send_once(connection, insert(target_changes).values(**row, table_name=name, change=both))
    for name, note in published.notes.items():
        if name not in tables.changes:
            _note_once_in_tx(connection, {**row, "table_name": name, "change": note})
    if known is None or known.run_id != batch.run_id:
        _own_in_tx(connection, locked, batch)
    _note_how_in_tx(connection, locked, published.written_as)
    _note_reads_in_tx(connection, locked, reads_of(batch.end))
    if is_pruned_at(batch.batch_id):
        prune_in_tx(connection, locked.writer_id, generation, batch.batch_id - retain_batches)


def _update(locked: LockedWriter) -> Update:
    return update(writers).where(writers.c.writer_id == locked.writer_id)


def _note_how_in_tx(connection: Connection, locked: LockedWriter, written_as: Mapping[str, WrittenAs]) -> None:
    """Record how the rows were written, if the batch before did it in another way."""
    each = ((name, one.digest) for name, one in sorted(written_as.items()))
    digest = hashlib.sha256(repr(list(each)).encode()).hexdigest()
    if written_as and digest != locked.written_as:
        tables = {name: one.recorded for name, one in written_as.items()}
        send_once(connection, _update(locked).values(written_as={"digest": digest, "tables": tables}))


def _note_once_in_tx(connection: Connection, row: dict[str, Any]) -> None:
    # What is not written is the same for every batch.
    same = [target_changes.c[name] == row[name] for name in ("writer_id", "table_name", "change")]
    values = select(*(literal(value, target_changes.c[name].type) for name, value in row.items()))
    is_new = values.where(~exists().where(*same))
    send_once(connection, insert(target_changes).from_select(list(row), is_new))


def generation_of(locked: LockedWriter, batch: Batch) -> int:
    """The writer's generation; or the next one if a batch id comes again and must not collide with its old record."""
    writer = locked.ledger.writer
    comes_again = writer is not None and batch.batch_id <= writer.last_batch_id
    return locked.generation + comes_again


def _note_reads_in_tx(connection: Connection, locked: LockedWriter, now: Reads | None) -> None:
    """Record all that the query has ever read. Once a batch does not show what it reads, not all of it is known."""
    owner = locked.ledger.writer
    before = owner.reads if owner else None
    known = together(before, now) if owner else now
    if known != before:
        send_once(connection, _update(locked).values(sources=known and known.record()))


def _own_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> None:
    send_once(
        connection,
        postgresql.insert(runs)
        .values(
            writer_id=locked.writer_id,
            run_id=batch.run_id,
            first_batch_id=batch.batch_id,
            application=f"{socket.gethostname()} pid {os.getpid()}",
        )
        .on_conflict_do_nothing(),
    )


def replace_writer_in_tx(connection: Connection, locked: LockedWriter, batch: Batch, replaces: str) -> None:
    """Let this query take the place of query ``replaces``, which may publish no more."""
    send_once(
        connection,
        update(writers)
        .where(writers.c.query_id == replaces, writers.c.sink_name == batch.sink_name)
        .values(replaced_by=batch.query_id),
    )
    took: dict[str, Any] = {"replaces": replaces}
    replaced = locked.ledger.rival(replaces)
    if replaced is not None:
        # The table has rows of all that either has read.
        known = together(replaced.writer.reads, reads_of(batch.end))
        took["sources"] = known and known.record()
    send_once(connection, _update(locked).values(**took))


def seal_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> None:
    """
    Make any COMMIT fail until the batch is recorded.

    The writer's row names a batch that is not there yet, and the deferred constraint ``last_batch_is_recorded`` refuses
    that.
    """
    generation = generation_of(locked, batch)
    connection.execute(_update(locked).values(generation=generation, last_batch_id=batch.batch_id))


def record_replay_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> None:
    """Record that this run skipped this batch."""
    send_once(
        connection,
        postgresql.insert(replays)
        .values(
            writer_id=locked.writer_id,
            generation=locked.generation,
            batch_id=batch.batch_id,
            run_id=batch.run_id,
            attempt=batch.attempt,
        )
        .on_conflict_do_nothing(),
    )


# To delete a few rows from time to time is cheaper than to delete one row every time.
PRUNE_EVERY = 16
# After retainBatches was lowered there may be any number of rows to delete. 9,000 took a commit one second: each is a
# deferred check of ``last_batch_is_recorded``.
PRUNE_AT_MOST = 1000


def is_pruned_at(batch_id: int) -> bool:
    """Whether the transaction of this batch deletes old rows."""
    return batch_id % PRUNE_EVERY == 0


def prune_in_tx(connection: Connection, writer_id: int, generation: int, newest_to_go: int) -> None:
    """Delete a writer's oldest records, up to that of batch ``newest_to_go``."""
    for table in (batches, replays):
        of_generation = and_(table.c.writer_id == writer_id, table.c.generation == generation)
        oldest = select(func.min(table.c.batch_id)).where(of_generation).scalar_subquery()
        old = and_(of_generation, table.c.batch_id < oldest + PRUNE_AT_MOST)
        if generation > 0:
            # Each earlier generation has at most retainBatches records.
            old = or_(old, and_(table.c.writer_id == writer_id, table.c.generation < generation))
        send_once(connection, delete(table).where(old, table.c.batch_id <= newest_to_go))
