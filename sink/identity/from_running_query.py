"""
Describe a batch by the running query itself: by its entry, or by what the query holds in memory.

Runs on the driver, in the thread that called the foreachBatch function: while that thread is in the function, the query
plans nothing, so the answers are those of its batch. Invariants: a batch is described by what Spark itself read or
wrote for it, through Spark's own file system, so Python needs no credentials for the checkpoint, and no error shows
any. What Spark may never write down is taken from memory, and its text is byte for byte what Spark would write into
``offsets/N``, so that a checkpoint can be repaired with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from pgonce.offsets_store.checkpoint.files import CheckpointFiles, open_location, without_credentials
from pgonce.offsets_store.checkpoint.log_entries import OffsetLog, parse_offset_log
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import NOTHING, CheckpointError
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..errors import SparkError
from .from_checkpoint import Origin, describe_batch, refuse_other_query

_log = logging.getLogger("pgonce")

_MICRO_BATCH = "MicroBatchExecution"
_ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"


@dataclass(frozen=True)
class RunningQuery:
    """One run of a query: ``query`` is Spark's own object, and the rest is what never changes while it runs."""

    query: Any
    query_id: str
    run_id: str
    name: str | None
    checkpoint: Checkpoint
    async_interval_ms: int


def batch_of(frame: DataFrame, batch_id: int) -> PlannedBatch:
    """
    The micro-batch of ``frame``, as Spark's own query and checkpoint describe it.

    :raises SparkError: if this is not a foreachBatch call of a running query, or if its checkpoint is temporary.
    """
    query_id, running_batch_id, job_group = _identity(frame)
    if running_batch_id != batch_id:
        raise SparkError.usual(
            "NOT_CALLED_BY_SPARK",
            f"The function was handed batch {batch_id}, but Spark is running batch {running_batch_id}.",
            "Pass the batch id on as foreachBatch gives it, in the thread that foreachBatch calls.",
        )
    run = _run(frame, query_id, job_group)
    origin = Origin(query_id, run.run_id, batch_id, planned=None)
    if batch_id == 0:
        # Two drivers that begin a checkpoint at the same time may each believe that its file metadata is theirs.
        refuse_other_query(run.checkpoint, origin)
    # On some file systems, two drivers that rename a file to offsets/N may each believe that it is theirs. The query
    # itself knows what it has planned.
    planned = _entry(frame.sparkSession, run.query, planned_end(run.query))
    begins_at = _entry(frame.sparkSession, run.query, planned_start(run.query)).offsets
    # With interval 0 the entry is waited for: once it is there, a batch that is run again has the same range.
    is_written = not run.async_interval_ms
    return describe_batch(run.checkpoint, origin, run.name, planned, begins_at, is_written=is_written)


def _identity(frame: DataFrame) -> tuple[str, int, str | None]:
    """The query's id, the batch's, and the job group: the run's id, unless the user has set another one."""
    context = getattr(frame.sparkSession, "_sc", None)
    if context is None:
        raise SparkError.usual(
            "SPARK_CONNECT",
            "This is Spark Connect, where a foreachBatch function has no way to ask which query it serves.",
            'Use format("pgonce"), which works over Spark Connect, or run the query on a classic session.',
        )
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if not (query_id and batch_id):
        raise SparkError.usual(
            "NOT_CALLED_BY_SPARK",
            "Spark does not say which query and batch this is: the function was called outside foreachBatch, or from a "
            "thread of its own.",
            "Pass the writer to df.writeStream.foreachBatch(...), and call it in the thread that foreachBatch calls.",
        )
    return query_id, int(batch_id), context.getLocalProperty("spark.jobGroup.id")


# By run id, which is new at every start. What does not change during a run takes some twenty trips to the JVM, and is
# asked once.
_runs: dict[str, RunningQuery] = {}


def _run(frame: DataFrame, query_id: str, job_group: str | None) -> RunningQuery:
    known = _runs.get(job_group or "")
    if known is not None and known.query_id == query_id and _is_active(known):
        return known
    query = _running_query(frame, query_id)
    _refuse_temporary_checkpoint(query)
    root = query.resolvedCheckpointRoot()
    # To read plain files takes a fraction of a millisecond; to read them through the JVM takes four.
    files = open_location(root) if root.startswith("file:") else SparkFiles(root, frame.sparkSession)
    # The query is asked for the run id, because the user may change the job group.
    run = RunningQuery(
        query,
        query_id,
        query.runId().toString(),
        query.name(),
        Checkpoint(files),
        _async_interval(query),
    )
    # The JVM's objects that are kept here would outlive their run.
    for other in list(_runs.values()):
        if not _is_active(other):
            _runs.pop(other.run_id, None)
    _runs[run.run_id] = run
    return run


