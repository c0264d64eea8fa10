"""
Describe a batch by the Spark Connect server and the checkpoint.

Runs in: the Python worker that a Connect server starts for a foreachBatch function, which ends with its server.
Invariant: the server says which run the batch belongs to, and the entry ``offsets/N`` says which rows; the entry is the
same before the frame is run and when its rows are written, under the writer's lock. Every answer comes from the server
session that was there when the function was unpickled, and a worker serves one run of a query: after a restart, a
worker that was left behind finds its own run gone, and never takes the new one for its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import replace
from functools import cache
from typing import Any

import pyspark
from pyspark.sql import DataFrame
from sqlalchemy import Connection

from pgonce.offsets_store.checkpoint.files import without_credentials
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ..errors import SparkError
from .checkpoint_claim import claim_checkpoint, refuse_replaced
from .from_checkpoint import Origin, describe_batch, rewritten


def batch_from_server(server: ServerSession, frame: DataFrame, batch_id: int) -> PlannedBatch:
    """
    The micro-batch of ``frame``, as the server and the checkpoint describe it.

    :raises SparkError: if the server does not run this query, or if another server may plan the same batch.
    :raises CheckpointError: if the checkpoint cannot be read, has no entry of this batch in time, or was replaced.
    """
    called_at = int(time.time() * 1000)
    if not server.checkpoint_location:
        raise SparkError.usual(
            "SPARK_CONNECT",
            "This is Spark Connect, where a foreachBatch function cannot ask the query for its batch: it must be told "
            "where the query's checkpoint is.",
            "Set checkpoint_location=... on the writer, to the query's own checkpointLocation.",
        )
    checkpoint = Checkpoint(server.checkpoint_location)
    query_id = checkpoint.query_id()
    run_id, name = server.run_of(query_id, frame)
    if not server.is_only_server:
        raise SparkError.usual(
            "NOT_EXCLUSIVE",
            f"In the store of {checkpoint.location}, two servers can plan the same batch, and each takes its own "
            "entry in offsets/ for the valid one. Over Spark Connect, pgonce cannot find out which rows this "
            "server has planned.",
            "Keep the checkpoint in HDFS, in Azure's storage (abfss://) or on a disk of the server's machine; or run "
            "the query on a classic session.",
        )
    refuse_replaced(server.checkpoint_location)
    # One server, one machine, one clock: an entry that was planned after this call began is another server's.
    origin = Origin(query_id, run_id, batch_id, planned=None, planned_by_ms=called_at)
    batch = describe_batch(checkpoint, origin, name)
    _refuse_finished(checkpoint, batch)
    return batch


def as_long_as_planned(server: ServerSession, work: Work[Batch]) -> Work[Batch]:
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
        raise SparkError.usual(
            "CHECKPOINT_IN_USE",
            f"The server runs batch {batch.batch_id}, but in the checkpoint {checkpoint.location} that batch is "
            "finished: another driver works on the same checkpoint, or the query uses a copy of it.",
            "Give the writer the query's own checkpointLocation, and leave one driver running.",
        )


_WORKER = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"

# Query id to run id, for the life of this process: one entry at most.
_runs: dict[str, str] = {}


class ServerSession:
    """
    The session in which the query was started, as its function's worker is connected to it.

    It is empty where the writer is created (in the client), and found when the function is unpickled in the worker.
    Only at that moment is the session that lists the query the active one: from PySpark 4.3 on, a batch runs in a
    clone, which lists no queries. The checkpoint is claimed at the same moment, which is before the query is started:
    a run that the session lists then is another query's.

    :raises SparkError: CHECKPOINT_IN_USE, or SPARK_TOO_OLD.
    :raises CheckpointError: CHECKPOINT_UNREADABLE.
    """

    def __init__(self, checkpoint_location: str | None) -> None:
        self.checkpoint_location = checkpoint_location
        self._root: Any = _session_of_this_worker() if checkpoint_location else None
        self.is_only_server = False
        self._runs_before: set[str] = set()
        if self._root is not None:
            _refuse_spark_3()
            end_with_server()
            # A client names, in each request, the session that answered it first. Another server refuses that
            # (SESSION_CHANGED), even at the same port and for the same session id.
            self._runs_before = {query.runId for query in self._root.streams.active}
            self.is_only_server = claim_checkpoint(checkpoint_location or "")

    def __reduce__(self) -> tuple[type[ServerSession], tuple[str | None]]:
        # In the client, when foreachBatch is given the function: 3.5 does not tell the client what fails in the worker.
        _refuse_spark_3()
        return ServerSession, (self.checkpoint_location,)

    def run_of(self, query_id: str, frame: DataFrame) -> tuple[str, str | None]:
        """
        The run that ``frame`` is a batch of, and the query's name.

        :raises SparkError: SPARK_CONNECT, or QUERY_NOT_RUNNING.
        """
        if self._root is None:
            raise SparkError.usual(
                "SPARK_CONNECT",
                "Over Spark Connect the writer must reach the server's worker with the function: it learns which "
                "server it serves when the function is unpickled there. This one was created while a batch was "
                "running, or in a worker that differs from those of Apache Spark.",
                'Create the writer outside of the function that foreachBatch is given, or use format("pgonce").',
            )
        running = {query.runId: query.name for query in self._root.streams.active if query.id == query_id}
        # The server forgets a batch's frame when its function has returned or its run has ended, and a query has one
        # run at a time. So this frame's run is the one that was just listed.
        if frame.isStreaming:
            raise SparkError.usual(
                "NOT_CALLED_BY_SPARK",
                "This frame is a stream, and not one batch of it.",
                "Pass the writer to df.writeStream.foreachBatch(...), and the frame on as foreachBatch gives it.",
            )
        older = self._runs_before & running.keys()
        if len(running) == 1 and not older and not _runs:
            (_runs[query_id],) = running
        run_id = _runs.get(query_id)
        if run_id is None or run_id not in running:
            raise self._not_running(query_id, run_id, is_older=bool(older))
        return run_id, running[run_id]

    def _not_running(self, query_id: str, run_id: str | None, *, is_older: bool) -> SparkError:
        belongs = (
            f"query {query_id}, to which the checkpoint {without_credentials(self.checkpoint_location or '')} belongs"
        )
        if is_older:
            what = f"This function was started by another query than {belongs}: that one was running already."
        elif run_id is None and _runs:
            what = f"This function has written batches of query {next(iter(_runs))}, and not of {belongs}."
        elif run_id is None:
            what = f"The server does not run {belongs}, in the session that started this function."
        else:
            what = f"The server is not running {belongs}, as run {run_id}."
        return SparkError.usual(
            "QUERY_NOT_RUNNING",
            what,
            "Give the query and its writer the same checkpointLocation, and start the query again.",
        )


def is_connect(frame: DataFrame) -> bool:
    """Whether a frame is one of Spark Connect's."""
    return type(frame).__module__.startswith("pyspark.sql.connect.")


def _refuse_spark_3() -> None:
    if int(pyspark.__version__.partition(".")[0]) < 4:  # noqa: PLR2004
        raise SparkError.usual(
            "SPARK_TOO_OLD",
            f"Over Spark Connect, foreachBatch needs PySpark 4.0 or newer: version {pyspark.__version__} does not tell "
            "one server from the next, so a worker that outlives its server could take another run for its own.",
            "Run the query on a classic session, which also works with PySpark 3.5; or use PySpark 4.0 or newer.",
        )


def _session_of_this_worker() -> Any:
    """The session that the worker unpickles the function in; None in any other process, and once a batch runs."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != _WORKER:
        return None
    if not any(frame.f_code.co_name == "read_command" for frame, _ in traceback.walk_stack(None)):
        return None
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.getActiveSession()


_LOOK_SECONDS = 1.0


@cache
def end_with_server() -> None:
    """
    End this process soon after the one that started it, in a thread; a transaction that is open then is rolled back.

    Without this, a worker that waits for a server that does not answer would keep its writer's row, and the checkpoint
    that it has claimed, for ten minutes.
    """
    threading.Thread(target=_end_with, args=[os.getppid()], name="pgonce-orphaned", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
