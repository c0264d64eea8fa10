"""
Fill a ledger as if it had been used for a long time.

Runs against a Postgres whose ledger is empty. Invariant: rows are as large as Spark and Kafka make them, and every
writer could go on from where it is.
"""

from __future__ import annotations

import psycopg

KEPT_EVENTS = 1000
"""As many progress events as the listener keeps for a query."""

# Eight partitions of a topic, as Spark writes them into offsets/N.
_OFFSETS = """
CREATE FUNCTION pg_temp.offsets(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT '{"orders":{' || string_agg(format('"%s":%s', p, n * 100 + p), ',' ORDER BY p) || '}}'
    FROM generate_series(0, 7) AS p
$$
"""
# 620 bytes; Spark's own list of settings is longer.
_OFFSET_LOG = """
CREATE FUNCTION pg_temp.offset_log(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format(
        E'v1\\n{"batchWatermarkMs":0,"batchTimestampMs":%s,"conf":{'
        '"spark.sql.streaming.stateStore.providerClass":'
        '"org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",'
        '"spark.sql.streaming.join.stateFormatVersion":"2","spark.sql.streaming.stateStore.compression.codec":"lz4",'
        '"spark.sql.shuffle.partitions":"200","spark.sql.streaming.multipleWatermarkPolicy":"min",'
        '"spark.sql.streaming.aggregation.stateFormatVersion":"2"}}\\n%s',
        1750000000000 + n * 1000, pg_temp.offsets(n + 1))
$$
"""
_SOURCE = "jsonb_build_object('0', pg_temp.offsets({})::jsonb)"

_STATEMENTS = (
    f"""
    INSERT INTO pgonce.writers
        (query_id, sink_name, query_name, checkpoint_location, run_id, last_batch_id, end_offsets)
    SELECT format('00000000-0000-4000-8000-%s', lpad(w::text, 12, '0')), 'public.events_' || w, 'orders ' || w,
        's3a://bucket/checkpoints/orders_' || w, md5(w::text)::uuid::text, {{last}}, {_SOURCE.format("{last} + 1")}
    FROM generate_series(1, {{writers}}) AS w
    """,
    # Batch by batch, not writer by writer, because that is the order of many queries' records on disk.
    f"""
    INSERT INTO pgonce.batches
        (writer_id, generation, batch_id, run_id, attempt, start_offsets, end_offsets, offset_log, rows, transport,
         committed_at)
    SELECT writer_id, 0, n, run_id, gen_random_uuid(), {_SOURCE.format("n")}, {_SOURCE.format("n + 1")},
        pg_temp.offset_log(n), 800, 'inline', now() - make_interval(secs => {{last}} + 1 - n)
    FROM generate_series(0, {{last}}) AS n, pgonce.writers
    """,
    """
    INSERT INTO pgonce.runs (writer_id, run_id, first_batch_id)
    SELECT writer_id, CASE WHEN n = 0 THEN run_id ELSE gen_random_uuid()::text END, n
    FROM pgonce.writers, generate_series(0, {last}, {every}) AS n
    """,
    """
    INSERT INTO pgonce.replays (writer_id, generation, batch_id, run_id, attempt)
    SELECT writer_id, 0, n, gen_random_uuid()::text, gen_random_uuid()
    FROM pgonce.writers, generate_series(0, {last}, {every}) AS n
    """,
    f"""
    INSERT INTO pgonce.progress
        (query_id, run_id, batch_id, query_name, progress_at, num_input_rows, start_offsets, end_offsets,
         latest_offsets, durations_ms)
    SELECT query_id, run_id, n, query_name, now() - make_interval(secs => {{last}} + 1 - n), 800,
        {_SOURCE.format("n")}, {_SOURCE.format("n + 1")}, {_SOURCE.format("n + 2")},
        '{{{{"addBatch":87,"commitOffsets":12,"getBatch":1,"latestOffset":3,"triggerExecution":120,"walCommit":14}}}}'
    FROM generate_series(greatest(0, {{last}} - {KEPT_EVENTS - 1}), {{last}}) AS n, pgonce.writers
    """,
)


def fill(admin: psycopg.Connection, writers: int, batches: int, every: int = 100) -> None:
    """
    Fill the ledger with records of ``writers`` writers with ``batches`` batches each, more than retention would keep.

    After each ``every`` batches there was another run, and a replay.
    """
    admin.execute(_OFFSETS)
    admin.execute(_OFFSET_LOG)
    # Writers and batches refer to each other.
    admin.execute("SET session_replication_role = replica")
    for statement in _STATEMENTS:
        admin.execute(statement.format(writers=writers, last=batches - 1, every=every).encode())
    admin.execute("RESET session_replication_role")
    admin.execute("VACUUM ANALYZE")
