"""
``format("pgonce")``: what Spark calls, and where.

Of a stream, the planner's worker and the commit worker both build the writer, for every batch. Of a batch job, the
planner's worker builds it, once for each ``save()``, and Spark sends that same writer on. Tasks run ``write``; the
commit worker runs ``commit`` or ``abort``. Invariant: nothing is kept between calls but connections and receivers. A
stream's identity comes with the commit messages, its offsets from the checkpoint; a job's run is a random id, drawn
when its writer is built.

All these processes import this module, and each of them once more for every worker that Spark starts. So it imports
almost nothing: each function imports what its own process needs.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import UNCHANGED, said_of_a_job

from ..border import called_by_spark
from ..errors import SparkError
from .workers import importing, reduced, settle

if TYPE_CHECKING:
    import pyarrow as pa

    from ..identity.from_checkpoint import Origin
    from ..options.sink_options import JobOptions, SinkOptions
    from .offer import DataSourceRooms
    from .parcel import Parcel
    from .task_writer import TaskWriter

# What a task imports to unpickle a writer; with it comes all that every task runs.
_TASK_CODE = f"{__package__}.task_writer"

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


class PgonceDataSource(DataSource):
    """The data source ``pgonce``: a sink for streams and for batch jobs, and nothing else."""

    rooms: ClassVar[DataSourceRooms]
    """Set by the class that Spark finds."""

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
        what = "pgonce writes; it does not read."
        raise SparkError("NOT_A_SOURCE", what, UNCHANGED, "Read with Spark's jdbc source.")

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        """
        Build the writer of one run of a batch job (``df.write``).

        :raises PgonceError: if the options, the schema or the table do not allow one; no row has moved yet.
        """
        with importing():
            from .planning import plan_job
        return JobWriter(*plan_job(self.options, schema, self.rooms, overwrite=overwrite), self.rooms)

    @called_by_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """
        Build the writer of one batch.

        :raises PgonceError: if the options, the schema or the checkpoint do not allow one; no row has moved yet.
        """
        settle("planning")
        with importing():
            from .planning import plan_batch
        # The commit worker does not look: another driver may have committed this batch, and only the ledger can tell.
        # Before an abort, a look that failed would hide the reason, and leave the staging table (seen: "Writing job
        # failed.").
        planned = plan_batch(self.options, schema, self.rooms, overwrite=overwrite, looks=self._plans)
        return StreamWriter(*planned, self.rooms)


class StreamWriter(DataSourceStreamArrowWriter):
    """One batch's writer: Spark sends it to the tasks, and builds another one for the commit."""

    def __init__(self, options: SinkOptions, task_writer: TaskWriter, rooms: DataSourceRooms) -> None:
        self.options = options
        self.task_writer = task_writer
        self.rooms = rooms

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it so that a task without pgonce raises an error that says so."""
        return reduced(self, _TASK_CODE)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        """In a task: encode the partition."""
        settle("writing")
        return self.task_writer.write(iterator)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the commit worker: publish the batch, or skip it."""
        with importing():
            from .commit_parcels import commit_parcels, note_unreached
        commit_parcels(self.options, self.task_writer.columns, messages, batchId, self.rooms)
        note_unreached(messages)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """In the commit worker, when a batch failed: drop what its tasks staged, and what a receiver took."""
        from .commit_parcels import give_up_parcels

        give_up_parcels(self.options, messages)


class JobWriter(DataSourceArrowWriter):
    """The writer of one run of a batch job: the same in the planner's worker, in the tasks and in the commit."""

    def __init__(self, options: JobOptions, run: Origin, task_writer: TaskWriter, rooms: DataSourceRooms) -> None:
        self.options = options
        self.run = run
        self.task_writer = task_writer
        self.rooms = rooms

    def __reduce__(self) -> tuple[Any, ...]:
        """As of a stream's writer."""
        return reduced(self, _TASK_CODE)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        """In a task: encode the partition."""
        with said_of_a_job():
            return self.task_writer.write(iterator)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the commit worker: publish the rows under their key, or skip them."""
        with importing():
            from .commit_parcels import commit_job_parcels
        with said_of_a_job():
            commit_job_parcels(self.options, self.task_writer.columns, messages, self.rooms)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the commit worker, when a task or the commit has failed: drop what this run has staged."""
        from .commit_parcels import give_up_job_parcels

        give_up_job_parcels(self.options, self.run, messages)
