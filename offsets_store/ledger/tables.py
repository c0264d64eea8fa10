"""
The ledger's tables, as SQLAlchemy Core sees them.

Runs where the ledger is read or written. Invariant: they are what the migrations create; a test compares the two by
reflection. The migration says, in comments, what each column is for.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    and_,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, OID

from . import SCHEMA

metadata = MetaData(schema=SCHEMA)


def _now(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


def _writer_id() -> Column[int]:
    owner = ForeignKey("pgonce.writers.writer_id", ondelete="CASCADE")
    return Column("writer_id", BigInteger, owner, primary_key=True)


schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("least_reader_version", Integer, nullable=False),
    _now("applied_at"),
)
LEAST_READER = select(func.max(schema_version.c.least_reader_version)).scalar_subquery().label("least_reader")
"""The oldest code that can use the ledger, as a column of a statement that locks something in it."""

writers = Table(
    "writers",
    metadata,
    Column("writer_id", BigInteger, Identity(always=True), primary_key=True),
    Column("query_id", Text, nullable=False),
    Column("sink_name", Text, nullable=False),
    Column("query_name", Text),
    Column("checkpoint_location", Text),
    Column("run_id", Text),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("last_batch_id", BigInteger),
    Column("end_offsets", JSONB(none_as_null=True)),
    Column("guarantee", Text, nullable=False, server_default="offsets"),
    Column("replaces", Text),
    Column("replaced_by", Text),
    _now("created_at"),
    _now("updated_at"),
    Column("retired_at", DateTime(timezone=True)),
    Column("targets", JSONB(none_as_null=True)),
    Column("sources", JSONB(none_as_null=True)),
    Column("swapped_from", Text),
    Column("offsets_read_by", Text),
    Column("written_as", JSONB(none_as_null=True)),
    UniqueConstraint("query_id", "sink_name"),
    CheckConstraint("guarantee IN ('offsets', 'ids')", name="writers_guarantee_check"),
    Index("writers_sink_name", "sink_name"),
    # use_alter, because the two tables refer to each other.
    ForeignKeyConstraint(
        ["writer_id", "generation", "last_batch_id"],
        ["pgonce.batches.writer_id", "pgonce.batches.generation", "pgonce.batches.batch_id"],
        name="last_batch_is_recorded",
        deferrable=True,
        initially="DEFERRED",
        use_alter=True,
    ),
)

batches = Table(
    "batches",
    metadata,
    _writer_id(),
    Column("generation", Integer, primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("attempt", Uuid, nullable=False),
    Column("start_offsets", JSONB(none_as_null=True)),
    Column("end_offsets", JSONB(none_as_null=True)),
    Column("offset_log", Text),
    Column("rows", BigInteger, nullable=False),
    Column("transport", Text, nullable=False),
    _now("committed_at"),
    Column("positions", JSONB(none_as_null=True)),
    Column("dropped_rows", BigInteger, nullable=False, server_default=text("0")),
    Column("stateful", Boolean),
    Column("topic_ids", JSONB(none_as_null=True)),
    Column("counts", JSONB(none_as_null=True)),
    Column("tables", JSONB(none_as_null=True)),
    Column("begun_at", DateTime(timezone=True), server_default=func.transaction_timestamp()),
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

runs = Table(
    "runs",
    metadata,
    _writer_id(),
    Column("run_id", Text, primary_key=True),
    Column("first_batch_id", BigInteger, nullable=False),
    Column("application", Text),
    _now("started_at"),
)

replays = Table(
    "replays",
    metadata,
    _writer_id(),
    Column("generation", Integer, primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("attempt", Uuid, nullable=False),
    _now("skipped_at"),
)

target_changes = Table(
    "target_changes",
    metadata,
    _writer_id(),
    Column("generation", Integer, primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("change", Text, nullable=False),
    _now("noticed_at"),
)

progress = Table(
    "progress",
    metadata,
    Column("query_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("query_name", Text),
    Column("progress_at", DateTime(timezone=True), nullable=False),
    Column("num_input_rows", BigInteger, nullable=False),
    Column("start_offsets", JSONB(none_as_null=True)),
    Column("end_offsets", JSONB(none_as_null=True)),
    Column("latest_offsets", JSONB(none_as_null=True)),
    Column("durations_ms", JSONB(none_as_null=True)),
    Column("disagreement", Text),
    _now("received_at"),
    Column("lag", BigInteger),
    Index("progress_newest", "query_id", "progress_at", "batch_id"),
    Index("progress_disagreements", "query_id", postgresql_where=text("disagreement IS NOT NULL")),
)

failures = Table(
    "failures",
    metadata,
    Column("failure_id", BigInteger, Identity(always=True), primary_key=True),
    Column("query_id", Text, nullable=False),
    Column("query_name", Text),
    Column("sink_name", Text),
    Column("run_id", Text),
    Column("batch_id", BigInteger),
    Column("code", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("seen_by", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    _now("first_at"),
    _now("last_at"),
    CheckConstraint("seen_by IN ('commit', 'planner', 'recovery', 'listener')", name="failures_seen_by_check"),
    Index(
        "failures_once",
        "query_id",
        text("COALESCE(sink_name, '')"),
        text("COALESCE(run_id, '')"),
        text("COALESCE(batch_id, '-1'::integer::bigint)"),
        "code",
        unique=True,
    ),
    Index("failures_newest", "last_at"),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("query_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("query_name", Text),
    Column("listener", Text, nullable=False),
    _now("started_at"),
    _now("heard_at"),
    Column("idle_since", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("ended_by", Text),
)

measured_lag = Table(
    "measured_lag",
    metadata,
    Column("query_id", Text, primary_key=True),
    Column("sink_name", Text, primary_key=True),
    Column("lag", BigInteger),
    Column("lag_seconds", Double),
    Column("retention_used_percent", Double),
    _now("measured_at"),
)

brokers = Table(
    "brokers",
    metadata,
    Column("query_id", Text, primary_key=True),
    Column("bootstrap_servers", Text, nullable=False),
    _now("noted_at"),
)

positions = Table(
    "positions",
    metadata,
    _writer_id(),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("rows", BigInteger, nullable=False, server_default=text("0")),
    Column("claim", Uuid),
    Column("stage", Integer),
    Column("epoch", BigInteger),
    Column("spark_partition", BigInteger),
    Column("task_attempt", BigInteger),
    Column("claimed_from", BigInteger),
    Column("disputed_from", BigInteger),
    _now("moved_at"),
)

staged_tables = Table(
    "staged_tables",
    metadata,
    Column("table_name", Text, primary_key=True),
    Column("query_id", Text, nullable=False),
    Column("sink_name", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    _now("created_at"),
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("tombstone_set_id", BigInteger, primary_key=True, autoincrement=False),
    Column("key", JSONB, primary_key=True),
    Column("order_value", JSONB, nullable=False),
    _now("deleted_at"),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Index("tombstones_expiry", "expires_at"),
)

tombstone_sets = Table(
    "tombstone_sets",
    metadata,
    Column("tombstone_set_id", BigInteger, Identity(always=True), primary_key=True),
    Column("target", OID, nullable=False),
    Column("target_name", Text, nullable=False),
    Column("key_columns", ARRAY(Text), nullable=False),
    Column("key_types", ARRAY(Text), nullable=False),
    Column("order_column", Text, nullable=False),
    Column("order_type", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

home = Table(
    "home",
    metadata,
    Column("is_only_row", Boolean, primary_key=True, server_default=text("true")),
    Column("written_in", BigInteger, nullable=False),
    _now("since"),
    CheckConstraint("is_only_row", name="home_is_only_row_check"),
)

interventions = Table(
    "interventions",
    metadata,
    Column("intervention_id", BigInteger, Identity(always=True), primary_key=True),
    Column("writer_id", BigInteger, ForeignKey("pgonce.writers.writer_id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("batch_id", BigInteger),
    Column("reason", Text),
    Column("details", JSONB(none_as_null=True)),
    Column("made_by", Text, nullable=False, server_default=text("SESSION_USER")),
    _now("made_at"),
    Column("used_at", DateTime(timezone=True)),
    Column("person", Text),
    CheckConstraint(
        "kind IN ('accept', 'retire', 'recover', 'undo', 'new-checkpoint', 'forget', 'start-over', 'swap', "
        "'replay-dead-letters', 'discard-dead-letters', 'repair-dead-letters')",
        name="interventions_kind_check",
    ),
    Index("interventions_writer", "writer_id", "kind", "batch_id"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("dead_letter_id", BigInteger, Identity(always=True), primary_key=True),
    Column("query_id", Text, nullable=False),
    Column("sink_name", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("target", Text, nullable=False),
    Column("position", JSONB(none_as_null=True)),
    Column("row_data", JSONB, nullable=False),
    Column("column_name", Text),
    Column("code", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("destination", JSONB, nullable=False),
    _now("made_at"),
    Index("dead_letters_writer", "query_id", "sink_name", "batch_id"),
)

batch_jobs = Table(
    "batch_jobs",
    metadata,
    Column("sink_name", Text, primary_key=True),
    Column("batch_key", Text, primary_key=True),
    Column("attempt", Uuid, nullable=False),
    Column("rows", BigInteger, nullable=False, server_default=text("0")),
    Column("transport", Text, nullable=False, server_default="inline"),
    Column("content_hash", Text),
    Column("targets", JSONB(none_as_null=True)),
    Column("counts", JSONB(none_as_null=True)),
    Column("application", Text),
    _now("committed_at"),
    Index("batch_jobs_newest", "committed_at"),
)

batch_job_skips = Table(
    "batch_job_skips",
    metadata,
    Column("sink_name", Text, primary_key=True),
    Column("batch_key", Text, primary_key=True),
    Column("attempt", Uuid, primary_key=True),
    _now("skipped_at"),
    ForeignKeyConstraint(
        ["sink_name", "batch_key"],
        ["pgonce.batch_jobs.sink_name", "pgonce.batch_jobs.batch_key"],
        ondelete="CASCADE",
    ),
)

batch_job_aborts = Table(
    "batch_job_aborts",
    metadata,
    Column("attempt", Uuid, primary_key=True),
    Column("batch_key", Text, nullable=False),
    _now("aborted_at"),
)
