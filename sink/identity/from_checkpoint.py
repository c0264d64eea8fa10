"""
Describe a batch by the checkpoint: its query, its offsets, and the entry with which it was planned.

Runs in the planner's worker, in the commit worker and in a receiver. Invariant: a batch is described by the files that
Spark wrote before its tasks ran, and they are read again for every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgonce.offsets_store.checkpoint.files import without_credentials
from pgonce.offsets_store.checkpoint.log_entries import OffsetLog, OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import NOTHING, CheckpointError
from pgonce.offsets_store.offsets import Offsets, says_which_rows
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..errors import SparkError
from ..options.sink_options import SinkOptions
from ..positions import Reach, refuse_outside, span_of


@dataclass(frozen=True)
class Origin:
    """
    The batch a parcel belongs to.

    ``planned`` is the newest entry in ``offsets/`` as the planner saw it; None if it did not look there
    (offsetsFrom=listener), or if there was no planner (foreachBatch). ``planned_by_ms`` is when the planner's worker
    ran, by the same clock that Spark uses to date entries.
    """

    query_id: str
    run_id: str
    batch_id: int
    planned: OffsetLogEntry | None
    planned_by_ms: int | None = None

    def may_have_planned(self, entry: OffsetLog) -> bool:
        """Whether an entry was there when this batch was planned: one that was planned later belongs to another run."""
        planned_at = entry.metadata.get("batchTimestampMs")
        return self.planned_by_ms is None or not isinstance(planned_at, int) or planned_at <= self.planned_by_ms


# On an object store a file may be listed before it can be read.
WAIT_FOR_OFFSETS_SECONDS = 10.0


def batch_from_checkpoint(options: SinkOptions, origin: Origin, reach: Reach | None) -> PlannedBatch:
    """
    The batch that ``origin`` names, with the offsets that the checkpoint gives it.

    :param reach: how far the rows reach, if they carry their positions and all of them are known.
    :raises CheckpointError: if its files cannot be read in time, or belong to another query.
    :raises SparkError: if they are not those of the batch that was planned.
    :raises EncodingError: if rows carry positions that are not in its range.
    """
    if origin.planned is None:
        raise SparkError.usual(
            "NOT_CALLED_BY_SPARK",
            "The rows do not say with which entry of offsets/ their batch was planned.",
            "Write with df.writeStream on PySpark 4.0 to 4.3; if this happens again, report it with the driver's log.",
        )
    checkpoint = Checkpoint(options.checkpoint_location)
    refuse_other_query(checkpoint, origin)
    batch = describe_batch(checkpoint, origin, options.query_name)
    if reach is None:
        return batch
    span = span_of(refuse_without_positions(batch), reach)
    refuse_outside(span, batch)
    return replace(batch, span=span)


def refuse_without_positions(batch: PlannedBatch) -> str:
    """
    The id of the one source whose positions the rows of ``batch`` carry.

    :raises SparkError: if the query keeps state, or does not read exactly one source, Kafka.
    """
    known = batch.end or {}
    if batch.stateful or len(known) != 1 or not says_which_rows(known):
        raise SparkError.usual(
            "NOT_BY_POSITION",
            "Position columns are given, but "
            + ("this query keeps state" if batch.stateful else "this query does not read exactly one source, Kafka")
            + ": the rows of a batch that is run again with another range cannot be told apart by their position.",
            "Leave the position columns out, and asynchronous progress tracking off.",
        )
    return next(iter(known))


def refuse_other_query(checkpoint: Checkpoint, origin: Origin) -> None:
    """:raises CheckpointError: if the checkpoint belongs to another query."""
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
    checkpoint: Checkpoint,
    origin: Origin,
    query_name: str | None,
    planned: OffsetLog | None = None,
    begins_at: Offsets | None = None,
    *,
    is_written: bool = True,
) -> PlannedBatch:
    """
    Like :func:`batch_from_checkpoint`, for a checkpoint that is known to be the query's.

    :param planned: what the running query would write into the batch's entry, and ``begins_at`` where the batch begins,
        if it can be asked.
    :param is_written: whether there is such an entry; if there may be none, ``planned`` stands for it.
    """
    if is_written or planned is None:
        log = checkpoint.offset_log(origin.batch_id, wait_seconds=WAIT_FOR_OFFSETS_SECONDS)
    else:
        log = checkpoint.find_offset_log(origin.batch_id) or planned
    if origin.planned is None:
        is_other_entry = not origin.may_have_planned(log)
    else:
        # Its bytes are compared, not clocks: an entry that is run again may have been written on another host.
        is_other_entry = origin.planned != OffsetLogEntry(origin.batch_id, log.sha256)
    if is_other_entry or not _is_plan(log, planned or log):
        raise rewritten(origin.batch_id)
    previous, start = None, begins_at
    if origin.batch_id == 0:
        start = checkpoint.initial_offsets(log)
    elif previous := checkpoint.find_offset_log(origin.batch_id - 1):
        start = previous.offsets
        # A driver that was frozen may write an entry long after another one has gone on from its own.
        if begins_at and any(at not in (None, begins_at.get(of, at)) for of, at in start.items()):
            raise rewritten(origin.batch_id - 1)
    return PlannedBatch(
        query_id=origin.query_id,
        run_id=origin.run_id,
        batch_id=origin.batch_id,
        offset_log=log.text,
        previous_offset_log=previous.text if previous else None,
        start=start or None,
        end=log.offsets,
        stateful=checkpoint.is_stateful(),
        query_name=query_name,
        checkpoint_location=checkpoint.location,
        offsets_read_by=checkpoint.read_by,
    )


def _is_plan(log: OffsetLog, planned: OffsetLog) -> bool:
    """Whether an entry is what a query has planned: another version of Spark may have written other settings there."""
    own, found = ((of.offsets, of.metadata.get("batchTimestampMs")) for of in (planned, log))
    return own == found


def rewritten(batch_id: int) -> SparkError:
    """The error for an entry of ``offsets/`` that is not this driver's."""
    return SparkError.usual(
        "CHECKPOINT_IN_USE",
        f"offsets/{batch_id} is not the entry with which this driver has planned: another driver works on the same "
        "checkpoint.",
        "Leave one driver running. Give every query a checkpoint of its own.",
    )


def batch_by_id(origin: Origin, query_name: str | None, checkpoint_location: str | None) -> PlannedBatch:
    """The batch that ``origin`` names, judged by its id alone: the listener fills its offsets in later."""
    return PlannedBatch(
        query_id=origin.query_id,
        run_id=origin.run_id,
        batch_id=origin.batch_id,
        stateful=True,
        query_name=query_name,
        checkpoint_location=without_credentials(checkpoint_location) if checkpoint_location else None,
        guarantee="ids",
        offsets_read_by="listener",
    )
