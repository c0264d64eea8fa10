"""
The batch that the Data Source plans and commits: its entry in ``offsets/``, its topics' ids, and its staging table.

Runs in the planner's worker before a task starts, in tasks, in the commit worker and in the receiver; the ids of topics
are asked for on the driver too. Invariants: a query whose trigger would drop its rows is refused at planning; the batch
follows from the origin that the rows brought and from the options; and the brokers are asked once in each run, before
its first batch, because nothing else tells that a topic was created again while the query was stopped.
"""

from __future__ import annotations

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
from .from_checkpoint import Origin, batch_by_id, batch_from_checkpoint


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

    None with offsetsFrom=listener, where the checkpoint need not be readable.

    :raises SparkError: like :func:`newest_uncommitted_entry`; with the listener too, if the checkpoint can be read.
    """
    if options.offsets_from == "checkpoint":
        return newest_uncommitted_entry(options.checkpoint_location)
    with suppress(CheckpointError):
        newest_uncommitted_entry(options.checkpoint_location)
    return None


def with_topic_ids(batch: PlannedBatch, brokers: Brokers | None) -> PlannedBatch:
    """
    The batch, with Kafka's ids of the topics that it reads.

    :raises ConfigurationError: NOT_INSTALLED.
    :raises OffsetsError: KAFKA_UNREACHABLE, KAFKA_REFUSED.
    """
    if brokers is None:
        return batch
    known = furthest(batch.end, batch.start, batch.span.next if batch.span else None)
    topics = tuple(sorted(kafka_topics(known)))
    # The planner knows no run. It asks for a first batch only, and a query that it served before may have had others.
    if not batch.run_id:
        return replace(batch, topic_ids=topic_ids(topics, brokers))
    return replace(batch, topic_ids=dict(_asked_once(batch.run_id, topics, brokers)))


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
