"""
Describe a batch by the Spark Connect server and the checkpoint.

Runs in: the Python worker that a Connect server starts for a foreachBatch function. Invariant: the server says which
run the batch belongs to, and the entry ``offsets/N`` says which rows; the entry is the same before the frame is run
and when its rows are written, under the writer's lock.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import NOTHING
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets, Span
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ..errors import SparkError
from .checkpoint_claim import refuse_replaced
from .from_checkpoint import Origin, describe_batch, refuse_without_positions, rewritten
from .server_session import ServerSession, no_checkpoint_location


def batch_from_server(
    server: ServerSession, frame: DataFrame, batch_id: int, *, by_position: bool = False
) -> PlannedBatch:
    """
    The micro-batch of ``frame``, as the server and the checkpoint describe it.

    :param by_position: whether its rows carry their positions in Kafka.
    :raises SparkError: if the server does not run this query, or if another server may plan the same batch.
    :raises CheckpointError: if the checkpoint cannot be read, has no entry of this batch in time, or was replaced.
    """
    called_at = int(time.time() * 1000)
    if not server.checkpoint_location:
        raise no_checkpoint_location()
    checkpoint = Checkpoint(server.checkpoint_location)
    query_id = checkpoint.query_id()
    run_id, name = server.run_of(query_id, frame)
    if not server.is_only_server:
        raise SparkError(
            "NOT_EXCLUSIVE",
            f"In a store like that of {checkpoint.location}, two servers can plan the same batch, and each believe "
            "that its entry in offsets/ is the one that counts. Over Spark Connect nothing tells which rows this "
            "server has planned.",
            NOTHING,
            "Keep the checkpoint in HDFS, in Azure's storage (abfss://) or on a disk of the server's machine; or run "
            "the query on a classic session.",
        )
    refuse_replaced(server.checkpoint_location)
    # One server, one machine, one clock: an entry that was planned after this call began is another server's.
    origin = Origin(query_id, run_id, batch_id, planned=None, planned_by_ms=called_at)
    batch = describe_batch(checkpoint, origin, name)
    _refuse_finished(checkpoint, batch)
    if by_position:
        refuse_without_positions(batch)
        return replace(batch, span=Span(batch.start or {}, batch.end or {}))
    return batch


def as_long_as_planned(server: ServerSession, work: Work) -> Work:
    """The same work, which fails before its COMMIT if the batch's entry is not the one that was read at first."""

    def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
        published = work.publish(connection, batch, stored)
        entry = Checkpoint(server.checkpoint_location or "").find_offset_log(batch.batch_id)
        if entry is None or entry.text != batch.offset_log:
            raise rewritten(batch.batch_id)
        return published

    return replace(work, publish=publish)


def _refuse_finished(checkpoint: Checkpoint, batch: PlannedBatch) -> None:
    """Refuse an entry that is not the newest one, or is committed: then the query uses another checkpoint."""
    entries, _ = checkpoint.batch_ids()
    if entries[-1:] != [batch.batch_id] or checkpoint.is_committed(batch.batch_id):
        raise SparkError(
            "CHECKPOINT_AHEAD",
            f"The server runs batch {batch.batch_id}, but in the checkpoint {checkpoint.location} that batch is "
            "finished: another driver works on the same checkpoint, or the query uses a copy of it.",
            NOTHING,
            "Give the writer the query's own checkpointLocation, and leave one driver running.",
        )
