"""
The batch that the Data Source plans and commits: its entry in ``offsets/``, its topics' ids, and its staging table.

Runs in the planner's worker before a task starts, in tasks, in the commit worker and in the receiver; the ids of topics
are asked for on the driver too. Invariants: a query whose trigger would drop its rows is refused at planning; the batch
follows from the origin that the rows brought and from the options; and the brokers are asked once in each run, before
its first batch, because nothing else tells that a topic was created again while the query was stopped.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from uuid import UUID

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import CheckpointError
from pgonce.offsets_store.kafka.broker import topic_ids
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.offsets import furthest, kafka_topics
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..errors import SparkError
from ..options.sink_options import JobOptions, SinkOptions
from ..positions import Reach
from ..staging import StagingTable
from .from_checkpoint import WAIT_FOR_OFFSETS_SECONDS, Origin, batch_by_id, batch_from_checkpoint


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
        raise SparkError.usual(
            "NOT_MICRO_BATCH",
            f"Spark plans a batch without having written its offsets to {checkpoint.location}/offsets: the query runs "
            "with the continuous trigger (which drops every row of a Python sink); or checkpointLocation is not the "
            "location that this query uses; or another driver works on the same checkpoint, and has committed this "
            "batch.",
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


# When this worker last saw that a micro-batch query wrote into a checkpoint: seconds of a clock that is never set.
_written_at: dict[str, float] = {}


def _refuse_continuous(checkpoint_location: str, interval_ms: int) -> None:
    """
    Refuse a query that has the options of asynchronous progress tracking, but runs continuously.

    Before the first batch of a run of micro-batches, Spark writes an entry into the offset log, which comes within
    milliseconds. A continuous query writes its first entry after an epoch, which begins only when this function has
    returned. With an interval above 0, Spark writes the next entry when the interval has passed since the last one. It
    measures from a moment before this worker saw that one to a moment before this function is called.
    """
    began = time.monotonic()
    seen = _written_at.get(checkpoint_location) if interval_ms else None
    due = None if seen is None else seen + interval_ms / 1000
    if due is not None and began < due:
        return
    while True:
        try:
            newest_uncommitted_entry(checkpoint_location)
            break
        except SparkError:
            if _written_within(interval_ms, checkpoint_location):
                break
            if due is not None and began < due + WAIT_FOR_OFFSETS_SECONDS:
                return
            if time.monotonic() >= began + WAIT_FOR_OFFSETS_SECONDS:
                raise
        time.sleep(0.01)
    _written_at[checkpoint_location] = time.monotonic()


def _written_within(interval_ms: int, checkpoint_location: str) -> bool:
    """Whether a micro-batch was written down so recently that the next entry is not due yet."""
    ids, _ = Checkpoint(checkpoint_location).batch_ids()
    newest = Checkpoint(checkpoint_location).find_offset_log(ids[-1]) if ids else None
    planned_at = newest.metadata.get("batchTimestampMs") if newest else None
    return isinstance(planned_at, int) and time.time() * 1000 < planned_at + interval_ms


def with_topic_ids(batch: PlannedBatch, brokers: Brokers | None) -> PlannedBatch:
    """
    The batch, with Kafka's ids of the topics that it reads, and the brokers that were asked.

    :raises ConfigurationError: NOT_INSTALLED.
    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    """
    if brokers is None:
        return batch
    known = furthest(batch.end, batch.resumes_at, batch.span.next if batch.span else None)
    topics = tuple(sorted(kafka_topics(known)))
    # The planner knows no run. It asks for a first batch only, and a query that it served before may have had others.
    if not batch.run_id:
        return replace(batch, topic_ids=topic_ids(topics, brokers))
    found = _asked_once(batch.run_id, topics, brokers)
    return replace(batch, topic_ids=dict(found), bootstrap_servers=brokers.addresses)


@lru_cache(maxsize=64)
def _asked_once(_: str, topics: tuple[str, ...], brokers: Brokers) -> tuple[tuple[str, str], ...]:
    return tuple(topic_ids(topics, brokers).items())


def planned_batch(
    options: SinkOptions, origin: Origin, reach: Reach | None = None, attempt: UUID | None = None
) -> PlannedBatch:
    """
    The batch that ``origin`` names, as the checkpoint describes it.

    :param reach: how far the rows reach, if they carry their positions and all of them are known.
    :param attempt: the attempt's token, if it has one already; None makes one.
    :raises PgonceError: as :func:`pgonce.sink.identity.from_checkpoint.batch_from_checkpoint` and
        :func:`pgonce.sink.identity.planned_batch.with_topic_ids`.
    """
    if options.offsets_from == "checkpoint":
        batch = with_topic_ids(batch_from_checkpoint(options, origin, reach), options.brokers)
    else:
        batch = batch_by_id(origin, options.query_name, options.checkpoint_location)
    return replace(batch, attempt=attempt) if attempt else batch


def staging_table(options: SinkOptions | JobOptions, origin: Origin) -> StagingTable:
    """The staging table of a batch of this sink, or of one run of a batch job."""
    return StagingTable(origin.query_id, options.sink_label, origin.run_id, origin.batch_id, origin.planned_by_ms)
