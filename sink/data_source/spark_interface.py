"""
``df.writeStream.format("pgonce")``: what Spark calls, and where. (``df.write`` is handed on to ``batch_jobs``.)

The planner's worker and the commit worker both build the writer, for every batch; tasks run ``write``; the commit
worker runs ``commit`` or ``abort``. Invariant: nothing is kept between calls but connections and receivers; identity
comes with the commit messages, offsets from the checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import NOTHING, PgonceError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..border import called_by_spark
from ..changes.reader import reader_of
from ..encoding.encoded_types import STAGED_COLUMNS, encoded_columns, refuse_more_columns_than
from ..errors import SparkError
from ..identity.origin import Origin
from ..identity.planned_batch import planned_batch, staging_table
from ..identity.planning import planned_entry
from ..options.position_columns import written_type
from ..options.sink_options import SinkOptions, parse_options
from ..staging.table import drop_staging_table
from ..writing.first_batch import refuse_first_batch
from ..writing.first_look import look_once
from .batch_jobs.job_writer import JobWriter, job_writer
from .carrier import Carrier
from .commit_parcels import commit_parcels
from .freeze_heap import settle
from .on_executors import reduced
from .parcel import Parcel, Staged
from .receiver.launch import receiver_for
from .stream_arrow_writer import StreamArrowWriter
from .task_writer import TaskWriter

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
        """Spark asks for this when somebody reads."""
        raise SparkError("NOT_A_SOURCE", "pgonce writes; it does not read.", NOTHING, "Read with Spark's jdbc source.")

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        """
        Build the writer of one run of a batch job (``df.write``).

        :raises PgonceError: if the options, the schema or the table do not allow one; no row has moved yet.
        """
        return job_writer(self.options, schema, overwrite=overwrite)

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
        why = "rows may have to be staged, which takes a column more; foreachBatch with PostgresBatchWriter needs none"
        refuse_more_columns_than(encoded, STAGED_COLUMNS, why)
        # Not for the commit: another driver may have committed this very batch, and only the ledger can tell. Not for
        # an abort: if that failed, it would hide the reason and leave the staging table (seen: "Writing job failed.").
        planned = planned_entry(options) if self._plans else None
        # If Spark writes an entry for this batch, it has dated it before this moment.
        planned_by_ms = int(time.time() * 1000)
        carrier: Carrier | None = None
        if self._plans:
            written = written_type(encoded, options.positions, options.destination)
            _look_first(options, written, planned)
            carrier = receiver_for(options, written)
        writer = StreamWriter(TaskWriter(options, schema, planned, planned_by_ms, carrier))
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
    """Batch 0 as its commit will describe it; the run, which the planner is not told, is no part of that."""
    query_id = Checkpoint(options.checkpoint_location).query_id() or ""
    return planned_batch(options, Origin(query_id, "", 0, planned))


class StreamWriter(StreamArrowWriter):
    """One batch's writer: Spark sends it to the tasks, and builds another one for the commit."""

    def __init__(self, task_writer: TaskWriter) -> None:
        self.options = task_writer.options
        self.task_writer = task_writer

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it in such a way that a task where pgonce is missing says so in plain words."""
        return reduced(self)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parcel:
        """In a task: encode the partition."""
        parcel = self.task_writer.write(iterator)
        settle("writing")
        return parcel

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the commit worker: publish the batch, or skip it."""
        commit_parcels(self.options, encoded_columns(self.task_writer.written_type), messages, batchId)
        settle("committing")

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """
        In the commit worker, when a batch failed: drop what its tasks staged, and what a carrier took.

        A commit that is still under way holds a lock on that table, so the table is never dropped under it.
        """
        parcels = [message for message in messages if isinstance(message, Parcel)]
        for carrier in {parcel.carrier for parcel in parcels if parcel.carrier}:
            carrier.give_up()
        origins = {parcel.origin for parcel in parcels if isinstance(parcel.payload, Staged)}
        try:
            for origin in origins:
                with connect(self.options.commit.url, autocommit=True) as connection:
                    drop_staging_table(connection, staging_table(self.options, origin).name)
        except (psycopg.Error, PgonceError) as error:
            _log.warning("a staging table is left for the next sweep: %s", error)
