"""
``format("pgonce")``: what Spark calls, and where.

Of a stream, the planner's worker and the commit worker both build the writer, for every batch. Of a batch job, the
planner's worker builds it, once for each ``save()``, and Spark sends that same writer on. Tasks run ``write``; the
commit worker runs ``commit`` or ``abort``. Invariant: nothing is kept between calls but connections and receivers. A
stream's identity comes with the commit messages, its offsets from the checkpoint; a job's run is a random id, drawn
when its writer is built.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import NOTHING, PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..border import called_by_spark
from ..changes.reader import reader_of
from ..encoding.encoded_types import STAGED_COLUMNS, encoded_columns, refuse_more_columns_than
from ..errors import SparkError
from ..identity.from_checkpoint import Origin
from ..identity.planned_batch import planned_batch, planned_entry, staging_table
from ..options.position_columns import written_type
from ..options.sink_options import JobOptions, SinkOptions, parse_job_options, parse_options
from ..staging import OF_JOB, drop_staging_table, give_up_job
from ..writing.first_batch import refuse_first_batch
from ..writing.first_look import look_once
from .commit_parcels import commit_job_parcels, commit_parcels
from .parcel import Parcel
from .receiver.client import Receiver
from .receiver.launch import receiver_for
from .task_writer import MicroBatch, TaskWriter
from .workers import reduced, settle

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """
        The same for PySpark 4.0, which has no such class, so that tasks get Arrow's batches on every PySpark.

        Its planner looks only for the class of batch jobs before it hands Arrow to a writer, a stream's writer
        included (write_into_data_source.py); and its commit worker calls ``commit(messages, batch_id)`` of the object
        that ``streamWriter`` returns.
        """


_log = logging.getLogger("pgonce")


class PgonceDataSource(DataSource):
    """The data source ``pgonce``: a sink for streams and for batch jobs, and nothing else."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options
        self._plans = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Runs only in the commit worker, which gets this pickled; the planner's worker makes its own."""
        self.__dict__.update(state)
        self._plans = False

    @classmethod
    def name(cls) -> str:
        """What users put into ``format(...)``."""
        return "pgonce"

    @called_by_spark
    def schema(self) -> StructType:
        """Spark asks for this when a query reads from the source."""
        raise SparkError("NOT_A_SOURCE", "pgonce writes; it does not read.", NOTHING, "Read with Spark's jdbc source.")

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        """
        Build the writer of one run of a batch job (``df.write``).

        :raises PgonceError: if the options, the schema or the table do not allow one; no row has moved yet.
        """
        options = parse_job_options(self.options, overwrite=overwrite)
        encoded = reader_of(options.destination, schema).struct_type
        columns = encoded_columns(encoded)
        # Refused at once, not only when a partition is too large to travel inline.
        refuse_more_columns_than(encoded, STAGED_COLUMNS, "rows may have to be staged, which takes a column more")
        look_once(options, options.commit.url, options.destination, columns)
        refuse_first_batch(options.commit, None, options.sink_name, options.destination)
        run = Origin(OF_JOB + options.batch_key, str(uuid4()), 0, None)
        return JobWriter(options, run, TaskWriter(options, schema, run))

    @called_by_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """
        Build the writer of one batch.

        :raises PgonceError: if the options, the schema or the checkpoint do not allow one; no row has moved yet.
        """
        options = parse_options(self.options, overwrite=overwrite)
        if options.positions:
            options.positions.check(schema)
        encoded = reader_of(options.destination, schema).struct_type
        encoded_columns(encoded)
        # Refused at the first batch, not only at the first one that is too large to travel inline.
        why = (
            "rows may have to be staged, and a staging table has one more column; foreachBatch with "
            "PostgresBatchWriter does not need it"
        )
        refuse_more_columns_than(encoded, STAGED_COLUMNS, why)
        # Not for the commit: another driver may have committed this batch, and only the ledger can tell. Not for
        # an abort: if that failed, it would hide the reason and leave the staging table (seen: "Writing job failed.").
        planned = planned_entry(options) if self._plans else None
        # If Spark writes an entry for this batch, it has dated it before this moment.
        planned_by_ms = int(time.time() * 1000)
        receiver: Receiver | None = None
        if self._plans:
            written = written_type(encoded, options.positions, options.destination)
            _look_first(options, written, planned)
            receiver = receiver_for(options, written)
        task_writer = TaskWriter(options, schema, MicroBatch(planned, planned_by_ms), receiver)
        writer = StreamWriter(options, task_writer)
        settle("planning")
        return writer


