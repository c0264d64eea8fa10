"""
What happens to the rows of one partition of a batch job?

Runs in a task, on an executor. Invariant: a task touches neither the target nor the key; all that it does may be done
twice, or in vain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import NOTHING

from ...changes.reader import ChangeReader, reader_of
from ...encoding.copy_encoder import CopyEncoder
from ...errors import SparkError
from ...options.job_options import JobOptions
from ...staging.stager import Stager
from ..parcel import Inline, Parcel, Staged, inline_cap
from .content_hash import RowSum
from .job_staging import job_origin, job_staging_table


@dataclass(frozen=True, repr=False)
class JobParcel(Parcel):
    """One task's rows of a batch job; ``row_sum`` is the sum of their hashes, if they are to be hashed."""

    row_sum: int | None = None


@dataclass(frozen=True)
class JobTask:
    """
    Encodes a partition and sends it inline or, if it is too large, to the staging table of this run.

    ``frame_type`` has the columns of the frame.
    """

    options: JobOptions
    frame_type: StructType
    run: UUID

    @cached_property
    def reader(self) -> ChangeReader:
        """What reads the frame's rows."""
        return reader_of(self.options.destination, self.frame_type)

    def write(self, batches: Iterator[pa.RecordBatch]) -> JobParcel:
        """
        Encode ``batches``, and return the parcel that Spark brings to the commit.

        :raises EncodingError: for a value that Postgres cannot hold, and a change that says not what to do.
        :raises StagingError: if rows must be staged and this executor cannot.
        :raises ConnectError: if Postgres stayed away while rows were to be staged.
        """
        context = TaskContext.get()
        if context is None:
            raise SparkError("NO_TASK", "write() was called outside a Spark task.", NOTHING, "Let Spark call it.")
        partition_id = context.partitionId()
        encoder = CopyEncoder(self.reader.struct_type)
        cap = inline_cap(self.options.inline_bytes, partition_id)
        row_sum = RowSum() if self.options.batch_hash else None
        held: list[pa.RecordBatch] = []
        bodies: list[bytes] = []
        size = 0
        batches = map(self.reader.read, batches)
        for batch in batches:
            held.append(batch)
            bodies.append(encoder.encode(batch))
            size += len(bodies[-1])
            if row_sum:
                row_sum.add(bodies[-1])
            if size > cap:
                bodies.clear()
                rest = row_sum.adding(batches, encoder) if row_sum else batches
                staged = self._staged(context.taskAttemptId(), itertools.chain(held, rest))
                rows = sum(count for _, count in staged.promised)
                return self._parcel(partition_id, rows, staged, row_sum)
        return self._parcel(partition_id, encoder.rows, Inline(tuple(bodies)), row_sum)

    def _staged(self, attempt_id: int, batches: Iterator[pa.RecordBatch]) -> Staged:
        commit = self.options.commit
        table = job_staging_table(self.options.batch_key, self.options.sink_label, self.run)
        stager = Stager(
            self.options.staging_url,
            table,
            self.reader.struct_type,
            attempt_id,
            commit.retry_timeout,
            commit.lock_timeout,
        )
        return Staged(stager.stage(batches))

    def _parcel(self, partition_id: int, rows: int, payload: Inline | Staged, row_sum: RowSum | None) -> JobParcel:
        origin = job_origin(self.options.batch_key, self.run)
        return JobParcel(origin, partition_id, rows, payload, row_sum=row_sum.value if row_sum else None)
