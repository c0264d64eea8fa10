"""
What happens to the rows of one partition?

Runs in a task, on an executor. Invariant: a task touches neither the target nor the ledger's verdicts; all that it
does may be done twice, or in vain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from offsets_store.errors import NOTHING
from sink.copy_encoder import CopyEncoder
from sink.errors import SparkError
from sink.options import SinkOptions
from sink.parcel import OffsetLogEntry, Origin, Parcel, inline_cap
from sink.stager import Stager
from sink.staging import StagingTable


@dataclass(frozen=True)
class TaskWriter:
    """Encodes a partition and sends it inline, or through the batch's staging table where it is too large."""

    options: SinkOptions
    struct_type: StructType
    planned: OffsetLogEntry | None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Parcel:
        """
        Encode ``batches``; the parcel is what Spark brings to the commit.

        :raises EncodingError: for a value that Postgres cannot hold.
        :raises StagingError: where rows must be staged and this executor cannot.
        :raises ConnectError: where Postgres stayed away while rows were to be staged.
        """
        context = TaskContext.get()
        if context is None:
            raise SparkError("NO_TASK", "write() was called outside a Spark task.", NOTHING, "Let Spark call it.")
        origin = self._origin(context)
        partition_id, attempt_id = context.partitionId(), context.taskAttemptId()
        encoder = CopyEncoder(self.struct_type)
        cap = inline_cap(self.options.inline_bytes, partition_id)
        held: list[pa.RecordBatch] = []
        bodies: list[bytes] = []
        size = 0
        for batch in batches:
            body = encoder.encode(batch)
            held.append(batch)
            size += len(body)
            if size > cap:
                bodies.clear()
                stager = Stager(
                    self.options.commit.url,
                    staging_table(self.options, origin),
                    self.struct_type,
                    attempt_id,
                    self.options.commit.retry_timeout,
                )
                staged = stager.stage(itertools.chain(held, batches))
                return Parcel(origin, partition_id, sum(rows for _, rows in staged), staged=staged)
            bodies.append(body)
        return Parcel(origin, partition_id, sum(b.num_rows for b in held), bodies=tuple(bodies))

    def _origin(self, context: TaskContext) -> Origin:
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        run_id = context.getLocalProperty("spark.jobGroup.id")
        if not (query_id and batch_id and run_id):
            raise SparkError(
                "NO_IDENTITY",
                "Spark does not say which query, run and batch this task belongs to.",
                NOTHING,
                "Write with df.writeStream on PySpark 4.1 to 4.3; do not clear the job group inside the query.",
            )
        return Origin(query_id, run_id, int(batch_id), self.planned)


def staging_table(options: SinkOptions, origin: Origin) -> StagingTable:
    """The staging table of a batch of this sink."""
    label = options.sink_name or options.destination.table
    return StagingTable(origin.query_id, label, origin.run_id, origin.batch_id)