def _look_first(options: SinkOptions, written: StructType, planned: OffsetLogEntry | None) -> None:
    """Refuse a target that does not fit, before a row is computed."""
    # At a later batch a login may be refused because a password is being changed, and the commit waits for that.
    is_first = planned is not None and planned.batch_id == 0
    look_once(options, options.commit.url, options.destination, encoded_columns(written), at_the_door=is_first)
    if is_first:
        refuse_first_batch(options.commit, _first_batch(options, planned), options.sink_name, options.destination)


def _first_batch(options: SinkOptions, planned: OffsetLogEntry | None) -> PlannedBatch:
    """Batch 0 as its commit will describe it; without the run, because Spark does not tell it to the planner."""
    query_id = Checkpoint(options.checkpoint_location).query_id() or ""
    return planned_batch(options, Origin(query_id, "", 0, planned))


class StreamWriter(DataSourceStreamArrowWriter):
    """One batch's writer: Spark sends it to the tasks, and builds another one for the commit."""

    def __init__(self, options: SinkOptions, task_writer: TaskWriter) -> None:
        self.options = options
        self.task_writer = task_writer

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it so that a task without pgonce raises an error that says so."""
        return reduced(self, __name__)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        """In a task: encode the partition."""
        parcel = self.task_writer.write(iterator)
        settle("writing")
        return parcel

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the commit worker: publish the batch, or skip it."""
        commit_parcels(self.options, self.task_writer.columns, messages, batchId)
        settle("committing")

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """
        In the commit worker, when a batch failed: drop what its tasks staged, and what a receiver took.

        A commit that is still under way holds a lock on that table, so the table is never dropped under it.
        """
        parcels = [message for message in messages if isinstance(message, Parcel)]
        for receiver in {parcel.receiver for parcel in parcels if parcel.receiver}:
            receiver.give_up()
        with _left_for_the_next_sweep():
            for origin in {parcel.origin for parcel in parcels if parcel.staged}:
                with connect(self.options.commit.url, autocommit=True) as connection:
                    drop_staging_table(connection, staging_table(self.options, origin).name)


class JobWriter(DataSourceArrowWriter):
    """The writer of one run of a batch job: the same in the planner's worker, in the tasks and in the commit."""

    def __init__(self, options: JobOptions, run: Origin, task_writer: TaskWriter) -> None:
        self.options = options
        self.run = run
        self.task_writer = task_writer

    def __reduce__(self) -> tuple[Any, ...]:
        """As of a stream's writer."""
        return reduced(self, __name__)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        """In a task: encode the partition."""
        return self.task_writer.write(iterator)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the commit worker: publish the rows under their key, or skip them."""
        commit_job_parcels(self.options, self.task_writer.columns, messages)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """
        In the commit worker, when a task or the commit has failed: drop what this run has staged.

        A commit that is still under way holds a lock on that table, so the table is never dropped under it.
        """
        # A task that failed has sent no message, and may have staged rows all the same.
        parcels = [message for message in messages if isinstance(message, Parcel)]
        is_complete = 0 < len(parcels) == len(messages)
        if is_complete and not any(parcel.staged for parcel in parcels):
            return
        url = self.options.commit.url
        with _left_for_the_next_sweep(), connect(url, autocommit=True) as connection:
            # A task that Spark is still killing may be about to create it, and to stage its rows.
            ensure_ledger(url, connection)
            give_up_job(connection, staging_table(self.options, self.run))


@contextmanager
def _left_for_the_next_sweep() -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, PgonceError) as error:
        _log.warning("a staging table is left for the next sweep: %s", error)
