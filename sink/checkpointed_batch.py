"""
Which batch is this, says the checkpoint?

Runs in the planner's worker and in the commit worker. Invariant: a batch is described by the files that Spark wrote
before its tasks ran, read anew for every batch.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from offsets_store.checkpoint import Checkpoint
from offsets_store.checkpoint_files import without_credentials
from offsets_store.errors import NOTHING, CheckpointError
from offsets_store.verdict import Batch
from sink.errors import SparkError
from sink.options import SinkOptions
from sink.parcel import OffsetLogEntry, Origin

# On an object store a file may be listed before it can be read.
_WAIT_FOR_OFFSETS_SECONDS = 10.0


def newest_uncommitted_entry(checkpoint_location: str) -> OffsetLogEntry:
    """
    The newest entry of the offset log, which must be that of the batch being planned.

    A synchronous micro-batch query writes ``offsets/N`` before it plans batch N and ``commits/N`` after it. Where the
    newest entry is committed, or there is none, Spark runs another way: continuous, or asynchronous.

    :raises SparkError: where that is so.
    """
    checkpoint = Checkpoint(checkpoint_location)
    newest = checkpoint.newest_offset_entry()
    if newest is None or checkpoint.is_committed(newest[0]):
        raise SparkError(
            "NOT_MICRO_BATCH",
            f"Spark plans a batch without having written its offsets to {checkpoint.location}/offsets: the query runs "
            "with the continuous trigger (which drops every row of a Python sink), or with asynchronous progress "
            "tracking; or checkpointLocation is not the location that this query uses; or another driver works on the "
            "same checkpoint, and has committed this batch.",
            NOTHING,
            "Use a micro-batch trigger without asyncProgressTrackingEnabled, give this writer the query's own "
            "checkpointLocation, and leave one driver running.",
        )
    return OffsetLogEntry(*newest)


def planned_entry(options: SinkOptions) -> OffsetLogEntry | None:
    """
    The entry of the batch being planned; None with offsetsFrom=listener, where the checkpoint need not be readable.

    :raises SparkError: as :func:`newest_uncommitted_entry`; with the listener too, where the checkpoint can be read.
    """
    if options.offsets_from == "checkpoint":
        return newest_uncommitted_entry(options.checkpoint_location)
    with suppress(CheckpointError):
        newest_uncommitted_entry(options.checkpoint_location)
    return None


def batch_from_checkpoint(checkpoint_location: str, origin: Origin, query_name: str | None) -> Batch:
    """
    The batch that ``origin`` names, with the offsets that the checkpoint gives it; its sink is named later.

    :raises CheckpointError: where its files cannot be read in time, or belong to another query.
    :raises SparkError: where they are not those of the batch that was planned.
    """
    if origin.planned is None:
        raise SparkError(
            "NO_IDENTITY",
            "The rows came without the entry of offsets/ with which their batch was planned.",
            NOTHING,
            "Write with df.writeStream on PySpark 4.1 to 4.3; if this comes back, report it with the driver's log.",
        )
    checkpoint = Checkpoint(checkpoint_location)
    refuse_other_query(checkpoint, origin)
    return describe_batch(checkpoint, origin, query_name)


def refuse_other_query(checkpoint: Checkpoint, origin: Origin) -> None:
    """:raises CheckpointError: where the checkpoint belongs to another query."""
    query_id = checkpoint.query_id()
    if query_id != origin.query_id:
        raise CheckpointError(
            "OTHER_CHECKPOINT",
            f"checkpointLocation {checkpoint.location} belongs to query {query_id}, but these rows come from query "
            f"{origin.query_id}.",
            NOTHING,
            "Give this writer the checkpointLocation that its query uses, and leave one driver running.",
        )


def describe_batch(
    checkpoint: Checkpoint, origin: Origin, query_name: str | None, planned_at: int | None = None
) -> Batch:
    """
    As :func:`batch_from_checkpoint`, for a checkpoint that is known to be the query's.

    :param planned_at: the batch's ``batchTimestampMs``, where somebody knows it otherwise than from the checkpoint.
    """
    log = checkpoint.offset_log(origin.batch_id, wait_seconds=_WAIT_FOR_OFFSETS_SECONDS)
    is_other_entry = origin.planned is not None and origin.planned != OffsetLogEntry(origin.batch_id, log.sha256)
    if is_other_entry or planned_at not in (None, log.metadata.get("batchTimestampMs")):
        raise SparkError(
            "OFFSETS_REWRITTEN",
            f"offsets/{origin.batch_id} is not the entry with which this batch was planned: another driver works on "
            "the same checkpoint.",
            NOTHING,
            "Leave one driver running. Give every query a checkpoint of its own.",
        )
    previous = checkpoint.find_offset_log(origin.batch_id - 1) if origin.batch_id else None
    start = previous.offsets if previous else checkpoint.initial_offsets() if origin.batch_id == 0 else None
    return Batch(
        query_id=origin.query_id,
        sink_name="",
        run_id=origin.run_id,
        batch_id=origin.batch_id,
        attempt=uuid.uuid4(),
        offset_log=log.text,
        previous_offset_log=previous.text if previous else None,
        start=start or None,
        end=log.offsets,
        stateful=checkpoint.is_stateful(),
        query_name=query_name,
        checkpoint_location=checkpoint.location,
    )


def batch_by_id(origin: Origin, query_name: str | None, checkpoint_location: str | None) -> Batch:
    """The batch that ``origin`` names, judged by its id alone: the listener fills its offsets in later."""
    return Batch(
        query_id=origin.query_id,
        sink_name="",
        run_id=origin.run_id,
        batch_id=origin.batch_id,
        attempt=uuid.uuid4(),
        offset_log=None,
        previous_offset_log=None,
        start=None,
        end=None,
        stateful=True,
        query_name=query_name,
        checkpoint_location=without_credentials(checkpoint_location) if checkpoint_location else None,
        guarantee="ids",
    )
