"""
The ledger's tables that are read or written through SQLAlchemy Core, as it sees them: the names and types of columns.

Runs where the ledger is read or written. Invariant: they are what the migrations create; a test compares the two by
reflection. (Other tables stand only in the SQL of the modules that use them.) Only the migrations have keys,
constraints, indexes and defaults, and say, in comments, what each column is for. If SQLAlchemy knew a key that Postgres
fills in, an INSERT would ask for it (RETURNING), and in a round trip of several statements no answers are read.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    and_,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import BYTEA, JSONB
from sqlalchemy.types import TypeEngine

from . import SCHEMA

metadata = MetaData(schema=SCHEMA)

_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": BigInteger(),
    "boolean": Boolean(),
    "bytea": BYTEA(),
    "double": Double(),
    "integer": Integer(),
    "jsonb": JSONB(none_as_null=True),
    "text": Text(),
    "timestamptz": DateTime(timezone=True),
    "uuid": Uuid(),
}


def _table(name: str, **columns: str) -> Table:
    """A table of the ledger; each type with the names of the columns that have it."""
    typed = (Column(column, _TYPES[kind]) for kind, names in columns.items() for column in names.split())
    return Table(name, metadata, *typed)


schema_version = _table("schema_version", integer="version least_reader_version", timestamptz="applied_at")
LEAST_READER = select(func.max(schema_version.c.least_reader_version)).scalar_subquery().label("least_reader")
"""The oldest code that can use the ledger, as a column of a statement that locks something in it."""

writers = _table(
    "writers",
    bigint="writer_id last_batch_id",
    integer="generation",
    text="query_id sink_name query_name checkpoint_location run_id guarantee replaces replaced_by offsets_read_by",
    jsonb="end_offsets targets sources written_as",
    timestamptz="created_at updated_at retired_at",
)

batches = _table(
    "batches",
    bigint="writer_id batch_id rows dropped_rows",
    integer="generation",
    boolean="stateful",
    text="run_id offset_log transport",
    uuid="attempt",
    jsonb="start_offsets end_offsets positions topic_ids counts tables",
    timestamptz="committed_at begun_at",
)

last_batches = batches.alias("last")
writers_and_last_batches = writers.outerjoin(
    last_batches,
    and_(
        last_batches.c.writer_id == writers.c.writer_id,
        last_batches.c.generation == writers.c.generation,
        last_batches.c.batch_id == writers.c.last_batch_id,
    ),
)
"""Each writer, and the record of its last batch, if it is kept."""

runs = _table("runs", bigint="writer_id first_batch_id", text="run_id application", timestamptz="started_at")

replays = _table(
    "replays",
    bigint="writer_id batch_id",
    integer="generation",
    text="run_id",
    uuid="attempt",
    timestamptz="skipped_at",
)

target_changes = _table(
    "target_changes",
    bigint="writer_id batch_id",
    integer="generation",
    text="table_name change",
    timestamptz="noticed_at",
)

progress = _table(
    "progress",
    bigint="batch_id num_input_rows lag",
    text="query_id run_id query_name disagreement",
    jsonb="start_offsets end_offsets latest_offsets durations_ms",
    timestamptz="progress_at received_at",
)

failures = _table(
    "failures",
    bigint="failure_id batch_id",
    integer="attempts",
    text="query_id query_name sink_name run_id code message remedy seen_by",
    timestamptz="first_at last_at",
)

heartbeats = _table(
    "heartbeats",
    text="query_id run_id query_name listener ended_by",
    timestamptz="started_at heard_at idle_since ended_at",
)

measured_lag = _table(
    "measured_lag",
    bigint="lag",
    double="lag_seconds retention_used_percent",
    text="query_id sink_name",
    timestamptz="measured_at",
)


positions = _table(
    "positions",
    bigint="writer_id next_offset rows epoch spark_partition task_attempt claimed_from disputed_from",
    integer="partition stage",
    text="topic run_id",
    uuid="claim",
    timestamptz="moved_at",
)

interventions = _table(
    "interventions",
    bigint="intervention_id writer_id batch_id",
    text="kind reason made_by",
    jsonb="details",
    timestamptz="made_at used_at",
)

dead_letters = _table(
    "dead_letters",
    bigint="dead_letter_id batch_id",
    text="query_id sink_name target column_name code message",
    jsonb="position row_data destination record_headers",
    bytea="record_key record_value",
    timestamptz="made_at",
)

batch_jobs = _table(
    "batch_jobs",
    bigint="rows",
    text="sink_name batch_key transport content_hash application",
    uuid="attempt",
    jsonb="targets counts",
    timestamptz="committed_at",
)

batch_job_skips = _table("batch_job_skips", text="sink_name batch_key", uuid="attempt", timestamptz="skipped_at")
