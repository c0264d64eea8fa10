"""
What happens to the rows of one partition?

Runs in a task, on an executor. Invariant: a task touches neither the target nor the ledger's verdicts; all that it
does may be done twice, or in vain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.errors import NOTHING

from ..changes.reader import ChangeReader, reader_of
from ..encoding.copy_encoder import CopyEncoder
from ..encoding.unfit_rows import UnfitRows
from ..errors import SparkError
from ..identity.origin import Origin
from ..identity.planned_batch import staging_table
from ..options.position_columns import written_type
from ..options.sink_options import SinkOptions
from ..positions import Reach, reach, reach_of, widen
from ..staging.stager import Stager
from .carrier import Carrier
from .held_rows import HeldRows
from .parcel import Inline, Parcel, Received, Staged, inline_cap


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
        return written_type(self.reader.struct_type, self.options.positions, self.options.destination)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Parcel:
        """
        Encode ``batches``, and return the parcel that Spark brings to the commit.

        Rows with a value that Postgres cannot hold go with it, if the query puts them aside.

        :raises EncodingError: for a value that Postgres cannot hold, and a change that says not what to do.
        :raises StagingError: if rows must be staged and this executor cannot.
        :raises ConnectError: if Postgres stayed away while rows were to be staged.
        :raises PgonceError: if the carrier was lost while it took the rows.
        """
        task = self._task()
        letters, columns = self.options.destination.dead_letters, self.options.positions
        written = self.written_type
        unfit = UnfitRows(written, letters.most if letters else None, columns)
        held = HeldRows(CopyEncoder(written), unfit, columns)
        cap = inline_cap(self.options.inline_bytes, task.partition_id)
        batches = map(self.reader.read, batches)
        for batch in batches:
            held.take(batch)
            if held.size > cap:
                return self._carried(task, held, batches) or self._staged(task, held, batches)
        rows = sum(batch.num_rows for batch in held.batches)
        payload = Inline(tuple(held.bodies), tuple(held.positions))
        return self._parcel(task, rows, payload, unfit, reach(held.positions))

    def _carried(self, task: _Task, held: HeldRows, batches: Iterator[pa.RecordBatch]) -> Parcel | None:
        if self.carrier is None:
            return None
        encoded = itertools.chain(zip(held.bodies, held.batches, strict=True), map(held.encoded, batches))
        sent = ((body, batch.num_rows) for body, batch in encoded)
        rows = self.carrier.send_rows(task.origin, task.partition_id, task.attempt_id, sent)
        if rows is None:
            return None
        return self._parcel(task, rows, Received(task.attempt_id), held.unfit, {})

    def _staged(self, task: _Task, held: HeldRows, batches: Iterator[pa.RecordBatch]) -> Parcel:
        # They are encoded again, with their mark.
        held.bodies.clear()
        held.positions.clear()
        stager = Stager(
            self.options.staging_url,
            staging_table(self.options, task.origin),
            self.reader.struct_type,
            task.attempt_id,
            self.options.commit.retry_timeout,
            self.options.commit.lock_timeout,
            held.unfit,
        )
        columns = self.options.positions
        reached: Reach = {}

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in itertools.chain(held.batches, batches):
                if columns:
                    widen(reached, reach([columns.of(batch)]))
                yield batch

        staged = Staged(stager.stage(noted()))
        rows = sum(count for _, count in staged.promised)
        return self._parcel(task, rows, staged, held.unfit, reached)

    def _parcel(
        self, task: _Task, rows: int, payload: Inline | Staged | Received, unfit: UnfitRows, reached: Reach
    ) -> Parcel:
        # Rows that were put aside are rows of the batch: where they come from is asked of them, too.
        widen(reached, reach_of(row.place for row in unfit.rows if row.place))
        return Parcel(task.origin, task.partition_id, rows, payload, reached, self.carrier, tuple(unfit.rows))

    def _task(self) -> _Task:
        context = TaskContext.get()
        if context is None:
            raise SparkError("NO_TASK", "write() was called outside a Spark task.", NOTHING, "Let Spark call it.")
        return _Task(self._origin(context), context.partitionId(), context.taskAttemptId())

    def _origin(self, context: TaskContext) -> Origin:
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        run_id = context.getLocalProperty("spark.jobGroup.id")
        if not (query_id and batch_id and run_id):
            raise SparkError(
                "NO_IDENTITY",
                "Spark does not say which query, run and batch this task belongs to.",
                NOTHING,
                "Write with df.writeStream on PySpark 4.0 to 4.3; do not clear the job group inside the query.",
            )
        return Origin(query_id, run_id, int(batch_id), self.planned, self.planned_by_ms)


@dataclass(frozen=True)
class _Task:
    """Which attempt of which task this is, and of which batch."""

    origin: Origin
    partition_id: int
    attempt_id: int
