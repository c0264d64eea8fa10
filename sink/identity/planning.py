"""
Which entry of the checkpoint's ``offsets/`` describes the batch that Spark is about to run?

Runs in the planner's worker, before a task starts. Invariant: a query whose trigger would drop its rows is refused
here.
"""

from __future__ import annotations

import time
from contextlib import suppress

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import NOTHING, CheckpointError

from ..errors import SparkError
from ..options.sink_options import SinkOptions
from .from_checkpoint import WAIT_FOR_OFFSETS_SECONDS


def newest_uncommitted_entry(checkpoint_location: str) -> OffsetLogEntry:
    """
    The newest entry of the offset log, which must be that of the batch being planned.

    A synchronous micro-batch query writes ``offsets/N`` before it plans batch N and ``commits/N`` after it. If the
    newest entry is committed, or there is none, Spark runs the query in some other way.

    :raises SparkError: in that case.
    """
    checkpoint = Checkpoint(checkpoint_location)
    newest = checkpoint.newest_offset_entry()
    if newest is None or checkpoint.is_committed(newest.batch_id):
        raise SparkError(
            "NOT_MICRO_BATCH",
            f"Spark plans a batch without having written its offsets to {checkpoint.location}/offsets: the query runs "
            "with the continuous trigger (which drops every row of a Python sink); or checkpointLocation is not the "
            "location that this query uses; or another driver works on the same checkpoint, and has committed this "
            "batch.",
            NOTHING,
            "Use a micro-batch trigger, give this writer the query's own checkpointLocation, and leave one driver "
            "running.",
        )
    return newest


def planned_entry(options: SinkOptions) -> OffsetLogEntry | None:
    """
    The entry of the batch being planned.

    None with offsetsFrom=listener, where the checkpoint need not be readable, and with asynchronous progress tracking,
    where the entry may come later.

    :raises SparkError: like :func:`newest_uncommitted_entry`; with the listener too, if the checkpoint can be read.
    """
    if options.async_interval_ms is not None:
        _refuse_continuous(options.checkpoint_location, options.async_interval_ms)
        return None
    if options.offsets_from == "checkpoint":
        return newest_uncommitted_entry(options.checkpoint_location)
    with suppress(CheckpointError):
        newest_uncommitted_entry(options.checkpoint_location)
    return None


# Checkpoints in which this worker has seen a micro-batch query write.
_micro_batch: set[str] = set()


def _refuse_continuous(checkpoint_location: str, interval_ms: int) -> None:
    """
    Refuse a query that has the options of asynchronous progress tracking, but runs continuously.

    If an entry is due, as it is for the first batch that a run plans, it comes within milliseconds. A continuous query
    writes its first entry after an epoch, which begins only when this function has returned.
    """
    if checkpoint_location in _micro_batch:
        return
    deadline = time.monotonic() + WAIT_FOR_OFFSETS_SECONDS
    while True:
        try:
            newest_uncommitted_entry(checkpoint_location)
        except SparkError:
            if _written_within(interval_ms, checkpoint_location):
                return
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            _micro_batch.add(checkpoint_location)
            return


def _written_within(interval_ms: int, checkpoint_location: str) -> bool:
    """Whether a micro-batch was written down so recently that the next entry is not due yet."""
    ids, _ = Checkpoint(checkpoint_location).batch_ids()
    newest = Checkpoint(checkpoint_location).find_offset_log(ids[-1]) if ids else None
    planned_at = newest.metadata.get("batchTimestampMs") if newest else None
    return isinstance(planned_at, int) and time.time() * 1000 < planned_at + interval_ms
