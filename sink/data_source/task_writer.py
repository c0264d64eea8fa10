"""
What happens to the rows of one partition?

Runs in a task, on an executor. Invariant: a task touches neither the target nor the ledger's verdicts; all that it
does may be done twice, or in vain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.errors import NOTHING
from pgonce.sink.changes.reader import ChangeReader, reader_of
from pgonce.sink.data_source.carrier import Carrier
from pgonce.sink.data_source.parcel import Inline, Parcel, Received, Staged, inline_cap
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.errors import SparkError
from pgonce.sink.identity.origin import Origin
from pgonce.sink.identity.planned_batch import staging_table
from pgonce.sink.options import SinkOptions
from pgonce.sink.positions.columns import written_type
from pgonce.sink.positions.reach import Reach, reach, widen
from pgonce.sink.staging.stager import Stager


@dataclass(frozen=True)
class TaskWriter:
    """
    Encodes a partition and sends it inline or, if it is too large, to the carrier or the batch's staging table.

    ``frame_type`` has the columns of the frame.
    """

    options: SinkOptions
    frame_type: StructType
    planned: OffsetLogEntry | None
    planned_by_ms: int | None = None
    carrier: Carrier | None = None

    @cached_property
    def reader(self) -> ChangeReader:
        """What reads the frame's rows."""
        return reader_of(self.options.destination, self.frame_type)

    @property
    def written_type(self) -> StructType:
        """The columns that go to the target."""
        return written_type(self.reader.struct_type, self.options.positions)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Parcel:
        """
        Encode ``batches``, and return the parcel that Spark brings to the commit.

        :raises EncodingError: for a value that Postgres cannot hold, and a change that says not what to do.
        :raises StagingError: if rows must be staged and this executor cannot.
        :raises ConnectError: if Postgres stayed away while rows were to be staged.
        :raises PgonceError: if the carrier was lost while it took the rows.
        """
        context = TaskContext.get()
        if context is None:
            raise SparkError("NO_TASK", "write() was called outside a Spark task.", NOTHING, "Let Spark call it.")
        origin = self._origin(context)
        partition_id, attempt_id = context.partitionId(), context.taskAttemptId()
        columns = self.options.positions
        written = self.written_type
        encoder = CopyEncoder(written)
        cap = inline_cap(self.options.inline_bytes, partition_id)
        held: list[pa.RecordBatch] = []
        positions: list[pa.RecordBatch] = []
        bodies: list[bytes] = []
        size = 0
        batches = map(self.reader.read, batches)
        for batch in batches:
            if columns:
                positions.append(columns.of(batch))
                size += positions[-1].nbytes
            body = encoder.encode(batch.select(written.names) if columns else batch)
            held.append(batch)
            size += len(body)
            if size > cap:
                positions.clear()
                if self.carrier:
                    encoded = itertools.chain(zip([*bodies, body], held, strict=True), _encoded(encoder, batches))
                    sent = ((body, batch.num_rows) for body, batch in encoded)
                    rows = self.carrier.send_rows(origin, partition_id, attempt_id, sent)
                    if rows is not None:
                        return Parcel(origin, partition_id, rows, Received(attempt_id), carrier=self.carrier)
                bodies.clear()
                return self._staged(origin, partition_id, attempt_id, itertools.chain(held, batches))
            bodies.append(body)
        rows = sum(batch.num_rows for batch in held)
        payload = Inline(tuple(bodies), tuple(positions))
        return Parcel(origin, partition_id, rows, payload, reach(positions), self.carrier)

    def _staged(self, origin: Origin, partition_id: int, attempt_id: int, batches: Iterator[pa.RecordBatch]) -> Parcel:
        stager = Stager(
            self.options.commit.url,
            staging_table(self.options, origin),
            self.reader.struct_type,
            attempt_id,
            self.options.commit.retry_timeout,
            self.options.commit.lock_timeout,
        )
        columns = self.options.positions
        reached: Reach = {}

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if columns:
                    widen(reached, reach([columns.of(batch)]))
                yield batch

        staged = Staged(stager.stage(noted()))
        rows = sum(count for _, count in staged.promised)
        return Parcel(origin, partition_id, rows, staged, reached, self.carrier)

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
        return Origin(query_id, run_id, int(batch_id), self.planned, self.planned_by_ms)


def _encoded(encoder: CopyEncoder, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    return ((encoder.encode(batch), batch) for batch in batches)
