"""
Which batch is this, says the running query itself?

Runs on the driver, in the thread that called the foreachBatch function. Invariant: a batch is described by what Spark
itself read or wrote for it, through Spark's own file system, so Python needs no credentials for the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from offsets_store.checkpoint import Checkpoint
from offsets_store.checkpoint_files import CheckpointFiles, open_location, without_credentials
from offsets_store.errors import NOTHING, CheckpointError
from offsets_store.facts import Batch
from offsets_store.positions import Span
from sink.checkpointed_batch import describe_batch, refuse_other_query, refuse_without_positions
from sink.errors import SparkError
from sink.parcel import Origin
from sink.planned_range import batch_in_memory

T = TypeVar("T")

_MICRO_BATCH = "MicroBatchExecution"
_ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"


def batch_of(frame: DataFrame, batch_id: int, *, by_position: bool = False) -> Batch:
    """
    The micro-batch that ``frame`` is, as Spark's own query and checkpoint describe it; its sink is named later.

    :param by_position: whether its rows carry their positions in Kafka: they lie in the range that the query planned.
    :raises SparkError: where this is no foreachBatch call of a running query, or its checkpoint is a temporary one.
    """
    query_id, running_batch_id = _identity(frame)
    if running_batch_id != batch_id:
        raise SparkError(
            "MIXED_BATCHES",
            f"The function was handed batch {batch_id}, but Spark is running batch {running_batch_id}.",
            NOTHING,
            "Pass the batch id on as foreachBatch gives it, in the thread that foreachBatch calls.",
        )
    query = _running_query(frame, query_id)
    _refuse_temporary_checkpoint(query)
    interval = _async_interval(query)
    root = query.resolvedCheckpointRoot()
    # Plain files cost a fraction of a millisecond, the same through the JVM four.
    files = open_location(root) if root.startswith("file:") else SparkFiles(root, frame.sparkSession)
    # The run id is asked of the query: the job group, where Spark keeps it too, is the user's to change.
    origin = Origin(query_id, query.runId().toString(), batch_id, planned=None)
    checkpoint = Checkpoint(files)
    if batch_id == 0:
        # Two drivers that begin a checkpoint together may each believe that its file metadata is theirs.
        refuse_other_query(checkpoint, origin)
    # Not every file system renames so that of two drivers only one believes that offsets/N is its own; the query
    # itself knows when it planned the batch.
    if interval:
        batch = batch_in_memory(frame.sparkSession, query, checkpoint, origin)
    else:
        # Also with interval 0: once the entry is there, the range of a batch that is run again cannot differ.
        planned_at = query.latestExecutionContext().offsetSeqMetadata().batchTimestampMs()
        batch = describe_batch(checkpoint, origin, query.name(), planned_at)
    if by_position:
        refuse_without_positions(batch)
        return replace(batch, span=Span(batch.start or {}, batch.end or {}))
    return batch


def _identity(frame: DataFrame) -> tuple[str, int]:
    context = getattr(frame.sparkSession, "_sc", None)
    if context is None:
        raise SparkError(
            "SPARK_CONNECT",
            "This is Spark Connect: a foreachBatch function there runs without a way to ask which query it serves.",
            NOTHING,
            'Use format("pgonce"), which works over Spark Connect, or run the query on a classic session.',
        )
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if not (query_id and batch_id):
        raise SparkError(
            "NOT_IN_FOREACH_BATCH",
            "Spark does not say which query and batch this is: the function was called outside foreachBatch, or from a "
            "thread of its own.",
            NOTHING,
            "Pass the writer to df.writeStream.foreachBatch(...), and call it in the thread that foreachBatch calls.",
        )
    return query_id, int(batch_id)


def _running_query(frame: DataFrame, query_id: str) -> Any:
    session = frame.sparkSession
    # The frame's session is a clone without queries; the state that all sessions share has every one of them.
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    query = running.get(_jvm(session).java.util.UUID.fromString(query_id))
    if query is None:
        raise SparkError(
            "QUERY_NOT_RUNNING",
            f"Query {query_id} is not running (any more) in this Spark application.",
            NOTHING,
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
        raise SparkError(
            "TEMPORARY_CHECKPOINT",
            "This query has no checkpointLocation, so Spark made a temporary one and a new query id: after a "
            "restart it would begin from the start of its source, and nothing could tell.",
            NOTHING,
            'Set .option("checkpointLocation", ...) on the writer.',
        )


def _async_interval(query: Any) -> int:
    """Milliseconds between two entries that asynchronous progress tracking writes; 0 where every one is written."""
    kind = query.getClass().getSimpleName()
    if kind == _MICRO_BATCH:
        return 0
    if kind == _ASYNCHRONOUS:
        return int(query.asyncProgressTrackingCheckpointingIntervalMs())
    raise SparkError(
        "NOT_MICRO_BATCH",
        f"Spark runs this query as {kind}, not in micro-batches.",
        NOTHING,
        "Use a micro-batch trigger: .trigger(processingTime='1 second') or availableNow=True.",
    )


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


class SparkFiles(CheckpointFiles):
    """A checkpoint's files, read by Spark's JVM: wherever Spark can read them, with Spark's credentials."""

    def __init__(self, root: str, session: SparkSession) -> None:
        super().__init__(without_credentials(root))
        self._root = root
        self._jvm = _jvm(session)
        self._files = self._path(root).getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _ask(self, question: Callable[[str], T], name: str) -> T | None:
        path = f"{self._root}/{name}"
        try:
            return question(path) if self._exists(path) else None
        except Py4JJavaError as error:
            raise CheckpointError(
                "CHECKPOINT_UNREADABLE",
                f"Spark could not read {self.shown}/{name}: {error.java_exception.getClass().getName()}.",
                NOTHING,
                "Mend what keeps the driver from its own checkpoint, and start the query again.",
            ) from error

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
