-- Batch jobs: what df.write has published under each key.
CREATE TABLE pgonce.batch_jobs (
    sink_name    text NOT NULL,
    batch_key    text NOT NULL,
    attempt      uuid NOT NULL,
    rows         bigint NOT NULL DEFAULT 0,
    transport    text NOT NULL DEFAULT 'inline',
    content_hash text,
    targets      jsonb,
    counts       jsonb,
    application  text,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink_name, batch_key)
);
CREATE INDEX batch_jobs_newest ON pgonce.batch_jobs (committed_at);
COMMENT ON TABLE pgonce.batch_jobs IS 'One row per batch job that was published. Rows are never pruned: a key that is gone could be published again.';
COMMENT ON COLUMN pgonce.batch_jobs.sink_name IS 'The option sinkName, or the qualified target table.';
COMMENT ON COLUMN pgonce.batch_jobs.batch_key IS 'The option batchKey: the same key again is skipped.';
COMMENT ON COLUMN pgonce.batch_jobs.attempt IS 'The random id of the run that published it, by which a commit whose answer was lost is found again.';
COMMENT ON COLUMN pgonce.batch_jobs.rows IS 'How many rows it has published.';
COMMENT ON COLUMN pgonce.batch_jobs.transport IS 'How the rows came: inline, staged, or both joined by +.';
COMMENT ON COLUMN pgonce.batch_jobs.content_hash IS 'The hash of all rows, whatever their order; null if the job ran without batchHash.';
COMMENT ON COLUMN pgonce.batch_jobs.targets IS 'The tables that it wrote to, by qualified name, with their oids.';
COMMENT ON COLUMN pgonce.batch_jobs.counts IS 'What became of the rows, as in batches.';
COMMENT ON COLUMN pgonce.batch_jobs.application IS 'Host and process that published it.';
COMMENT ON COLUMN pgonce.batch_jobs.committed_at IS 'When it was recorded.';

CREATE TABLE pgonce.batch_job_skips (
    sink_name  text NOT NULL,
    batch_key  text NOT NULL,
    attempt    uuid NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink_name, batch_key, attempt),
    FOREIGN KEY (sink_name, batch_key) REFERENCES pgonce.batch_jobs ON DELETE CASCADE
);
COMMENT ON TABLE pgonce.batch_job_skips IS 'One row per run of a batch job that was skipped, because its key had been published.';
COMMENT ON COLUMN pgonce.batch_job_skips.sink_name IS 'As in batch_jobs.';
COMMENT ON COLUMN pgonce.batch_job_skips.batch_key IS 'As in batch_jobs.';
COMMENT ON COLUMN pgonce.batch_job_skips.attempt IS 'The random id of the run that was skipped.';
COMMENT ON COLUMN pgonce.batch_job_skips.skipped_at IS 'When it was skipped.';

CREATE TABLE pgonce.batch_job_aborts (
    attempt    uuid PRIMARY KEY,
    batch_key  text NOT NULL,
    aborted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.batch_job_aborts IS 'One row per run of a batch job that Spark gave up after it may have staged rows: a sweep may drop its staging table.';
COMMENT ON COLUMN pgonce.batch_job_aborts.attempt IS 'The random id of the run.';
COMMENT ON COLUMN pgonce.batch_job_aborts.batch_key IS 'The key that it did not publish, unless the answer to its COMMIT was lost.';
COMMENT ON COLUMN pgonce.batch_job_aborts.aborted_at IS 'When Spark gave it up.';

COMMENT ON COLUMN pgonce.staged_tables.query_id IS 'The query whose tasks fill it; for a batch job, the word batchKey and its key.';
COMMENT ON COLUMN pgonce.staged_tables.run_id IS 'The run whose tasks fill it; for a batch job, its attempt.';
