"""
Write one partition of a stream's micro-batch, or of a batch job.

Runs in a task, on an executor. Invariant: a task touches neither the target nor the ledger's verdicts; all that it does
may be done twice, or be thrown away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry

from ..encoding.copy_encoder import CopyEncoder
from ..encoding.encoded_types import EncodedColumn, encoded_columns
from ..encoding.unfit_rows import UnfitRows
from ..errors import SparkError
from ..identity.from_checkpoint import Origin
from ..options.destination import Destination
from ..options.position_columns import PositionColumns, written_type
from ..options.routes import most_dead_letters
from ..options.sink_options import JobOptions, SinkOptions
from ..positions import EncodedRows, Reach, encoded_rows, reach, widen
from ..read_rows import RowReader
from .offer import Call, Offer, Taken
from .parcel import Parcel, RowSum, inline_cap
from .workers import imported_late, settle


@dataclass(frozen=True)
class MicroBatch:
    """
    A batch of a stream, as far as its planner knows it; Spark tells each task the rest.

    The fields are those of :class:`~pgonce.sink.identity.from_checkpoint.Origin`.
    """

    planned: OffsetLogEntry | None
    planned_by_ms: int | None = None

    def origin(self, context: TaskContext) -> Origin:
        """
        The batch that a task belongs to.

        :raises SparkError: NOT_CALLED_BY_SPARK.
        """
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        run_id = context.getLocalProperty("spark.jobGroup.id")
        if not (query_id and batch_id and run_id):
            raise SparkError.usual(
                "NOT_CALLED_BY_SPARK",
                "Spark does not say which query, run and batch this task belongs to.",
                "Write with df.writeStream on PySpark 4.0 to 4.3; do not clear the job group inside the query.",
            )
        return Origin(query_id, run_id, int(batch_id), self.planned, self.planned_by_ms)


@dataclass(frozen=True)
class TaskWriter:
    """
    Encodes a partition and sends it inline or, if it is too large, to the receiver or the staging table, or to both.

    ``reader`` reads the rows of the frame. ``identity`` says which batch the rows belong to: for a batch job, all of it
    is known before. ``offer`` has the receiver, if there is one.
    """

    options: SinkOptions | JobOptions
    reader: RowReader
    identity: MicroBatch | Origin
    offer: Offer | None = None

    @property
    def written_type(self) -> StructType:
        """The columns that go to the target."""
        return written_type(self.reader.struct_type, self.options.positions, self.options.destination)

    @property
    def columns(self) -> tuple[EncodedColumn, ...]:
        """The same columns as they are encoded; none in the commit worker, where records are decoded."""
        written = self.written_type
        return encoded_columns(written) if written.fields else ()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Parcel:
        """
        Encode ``batches``, and return the parcel that Spark brings to the commit.

        Rows with a value that Postgres cannot hold go with it, if the query puts them aside.

        :raises EncodingError: for a value that Postgres cannot hold, and a change without an operation.
        :raises StagingError: if rows must be staged and this executor cannot.
        :raises ConnectError: if Postgres was unavailable while rows were to be staged.
        """
        context = TaskContext.get()
        if context is None:
            raise SparkError.usual("NOT_CALLED_BY_SPARK", "write() was called outside a task.", "Let Spark call it.")
        origin = self.identity if isinstance(self.identity, Origin) else self.identity.origin(context)
        task = _Task(origin, context.partitionId(), context.taskAttemptId())
        held = self._nothing_held()
        cap = inline_cap(self.options.inline_bytes, task.partition_id)
        call_at = inline_cap(self.options.call_bytes, task.partition_id)
        batches = map(self.reader.read, batches)
        call: Call | None = None
        taken: Taken | None = None
        try:
            for batch in batches:
                held.take(batch)
                if self.offer and call is None and held.size > call_at:
                    # It may still have to start, and this task goes on meanwhile.
                    call = self.offer.receiver().call(context.getLocalProperty)
                if call and taken is None and (call.is_answered or held.size > cap):
                    # If it keeps none of them, they may still travel inline: this executor may have no way to Postgres.
                    taken, held = self._sent(task, held, batches, call)
                if held.size > cap or (taken and taken.rows):
                    return self._sent_on(task, held, batches, call, taken)
        finally:
            if call:
                call.drop()
        rows = sum(rows.count for rows in held.rows)
        return replace(self._parcel(task, rows, held), inline=tuple(held.rows))

    def _nothing_held(self) -> _HeldRows:
        columns, written = self.options.positions, self.written_type
        encoder = CopyEncoder(written)
        unfit = UnfitRows(most_dead_letters(self.options.destination), columns, encoder.columns)
        is_hashed = isinstance(self.options, JobOptions) and self.options.batch_hash
        return _HeldRows(encoder, unfit, columns, RowSum() if is_hashed else None)

    def _sent(
        self, task: _Task, held: _HeldRows, batches: Iterator[pa.RecordBatch], call: Call
    ) -> tuple[Taken, _HeldRows]:
        """Send these rows, and those that come, to the receiver; what it has kept, and the rows that are left."""
        first = iter(held.batches)
        encoded = itertools.chain(zip(held.rows, first, strict=False), map(held.encoded, batches))
        taken = call.send_rows(task.origin, task.partition_id, task.attempt_id, encoded)
        left = replace(held, batches=[], rows=[], size=0)
        for batch in itertools.chain(taken.left, first):
            left.take(batch)
        return taken, left

    def _sent_on(
        self, task: _Task, held: _HeldRows, batches: Iterator[pa.RecordBatch], call: Call | None, taken: Taken | None
    ) -> Parcel:
        """Stage the rows that the receiver has not kept, if there is one."""
        # What is staged is encoded again, with its mark.
        held.rows.clear()
        # Those that are held have been added to the hash.
        others = (held.encoded(batch)[1] for batch in batches) if held.row_sum else batches
        staged = self._staged(task, held, itertools.chain(held.batches, others))
        rows = sum(count for _, count in staged)
        if taken is None or not taken.rows:
            unreached = call.driver if call is not None and call.is_unreached else None
            return replace(self._parcel(task, rows, held), staged=staged, unreached=unreached)
        received = task.attempt_id, taken.rows
        return replace(self._parcel(task, taken.rows + rows, held), staged=staged, received=received)

    def _staged(self, task: _Task, held: _HeldRows, batches: Iterator[pa.RecordBatch]) -> tuple[tuple[int, int], ...]:
        """Stage these rows, and return their marks; nothing is imported or connected to if there are none."""
        first = next(batches, None)
        if first is None:
            return ()
        settle("staging")
        # Here, because psycopg takes as long to import as all that other tasks need.
        with imported_late(f"{__package__}.stager"):
            from .stager import stager_of
        stager = stager_of(self.options, task.origin, self.reader.struct_type, task.attempt_id, held.unfit)

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in itertools.chain([first], batches):
                if held.columns:
                    widen(held.reach, reach([held.columns.of(batch)]))
                yield batch

        return stager.stage(noted())

    def _parcel(self, task: _Task, rows: int, held: _HeldRows) -> Parcel:
        """The parcel of the task, which does not say yet where the rows are."""
        where = self.options.destination
        return Parcel(
            task.origin,
            task.partition_id,
            rows,
            reach=held.reach,
            offer=self.offer,
            unfit=tuple(held.unfit.rows),
            row_sum=held.row_sum.value if held.row_sum else None,
            columns=self.columns if isinstance(where, Destination) and where.decoding else (),
        )


@dataclass(frozen=True)
class _Task:
    """One attempt of one task, and its batch."""

    origin: Origin
    partition_id: int
    attempt_id: int


@dataclass
class _HeldRows:
    """
    The rows that were taken so far, as they came and as they are encoded.

    ``batches`` and ``rows`` are the same ones, those that can be encoded; the others are ``unfit``. ``columns`` say
    where in Kafka each row comes from, and ``reach`` how far all rows of the task reach that were seen so far, whatever
    becomes of them. ``row_sum`` adds up the hashes of all rows that are encoded.
    """

    encoder: CopyEncoder
    unfit: UnfitRows
    columns: PositionColumns | None = None
    row_sum: RowSum | None = None
    reach: Reach = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[EncodedRows] = field(default_factory=list)
    size: int = 0
    """The bytes of ``rows``."""

    def take(self, batch: pa.RecordBatch) -> None:
        """
        Encode these rows as well.

        :raises EncodingError: for a value that Postgres cannot hold, and a row without a position.
        """
        rows, fit = self.encoded(batch)
        if rows.count:
            self.batches.append(fit)
            self.rows.append(rows)
            self.size += rows.size

    def encoded(self, batch: pa.RecordBatch) -> tuple[EncodedRows, pa.RecordBatch]:
        """Encode the rows that can be encoded, and return these, also as they came; they are not held."""
        # Asked first, because a row without a position is refused in any case.
        places = self.columns.of(batch) if self.columns else None
        body, fit = self.unfit.encode_others(self.encoder, batch)
        if self.row_sum:
            self.row_sum.add(body)
        if self.columns and places is not None:
            # Rows that are put aside are rows of the batch: their positions count as well.
            widen(self.reach, reach([places]))
            places = places if fit is batch else self.columns.of(fit)
        return encoded_rows(body, fit.num_rows, places), fit
