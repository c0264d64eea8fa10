"""
``df.write.format("pgonce")``: what Spark calls, and where.

The planner's worker builds the writer, once for each ``save()``. Spark sends that same writer to the tasks, which run
``write``, and to the commit worker, which runs ``commit`` or ``abort``. Invariant: the run's random id is drawn when
the writer is built and travels with it, so nothing of Spark's is needed to tell one run from another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.connect import connect

from ...border import called_by_spark
from ...changes.reader import reader_of
from ...encoding.encoded_types import STAGED_COLUMNS, encoded_columns, refuse_more_columns_than
from ...options.job_options import parse_job_options
from ...writing.first_batch import refuse_first_batch
from ...writing.first_look import look_once
from ..on_executors import reduced
from ..parcel import Staged
from .commit_job_parcels import commit_job_parcels
from .job_staging import give_up
from .job_task import JobParcel, JobTask

_log = logging.getLogger("pgonce")


def job_writer(raw: Mapping[str, str], struct_type: StructType, *, overwrite: bool) -> JobWriter:
    """
    The writer of one run of a batch job.

    :raises PgonceError: if the options, the schema or the table do not allow one; no row has moved yet.
    """
    options = parse_job_options(raw, overwrite=overwrite)
    encoded = reader_of(options.destination, struct_type).struct_type
    columns = encoded_columns(encoded)
    # Refused at once, not only when a partition is too large to travel inline.
    refuse_more_columns_than(encoded, STAGED_COLUMNS, "rows may have to be staged, which takes a column more")
    look_once(options, options.commit.url, options.destination, columns)
    refuse_first_batch(options.commit, None, options.sink_name, options.destination)
    return JobWriter(JobTask(options, struct_type, uuid4()))


class JobWriter(DataSourceArrowWriter):
    """The writer of one run of a batch job."""

    def __init__(self, task: JobTask) -> None:
        self.task = task

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it in such a way that a task where pgonce is missing says so in plain words."""
        return reduced(self)

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> JobParcel:
        """In a task: encode the partition."""
        return self.task.write(iterator)

    @called_by_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the commit worker: publish the rows under their key, or skip them."""
        task = self.task
        commit_job_parcels(task.options, encoded_columns(task.reader.struct_type), messages, task.run)

    @called_by_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """
        In the commit worker, when a task or the commit has failed: drop what this run has staged.

        A commit that is still under way holds a lock on that table, so the table is never dropped under it.
        """
        # A task that failed has sent no message, and may have staged rows all the same.
        parcels = [message for message in messages if isinstance(message, JobParcel)]
        is_complete = 0 < len(parcels) == len(messages)
        if is_complete and not any(isinstance(parcel.payload, Staged) for parcel in parcels):
            return
        try:
            options = self.task.options
            with connect(options.commit.url, autocommit=True) as connection:
                # A task that Spark is still killing may be about to create it, and to stage its rows.
                ensure_ledger(options.commit.url, connection)
                give_up(connection, options.batch_key, options.sink_label, self.task.run)
        except (psycopg.Error, PgonceError) as error:
            _log.warning("a staging table is left for a later batch job's sweep: %s", error)
