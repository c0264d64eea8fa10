"""
Plan a batch of a stream, or a batch job: check what the user asked for, and refuse early what could not be committed.

Runs in the planner's worker. The commit worker also builds a stream's writer here, and looks at nothing for that.
Invariant: what is found here proves nothing for the commit, which looks again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from uuid import uuid4

import psycopg
from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import ConnectError, TargetError, said_of_a_job
from pgonce.offsets_store.ledger.failures import Failed, failures_kept
from pgonce.offsets_store.ledger.feeders import is_published
from pgonce.offsets_store.postgres.bounds import enter_in_tx

from ..encoding.encoded_types import STAGED_COLUMNS, encoded_columns, refuse_more_columns_than
from ..identity.from_checkpoint import Origin
from ..identity.planned_batch import planned_batch, planned_entry
from ..options.position_columns import written_type
from ..options.sink_options import JobOptions, SinkOptions, parse_job_options, parse_options
from ..read_rows import reader_of
from ..staging import OF_JOB
from ..writing.first_look import look_once, looking, refuse_first_batch
from ..writing.write_batch import named_sink
from .offer import DataSourceRooms, Offer, offered
from .task_writer import MicroBatch, TaskWriter


def plan_batch(
    raw: Mapping[str, str], frame_type: StructType, rooms: DataSourceRooms, *, overwrite: bool, looks: bool
) -> tuple[SinkOptions, TaskWriter]:
    """
    What writes one batch of a stream.

    :param raw: the options as Spark hands them over.
    :param looks: whether to look at the checkpoint and at Postgres, as the planner's worker does.
    :raises PgonceError: if the options, the schema or the checkpoint do not allow one; no row has moved yet.
    """
    options = parse_options(raw, overwrite=overwrite)
    with failures_kept(options.commit.url, lambda: _failed(options)) if looks else nullcontext():
        return options, _task_writer(options, frame_type, rooms, looks=looks)


def _failed(options: SinkOptions) -> Failed:
    """The batch that could not be planned, of a query whose checkpoint says which one it is."""
    checkpoint = Checkpoint(options.checkpoint_location)
    query_id, newest = checkpoint.query_id(), checkpoint.newest_offset_entry()
    return Failed("planner", query_id, options.query_name, batch_id=newest.batch_id if newest else None)


def _task_writer(options: SinkOptions, frame_type: StructType, rooms: DataSourceRooms, *, looks: bool) -> TaskWriter:
    reader = reader_of(options.destination, frame_type, rooms, options.commit if looks else None)
    encoded = reader.struct_type
    if options.positions:
        options.positions.check(encoded)
    encoded_columns(encoded)
    # Refused at the first batch, not only at the first one that is too large to travel inline.
    why = (
        "rows may have to be staged, and a staging table has one more column; foreachBatch with "
        "PostgresBatchWriter does not need it"
    )
    refuse_more_columns_than(encoded, STAGED_COLUMNS, why)
    planned = planned_entry(options) if looks else None
    # If Spark writes an entry for this batch, it has dated it before this moment.
    planned_by_ms = int(time.time() * 1000)
    offer: Offer | None = None
    if looks:
        written = written_type(encoded, options.positions, options.destination)
        _look_first(options, written, planned, rooms)
        if options.receiver is not None:
            offer = offered(rooms.receivers().receiver_for(options, written, rooms))
    return TaskWriter(options, reader, MicroBatch(planned, planned_by_ms), offer)


@said_of_a_job()
def plan_job(
    raw: Mapping[str, str], frame_type: StructType, rooms: DataSourceRooms, *, overwrite: bool
) -> tuple[JobOptions, Origin, TaskWriter]:
    """
    The run of a batch job, and what writes it.

    :param raw: the options as Spark hands them over.
    :raises PgonceError: if the options, the schema or the table do not allow one; no row has moved yet.
    """
    options = parse_job_options(raw, overwrite=overwrite)
    reader = reader_of(options.destination, frame_type, rooms, options.commit, with_positions=False)
    encoded = reader.struct_type
    columns = encoded_columns(encoded)
    # Refused at once, not only when a partition is too large to travel inline.
    refuse_more_columns_than(encoded, STAGED_COLUMNS, "rows may have to be staged, which takes a column more")
    try:
        look_once(options, options.commit.url, options.destination, columns, rooms=rooms)
    except TargetError:
        # The table may have changed since the job was published. The commit skips it, or says where its rows are.
        if not _is_published(options):
            raise
    planned_sink = refuse_first_batch(options.commit, None, options.sink_name, options.destination)
    options = replace(options, planned_sink=planned_sink)
    run = Origin(OF_JOB + options.batch_key, str(uuid4()), 0, None)
    return options, run, TaskWriter(options, reader, run)


def _is_published(options: JobOptions) -> bool:
    try:
        with looking(options.commit.url) as connection:
            sink = named_sink(connection, options.sink_name, options.destination)
            enter_in_tx(connection, lock_seconds=1, statement_seconds=5)
            return is_published(connection, sink.name, options.batch_key, is_of_table=sink.name in sink.tables)
    except (ConnectError, psycopg.Error):
        return False


def _look_first(
    options: SinkOptions, written: StructType, planned: OffsetLogEntry | None, rooms: DataSourceRooms
) -> None:
    """Refuse a target that does not fit, before a row is computed."""
    # At a later batch a login may be refused because a password is being changed, and the commit waits for that.
    is_first = planned is not None and planned.batch_id == 0
    columns, where = encoded_columns(written), options.destination
    look_once(options, options.commit.url, where, columns, rooms=rooms, at_the_door=is_first)
    if is_first:
        # As its commit will describe it, but without the run, which Spark does not tell the planner.
        origin = Origin(Checkpoint(options.checkpoint_location).query_id() or "", "", 0, planned)
        refuse_first_batch(options.commit, planned_batch(options, origin), options.sink_name, where)
