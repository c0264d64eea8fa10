"""
Describe the batch of a running query by what the query holds in memory, because Spark may never write it down.

Runs on the driver, in the thread that called the foreachBatch function: while that thread is in the function, the query
plans nothing, so the answers are those of its batch. Invariant: the text of the entry is byte for byte what Spark would
write into ``offsets/N``, so that a checkpoint can be repaired with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from pgonce.offsets_store.checkpoint.log_entries import OffsetLog, parse_offset_log
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.verdict.facts import PlannedBatch

from .from_checkpoint import Origin, batch_of_query, rewritten

_PYSPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
_NAMES_SOURCES = _PYSPARK >= (4, 2)
# From PySpark 4.0 on, a query keeps what it knows of a batch in an object for each batch; before, in its own fields.
_HAS_CONTEXTS = _PYSPARK >= (4, 0)


def batch_in_memory(
    session: SparkSession,
    query: Any,
    checkpoint: Checkpoint,
    origin: Origin,
    folders: Mapping[str, tuple[str, ...]] | None = None,
) -> PlannedBatch:
    """
    The batch that ``query`` runs, from the offsets that it holds in memory.

    :param folders: the names by which Spark describes file sources, if it was asked.
    :raises SparkError: if another driver has written this batch's entry.
    """
    log = checkpoint.find_offset_log(origin.batch_id)
    if log is None:
        log = _entry(session, query, planned_end(query))
    elif log.metadata.get("batchTimestampMs") != planned_metadata(query).batchTimestampMs():
        raise rewritten(origin.batch_id)
    if origin.batch_id == 0:
        start = checkpoint.initial_offsets(log.offsets)
        return batch_of_query(checkpoint, origin, query.name(), log=log, previous=None, start=start, folders=folders)
    before = origin.batch_id - 1
    previous = checkpoint.find_offset_log(before)
    return batch_of_query(
        checkpoint,
        origin,
        query.name(),
        log=log,
        previous=(before, previous) if previous else None,
        start=_entry(session, query, planned_start(query)).offsets,
        folders=folders,
    )


def _entry(session: SparkSession, query: Any, progress: Any) -> OffsetLog:
    """What Spark would write into ``offsets/`` for this progress of its sources."""
    metadata = planned_metadata(query)
    if _NAMES_SOURCES:
        offsets = progress.toOffsets(query.sources(), query.sourceIdMap(), metadata)
    else:
        offsets = progress.toOffsetSeq(query.sources(), metadata)
    written = session.sparkContext._jvm.java.io.ByteArrayOutputStream()  # type: ignore[union-attr]
    query.offsetLog().serialize(offsets, written)
    return parse_offset_log(bytes(written.toByteArray()).decode(), "What the query has planned")


def planned_metadata(query: Any) -> Any:
    """Spark's ``OffsetSeqMetadata`` of the batch: when it was planned, and under which settings."""
    return _knows(query).offsetSeqMetadata()


def planned_start(query: Any) -> Any:
    """Spark's ``StreamProgress`` where the batch begins."""
    return _knows(query).startOffsets() if _HAS_CONTEXTS else query.committedOffsets()


def planned_end(query: Any) -> Any:
    """Spark's ``StreamProgress`` where the batch ends."""
    return _knows(query).endOffsets() if _HAS_CONTEXTS else query.availableOffsets()


def _knows(query: Any) -> Any:
    return query.getLatestExecutionContext() if _HAS_CONTEXTS else query