def _is_active(run: RunningQuery) -> bool:
    try:
        return bool(run.query.isActive())
    except Py4JError:
        # Its JVM is gone.
        return False


def _running_query(frame: DataFrame, query_id: str) -> Any:
    session = frame.sparkSession
    # The frame's session is a clone without queries; the state that all sessions share has all of them.
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    jvm: Any = session.sparkContext._jvm
    query = running.get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        raise SparkError.usual(
            "QUERY_NOT_RUNNING",
            f"Query {query_id} is not running (any more) in this Spark application.",
            "Start the query again.",
        )
    return query


def _refuse_temporary_checkpoint(query: Any) -> None:
    stream_execution = query.getClass()
    while stream_execution.getSimpleName() != "StreamExecution":
        stream_execution = stream_execution.getSuperclass()
    is_temporary = stream_execution.getDeclaredField("deleteCheckpointOnStop")
    is_temporary.setAccessible(True)
    if is_temporary.get(query):
        raise SparkError.usual(
            "OPTION_MISSING",
            "This query has no checkpointLocation, so Spark made a temporary one and a new query id: after a "
            "restart it would begin at the start of its source, and nothing would notice.",
            'Set .option("checkpointLocation", ...) on the writer.',
        )


def _async_interval(query: Any) -> int:
    """Milliseconds between two entries that asynchronous progress tracking writes; 0 if every one is written."""
    kind = query.getClass().getSimpleName()
    if kind == _MICRO_BATCH:
        return 0
    if kind == _ASYNCHRONOUS:
        return int(query.asyncProgressTrackingCheckpointingIntervalMs())
    raise SparkError.usual(
        "NOT_MICRO_BATCH",
        f"Spark runs this query as {kind}, not in micro-batches.",
        "Use a micro-batch trigger: .trigger(processingTime='1 second') or availableNow=True.",
    )


T = TypeVar("T")


class SparkFiles(CheckpointFiles):
    """A checkpoint's files, read by Spark's JVM: in all places where Spark can read them, with Spark's credentials."""

    lists_late = True
    read_by = "spark"

    def __init__(self, root: str, session: SparkSession) -> None:
        super().__init__(without_credentials(root))
        self._root = root
        self._jvm: Any = session.sparkContext._jvm
        self._files = self._path(root).getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def ask(self, question: Callable[[str], T], name: str) -> T | None:  # noqa: D102 (as in the base class)
        path = f"{self._root}/{name}"
        try:
            return question(path) if self._exists(path) else None
        except Py4JJavaError as error:
            raise CheckpointError(
                "CHECKPOINT_UNREADABLE",
                f"Spark could not read {self.shown}/{name}: {error.java_exception.getClass().getName()}.",
                NOTHING,
                "Find out what keeps the driver from reading its own checkpoint, and start the query again.",
            ) from None

    def _read(self, path: str) -> bytes:
        stream = self._files.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _names(self, path: str) -> list[str]:
        return [entry.getPath().getName() for entry in self._files.listStatus(self._path(path))]

    def _exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))


_PYSPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
_NAMES_SOURCES = _PYSPARK >= (4, 2)
# From PySpark 4.0 on, a query keeps what it knows of a batch in an object for each batch; before, in its own fields.
_HAS_CONTEXTS = _PYSPARK >= (4, 0)


def _entry(session: SparkSession, query: Any, progress: Any) -> OffsetLog:
    """What Spark would write into ``offsets/`` for this progress of its sources."""
    # When the batch was planned, and under which settings.
    metadata = _knows(query).offsetSeqMetadata()
    if _NAMES_SOURCES:
        offsets = progress.toOffsets(query.sources(), query.sourceIdMap(), metadata)
    else:
        offsets = progress.toOffsetSeq(query.sources(), metadata)
    written = session.sparkContext._jvm.java.io.ByteArrayOutputStream()  # type: ignore[union-attr]
    query.offsetLog().serialize(offsets, written)
    return parse_offset_log(bytes(written.toByteArray()).decode(), "What the query has planned")


def planned_start(query: Any) -> Any:
    """Spark's ``StreamProgress`` where the batch begins."""
    return _knows(query).startOffsets() if _HAS_CONTEXTS else query.committedOffsets()


def planned_end(query: Any) -> Any:
    """Spark's ``StreamProgress`` where the batch ends."""
    return _knows(query).endOffsets() if _HAS_CONTEXTS else query.availableOffsets()


def _knows(query: Any) -> Any:
    return query.getLatestExecutionContext() if _HAS_CONTEXTS else query
