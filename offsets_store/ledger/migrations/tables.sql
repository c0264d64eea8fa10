-- The ledger: what pgonce remembers of every writer and batch, in the database of the rows. views.sql has what people read.
--
-- Later migrations only add: they create tables, columns and views, and never change what something means that stands
-- here. Do not edit what has been released; add a migration.

-- The ledger itself ---------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.schema_version (
    version              integer PRIMARY KEY,
    least_reader_version integer NOT NULL,
    applied_at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.schema_version IS 'One row for each migration that was applied.';
COMMENT ON COLUMN pgonce.schema_version.version IS 'Number of the migration.';
COMMENT ON COLUMN pgonce.schema_version.least_reader_version IS 'The lowest version of code that can use this ledger.';
COMMENT ON COLUMN pgonce.schema_version.applied_at IS 'When it was applied.';

CREATE TABLE pgonce.home (
    is_only_row boolean DEFAULT true PRIMARY KEY,
    written_in  bigint NOT NULL,
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT home_is_only_row_check CHECK (is_only_row)
);
COMMENT ON TABLE pgonce.home IS 'Whether the oids in the ledger are those of this database. They are while the transaction that wrote this row (its xmin) is written_in; a dump that is restored brings the value with it, and not the xmin.';
COMMENT ON COLUMN pgonce.home.is_only_row IS 'There is one row.';
COMMENT ON COLUMN pgonce.home.written_in IS 'The transaction that wrote the row.';
COMMENT ON COLUMN pgonce.home.since IS 'Since when the oids are those of this database: since the ledger was created, or since tables were looked up by name after a restore.';
INSERT INTO pgonce.home (written_in) VALUES (pg_current_xact_id()::text::bigint);

-- Streaming queries ---------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.writers (
    writer_id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id            text NOT NULL,
    sink_name           text NOT NULL,
    query_name          text,
    checkpoint_location text,
    run_id              text,
    generation          integer NOT NULL DEFAULT 0,
    last_batch_id       bigint,
    end_offsets         jsonb,
    guarantee           text NOT NULL DEFAULT 'offsets',
    replaces            text,
    replaced_by         text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at          timestamptz,
    targets             jsonb,
    sources             jsonb,
    offsets_read_by     text,
    written_as          jsonb,
    UNIQUE (query_id, sink_name),
    CONSTRAINT writers_guarantee_check CHECK (guarantee IN ('offsets', 'ids'))
);
CREATE INDEX writers_sink_name ON pgonce.writers (sink_name);
COMMENT ON TABLE pgonce.writers IS 'One row for each streaming query and sink, for ever.';
COMMENT ON COLUMN pgonce.writers.writer_id IS 'Key of the writer inside this ledger.';
COMMENT ON COLUMN pgonce.writers.query_id IS 'Spark''s query id.';
COMMENT ON COLUMN pgonce.writers.sink_name IS 'The option sinkName, or the qualified target table (public.events, app."Orders").';
COMMENT ON COLUMN pgonce.writers.query_name IS 'The query''s name, for people; never an identity.';
COMMENT ON COLUMN pgonce.writers.checkpoint_location IS 'The checkpoint of the last batch.';
COMMENT ON COLUMN pgonce.writers.run_id IS 'The run that published the last batch; after a recovery, recovery- and an id.';
COMMENT ON COLUMN pgonce.writers.generation IS 'Counts how often batch ids began to be used again.';
COMMENT ON COLUMN pgonce.writers.last_batch_id IS 'The newest batch whose rows are in the target.';
COMMENT ON COLUMN pgonce.writers.end_offsets IS 'Where that batch ended: source id to offset.';
COMMENT ON COLUMN pgonce.writers.guarantee IS 'What a replay is judged by: offsets (proof), or ids alone (offsetsFrom=listener).';
COMMENT ON COLUMN pgonce.writers.replaces IS 'The id of the query whose place this writer took.';
COMMENT ON COLUMN pgonce.writers.replaced_by IS 'The id of the query that took this writer''s place.';
COMMENT ON COLUMN pgonce.writers.created_at IS 'When its first batch was published.';
COMMENT ON COLUMN pgonce.writers.updated_at IS 'When its last batch was published.';
COMMENT ON COLUMN pgonce.writers.retired_at IS 'When pgonce retire or pgonce forget ended this writer.';
COMMENT ON COLUMN pgonce.writers.targets IS 'Qualified name to oid of the table of the last batch, or of all tables so far.';
COMMENT ON COLUMN pgonce.writers.sources IS 'All that the query has ever read: kafka (topic to partitions); null where not all of it is known, as of files.';
COMMENT ON COLUMN pgonce.writers.offsets_read_by IS 'How its checkpoint was read: python (a disk), pyarrow, spark, or listener (not at all).';
COMMENT ON COLUMN pgonce.writers.written_as IS 'How the last batch was written into each of its tables: mode, keys, options, and the columns of its rows. It is replaced when that changes; "digest" tells one from another. Null where no batch has recorded it.';

CREATE TABLE pgonce.batches (
    writer_id     bigint NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    generation    integer NOT NULL,
    batch_id      bigint NOT NULL,
    run_id        text NOT NULL,
    attempt       uuid NOT NULL,
    start_offsets jsonb,
    end_offsets   jsonb,
    offset_log    text,
    rows          bigint NOT NULL,
    transport     text NOT NULL,
    committed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    positions     jsonb,
    dropped_rows  bigint NOT NULL DEFAULT 0,
    stateful      boolean,
    topic_ids     jsonb,
    counts        jsonb,
    tables        jsonb,
    begun_at      timestamptz NOT NULL DEFAULT transaction_timestamp(),
    PRIMARY KEY (writer_id, generation, batch_id)
);
COMMENT ON TABLE pgonce.batches IS 'One row for each published batch. The newest of a writer are kept (retainBatches).';
COMMENT ON COLUMN pgonce.batches.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.batches.generation IS 'The writer''s generation when the batch was published.';
COMMENT ON COLUMN pgonce.batches.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.batches.run_id IS 'The run that published it.';
COMMENT ON COLUMN pgonce.batches.attempt IS 'Token of the commit that published it; tells our own lost answer from a batch of another commit.';
COMMENT ON COLUMN pgonce.batches.start_offsets IS 'Where the batch began, inclusive; null where unknown.';
COMMENT ON COLUMN pgonce.batches.end_offsets IS 'Where the batch ended, exclusive for Kafka; null where unknown.';
COMMENT ON COLUMN pgonce.batches.offset_log IS 'The text of the checkpoint''s offsets/N, byte for byte: what proves a replay.';
COMMENT ON COLUMN pgonce.batches.rows IS 'Rows that were published.';
COMMENT ON COLUMN pgonce.batches.transport IS 'How the rows came: inline, received, staged (or several, joined by +), arrow (PostgresBatchWriter), function (transactional_batch), real-time; adopted for a batch of another sink.';
COMMENT ON COLUMN pgonce.batches.committed_at IS 'When the record was written, just before COMMIT.';
COMMENT ON COLUMN pgonce.batches.positions IS 'Source id to topic to partition to next position: rows below are in the target or were never selected; null where rows carry no positions.';
COMMENT ON COLUMN pgonce.batches.dropped_rows IS 'Rows that an earlier batch had published; not among rows.';
COMMENT ON COLUMN pgonce.batches.stateful IS 'Whether the query keeps state, so that its checkpoint cannot be rebuilt from here; null where unknown.';
COMMENT ON COLUMN pgonce.batches.topic_ids IS 'Topic to Kafka''s id of it, where brokers were asked: a topic that is created again has another.';
COMMENT ON COLUMN pgonce.batches.counts IS 'What became of the rows, where not all of them were written.';
COMMENT ON COLUMN pgonce.batches.tables IS 'How many rows went into each table, where the batch writes to several.';
COMMENT ON COLUMN pgonce.batches.begun_at IS 'When the transaction that published the batch began.';

-- A writer may name a last batch only where that batch is recorded. Deferred, so that a transaction function can be
-- sealed first and recorded last: a COMMIT that its own SQL issues in between fails, and takes everything with it.
ALTER TABLE pgonce.writers ADD CONSTRAINT last_batch_is_recorded
    FOREIGN KEY (writer_id, generation, last_batch_id) REFERENCES pgonce.batches (writer_id, generation, batch_id)
    DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE pgonce.runs (
    writer_id      bigint NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    run_id         text NOT NULL,
    first_batch_id bigint NOT NULL,
    application    text,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (writer_id, run_id)
);
COMMENT ON TABLE pgonce.runs IS 'One row for each run that has owned a writer, from its first published batch on.';
COMMENT ON COLUMN pgonce.runs.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.runs.run_id IS 'Spark''s run id; new at every start of a query.';
COMMENT ON COLUMN pgonce.runs.first_batch_id IS 'The batch with which the run became the owner.';
COMMENT ON COLUMN pgonce.runs.application IS 'Host and process id of the commit, for people.';
COMMENT ON COLUMN pgonce.runs.started_at IS 'When that batch was published.';

CREATE TABLE pgonce.replays (
    writer_id  bigint NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    generation integer NOT NULL,
    batch_id   bigint NOT NULL,
    run_id     text NOT NULL,
    attempt    uuid NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (writer_id, generation, batch_id, run_id)
);
COMMENT ON TABLE pgonce.replays IS 'One row for each run and batch that it skipped as a proven replay.';
COMMENT ON COLUMN pgonce.replays.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.replays.generation IS 'The writer''s generation.';
COMMENT ON COLUMN pgonce.replays.batch_id IS 'The batch that Spark ran again.';
COMMENT ON COLUMN pgonce.replays.run_id IS 'The run that ran it again.';
COMMENT ON COLUMN pgonce.replays.attempt IS 'Token of the commit that skipped it.';
COMMENT ON COLUMN pgonce.replays.skipped_at IS 'When it was skipped.';

CREATE TABLE pgonce.target_changes (
    writer_id  bigint NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    generation integer NOT NULL,
    batch_id   bigint NOT NULL,
    table_name text NOT NULL,
    change     text NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (writer_id, generation, batch_id, table_name)
);
COMMENT ON TABLE pgonce.target_changes IS 'One row for each batch that went into another table than those before, altered its table, or left out columns (schemaEvolution).';
COMMENT ON COLUMN pgonce.target_changes.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.target_changes.generation IS 'The writer''s generation.';
COMMENT ON COLUMN pgonce.target_changes.batch_id IS 'The first batch to which this applies.';
COMMENT ON COLUMN pgonce.target_changes.table_name IS 'The table that it was written to.';
COMMENT ON COLUMN pgonce.target_changes.change IS 'A sentence that says what is different.';
COMMENT ON COLUMN pgonce.target_changes.noticed_at IS 'When it was noticed.';

CREATE TABLE pgonce.interventions (
    intervention_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer_id       bigint NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    kind            text NOT NULL,
    batch_id        bigint,
    reason          text,
    details         jsonb,
    made_by         text NOT NULL DEFAULT SESSION_USER,
    made_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at         timestamptz,
    CONSTRAINT interventions_kind_check CHECK (kind IN (
        'accept', 'retire', 'recover', 'forget', 'swap', 'replay-dead-letters', 'discard-dead-letters'
    ))
);
CREATE INDEX interventions_writer ON pgonce.interventions (writer_id, kind, batch_id);
COMMENT ON TABLE pgonce.interventions IS 'What people did by hand to a writer or its checkpoint, and why.';
COMMENT ON COLUMN pgonce.interventions.intervention_id IS 'Number of the intervention.';
COMMENT ON COLUMN pgonce.interventions.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept, retire, forget, recover, replay-dead-letters, discard-dead-letters; swap: its table has taken the place of another.';
COMMENT ON COLUMN pgonce.interventions.batch_id IS 'The batch that is accepted, or at which the checkpoint stands now.';
COMMENT ON COLUMN pgonce.interventions.reason IS 'In the person''s words.';
COMMENT ON COLUMN pgonce.interventions.details IS 'What was written, and where what it replaced is kept.';
COMMENT ON COLUMN pgonce.interventions.made_by IS 'The database role.';
COMMENT ON COLUMN pgonce.interventions.made_at IS 'When it was done.';
COMMENT ON COLUMN pgonce.interventions.used_at IS 'When the accepted batch was published.';

-- What the progress listener heard ------------------------------------------------------------------------------------

CREATE TABLE pgonce.progress (
    query_id       text NOT NULL,
    run_id         text NOT NULL,
    batch_id       bigint NOT NULL,
    query_name     text,
    progress_at    timestamptz NOT NULL,
    num_input_rows bigint NOT NULL,
    start_offsets  jsonb,
    end_offsets    jsonb,
    latest_offsets jsonb,
    durations_ms   jsonb,
    disagreement   text,
    lag            bigint,
    received_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, run_id, batch_id)
);
-- Status reads the newest event of each query, and how many events disagree. With 100 queries and the 1,000 events that
-- the listener keeps of each, it would read all 100,000 rows for that.
CREATE INDEX progress_newest ON pgonce.progress (query_id, progress_at, batch_id);
CREATE INDEX progress_disagreements ON pgonce.progress (query_id) WHERE disagreement IS NOT NULL;
COMMENT ON TABLE pgonce.progress IS 'What the progress listener heard.';
COMMENT ON COLUMN pgonce.progress.query_id IS 'Spark''s query id.';
COMMENT ON COLUMN pgonce.progress.run_id IS 'Spark''s run id.';
COMMENT ON COLUMN pgonce.progress.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.progress.query_name IS 'The query''s name.';
COMMENT ON COLUMN pgonce.progress.progress_at IS 'The trigger''s time, as the event gives it.';
COMMENT ON COLUMN pgonce.progress.num_input_rows IS 'Rows read, as Spark counts them.';
COMMENT ON COLUMN pgonce.progress.start_offsets IS 'Source position to offset where the batch began.';
COMMENT ON COLUMN pgonce.progress.end_offsets IS 'Source position to offset where the batch ended.';
COMMENT ON COLUMN pgonce.progress.latest_offsets IS 'Source position to the newest offset that the source knew.';
COMMENT ON COLUMN pgonce.progress.durations_ms IS 'Spark''s durationMs: phase to milliseconds.';
COMMENT ON COLUMN pgonce.progress.disagreement IS 'Null where event and ledger agree, else what differs.';
COMMENT ON COLUMN pgonce.progress.lag IS 'Kafka records that the batch left in the sources.';
COMMENT ON COLUMN pgonce.progress.received_at IS 'When the row was written.';

-- What queries do, and what went wrong --------------------------------------------------------------------------------

-- It is written in sessions of its own, so nothing here refers to pgonce.writers: a foreign key would wait for a commit.

CREATE TABLE pgonce.failures (
    failure_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id   text NOT NULL,
    query_name text,
    sink_name  text,
    run_id     text,
    batch_id   bigint,
    code       text NOT NULL,
    message    text NOT NULL,
    remedy     text,
    seen_by    text NOT NULL,
    attempts   integer NOT NULL DEFAULT 1,
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT failures_seen_by_check CHECK (seen_by IN ('commit', 'planner', 'recovery', 'listener'))
);
-- Not NULLS NOT DISTINCT, which Postgres 14 does not have.
CREATE UNIQUE INDEX failures_once ON pgonce.failures
    (query_id, coalesce(sink_name, ''), coalesce(run_id, ''), coalesce(batch_id, -1), code);
CREATE INDEX failures_newest ON pgonce.failures (last_at);
COMMENT ON TABLE pgonce.failures IS 'What went wrong: one row for each query, sink, run, batch and code. It is written within two seconds or not at all. The newest 100 of a query are kept.';
COMMENT ON COLUMN pgonce.failures.failure_id IS 'Key of the failure.';
COMMENT ON COLUMN pgonce.failures.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.failures.query_name IS 'Its name, if it is known where the failure was seen.';
COMMENT ON COLUMN pgonce.failures.sink_name IS 'The sink; null if the failure is one of the whole query.';
COMMENT ON COLUMN pgonce.failures.run_id IS 'The run; null where it is not known.';
COMMENT ON COLUMN pgonce.failures.batch_id IS 'The batch; null if there was none yet.';
COMMENT ON COLUMN pgonce.failures.code IS 'The error''s code, or the class of Spark''s error.';
COMMENT ON COLUMN pgonce.failures.message IS 'What happened, without values of rows and without secrets.';
COMMENT ON COLUMN pgonce.failures.remedy IS 'What an error of pgonce told to do.';
COMMENT ON COLUMN pgonce.failures.seen_by IS 'Who saw it: the commit, the planner, a recovery, or the listener.';
COMMENT ON COLUMN pgonce.failures.attempts IS 'How often it was seen.';
COMMENT ON COLUMN pgonce.failures.first_at IS 'When it was first seen.';
COMMENT ON COLUMN pgonce.failures.last_at IS 'When it was last seen.';

CREATE TABLE pgonce.heartbeats (
    query_id   text NOT NULL,
    run_id     text NOT NULL,
    query_name text,
    listener   text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    heard_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    idle_since timestamptz,
    ended_at   timestamptz,
    ended_by   text,
    PRIMARY KEY (query_id, run_id)
);
COMMENT ON TABLE pgonce.heartbeats IS 'One row for each run that a listener hears. The newest 20 runs of a query are kept.';
COMMENT ON COLUMN pgonce.heartbeats.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.heartbeats.run_id IS 'The run.';
COMMENT ON COLUMN pgonce.heartbeats.query_name IS 'The query''s name.';
COMMENT ON COLUMN pgonce.heartbeats.listener IS 'The process that hears it: host and process id.';
COMMENT ON COLUMN pgonce.heartbeats.started_at IS 'When the listener first heard of the run.';
COMMENT ON COLUMN pgonce.heartbeats.heard_at IS 'When the listener last heard the run; it says so every 15 seconds.';
COMMENT ON COLUMN pgonce.heartbeats.idle_since IS 'Since when Spark finds nothing to read; null if it does.';
COMMENT ON COLUMN pgonce.heartbeats.ended_at IS 'When Spark said that the run had ended, or when its driver ended.';
COMMENT ON COLUMN pgonce.heartbeats.ended_by IS 'The code or class of the error that ended it; SIGTERM or EXIT of its driver; null if it was stopped.';

CREATE TABLE pgonce.measured_lag (
    query_id               text NOT NULL,
    sink_name              text NOT NULL,
    lag                    bigint,
    lag_seconds            double precision,
    retention_used_percent double precision,
    measured_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, sink_name)
);
COMMENT ON TABLE pgonce.measured_lag IS 'How far writers are behind their Kafka brokers, as pgonce serve measured it.';
COMMENT ON COLUMN pgonce.measured_lag.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.measured_lag.sink_name IS 'The sink.';
COMMENT ON COLUMN pgonce.measured_lag.lag IS 'Records that are not yet published.';
COMMENT ON COLUMN pgonce.measured_lag.lag_seconds IS 'The age of the oldest of them, by Kafka''s timestamp; 0 if there is none.';
COMMENT ON COLUMN pgonce.measured_lag.retention_used_percent IS 'How much of its topic''s retention that record has used.';
COMMENT ON COLUMN pgonce.measured_lag.measured_at IS 'When it was measured.';

-- Staging tables ------------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.staged_tables (
    table_name text PRIMARY KEY,
    query_id   text NOT NULL,
    sink_name  text NOT NULL,
    run_id     text NOT NULL,
    batch_id   bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.staged_tables IS 'Every staging table that there is.';
COMMENT ON COLUMN pgonce.staged_tables.table_name IS 'Its name, in the schema pgonce_staging.';
COMMENT ON COLUMN pgonce.staged_tables.query_id IS 'The query; for a batch job, the word batchKey and its key.';
COMMENT ON COLUMN pgonce.staged_tables.sink_name IS 'The sink it is for.';
COMMENT ON COLUMN pgonce.staged_tables.run_id IS 'The run; for a batch job, its attempt.';
COMMENT ON COLUMN pgonce.staged_tables.batch_id IS 'The batch whose rows it holds.';
COMMENT ON COLUMN pgonce.staged_tables.created_at IS 'When its batch was planned.';

-- Batch jobs ----------------------------------------------------------------------------------------------------------

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
COMMENT ON TABLE pgonce.batch_jobs IS 'One row for each batch job that was published. Rows are never pruned.';
COMMENT ON COLUMN pgonce.batch_jobs.sink_name IS 'The option sinkName, or the qualified target table.';
COMMENT ON COLUMN pgonce.batch_jobs.batch_key IS 'The option batchKey: the same key again is skipped.';
COMMENT ON COLUMN pgonce.batch_jobs.attempt IS 'The random id of the run that published it, by which a commit whose answer was lost is found again.';
COMMENT ON COLUMN pgonce.batch_jobs.rows IS 'How many rows it has published.';
COMMENT ON COLUMN pgonce.batch_jobs.transport IS 'How the rows came: inline, staged, or both joined by +.';
COMMENT ON COLUMN pgonce.batch_jobs.content_hash IS 'The hash of all rows; null without batchHash.';
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
COMMENT ON TABLE pgonce.batch_job_skips IS 'One row for each run of a batch job that was skipped.';
COMMENT ON COLUMN pgonce.batch_job_skips.sink_name IS 'As in batch_jobs.';
COMMENT ON COLUMN pgonce.batch_job_skips.batch_key IS 'As in batch_jobs.';
COMMENT ON COLUMN pgonce.batch_job_skips.attempt IS 'The random id of the run that was skipped.';
COMMENT ON COLUMN pgonce.batch_job_skips.skipped_at IS 'When it was skipped.';

-- Dead letters --------------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.dead_letters (
    dead_letter_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id       text NOT NULL,
    sink_name      text NOT NULL,
    batch_id       bigint NOT NULL,
    target         text NOT NULL,
    position       jsonb,
    record_key     bytea,
    record_value   bytea,
    record_headers jsonb,
    row_data       jsonb NOT NULL,
    column_name    text,
    code           text NOT NULL,
    message        text NOT NULL,
    destination    jsonb NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letters_writer ON pgonce.dead_letters (query_id, sink_name, batch_id);
CREATE INDEX dead_letters_newest ON pgonce.dead_letters (made_at);
COMMENT ON TABLE pgonce.dead_letters IS 'Rows that were put aside (deadLetters).';
COMMENT ON COLUMN pgonce.dead_letters.dead_letter_id IS 'What pgonce dead-letters --id takes.';
COMMENT ON COLUMN pgonce.dead_letters.query_id IS 'The query whose batch the row was in.';
COMMENT ON COLUMN pgonce.dead_letters.sink_name IS 'Its sink: the option sinkName, or the qualified target table.';
COMMENT ON COLUMN pgonce.dead_letters.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.dead_letters.target IS 'The qualified table that was to get the row.';
COMMENT ON COLUMN pgonce.dead_letters.position IS 'Its topic, partition and offset in Kafka, where known.';
COMMENT ON COLUMN pgonce.dead_letters.record_key IS 'The key of the Kafka record, where pgonce has decoded the record itself.';
COMMENT ON COLUMN pgonce.dead_letters.record_value IS 'Its value, likewise.';
COMMENT ON COLUMN pgonce.dead_letters.record_headers IS 'Its headers, likewise: a list of lists of a name and a value in base64.';
COMMENT ON COLUMN pgonce.dead_letters.row_data IS 'The row''s columns, as they were to be written.';
COMMENT ON COLUMN pgonce.dead_letters.column_name IS 'The column whose value was refused, where that is known.';
COMMENT ON COLUMN pgonce.dead_letters.code IS 'The SQLSTATE of Postgres, or a code of pgonce.';
COMMENT ON COLUMN pgonce.dead_letters.message IS 'What Postgres, or pgonce, says of the row.';
COMMENT ON COLUMN pgonce.dead_letters.destination IS 'How the row was to be written: the columns and their types, mode, keys and the like. A replay needs it.';
COMMENT ON COLUMN pgonce.dead_letters.made_at IS 'When it was put aside.';

-- Real time -----------------------------------------------------------------------------------------------------------

-- Where the tasks of real-time and continuous queries stand: each moves the row of its Kafka partition with its rows.

CREATE TABLE pgonce.positions (
    writer_id       bigint NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    topic           text NOT NULL,
    partition       integer NOT NULL,
    next_offset     bigint NOT NULL,
    run_id          text NOT NULL,
    rows            bigint NOT NULL DEFAULT 0,
    claim           uuid,
    stage           integer,
    epoch           bigint,
    spark_partition bigint,
    task_attempt    bigint,
    claimed_from    bigint,
    disputed_from   bigint,
    moved_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (writer_id, topic, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE pgonce.positions IS 'One row for each Kafka partition of a query in real-time or continuous mode: how far its rows are in the table. A batch of another mode takes the rows away again, and goes on from there.';
COMMENT ON COLUMN pgonce.positions.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.positions.topic IS 'The topic.';
COMMENT ON COLUMN pgonce.positions.partition IS 'The number of the partition in Kafka.';
COMMENT ON COLUMN pgonce.positions.next_offset IS 'The next record: rows below are in the table, or were never selected.';
COMMENT ON COLUMN pgonce.positions.run_id IS 'The run that it belongs to; only the owner''s tasks may move it.';
COMMENT ON COLUMN pgonce.positions.rows IS 'How many rows of the partition were written since the query began to run in this mode.';
COMMENT ON COLUMN pgonce.positions.claim IS 'Token of the task that may move it; null if none may.';
COMMENT ON COLUMN pgonce.positions.stage IS 'Spark''s number of the stage of the task that claimed it; a later stage has a greater one.';
COMMENT ON COLUMN pgonce.positions.epoch IS 'Spark''s number of the batch or epoch in which it was claimed.';
COMMENT ON COLUMN pgonce.positions.spark_partition IS 'Spark''s number of the task''s partition.';
COMMENT ON COLUMN pgonce.positions.task_attempt IS 'Spark''s number of the task''s attempt; a later attempt has a greater one.';
COMMENT ON COLUMN pgonce.positions.claimed_from IS 'The position when it was first claimed in that batch or epoch.';
COMMENT ON COLUMN pgonce.positions.disputed_from IS 'Set if two tasks of one batch had rows of the partition: from this record on, some may be missing. No run begins until a person has set it to null.';
COMMENT ON COLUMN pgonce.positions.moved_at IS 'When it was last moved.';

-- The first partition of which rows may be missing; as the ledger's owner, because every way of taking a writer over asks.
CREATE FUNCTION pgonce.first_dispute(writer bigint) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER
BEGIN ATOMIC
    SELECT jsonb_build_array(p.topic, p.partition, p.disputed_from, p.next_offset) FROM pgonce.positions AS p
    WHERE p.writer_id = writer AND p.disputed_from IS NOT NULL ORDER BY p.topic, p.partition LIMIT 1;
END;

-- A query or person that takes a writer over, retires it or takes its place ends the claims of its tasks, whatever code does it.
-- As the ledger's owner, because it deletes rows of this table, which a streaming role may not.
CREATE FUNCTION pgonce.end_claims() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgonce.first_dispute(NEW.writer_id) IS NOT NULL AND OLD.run_id IS DISTINCT FROM NEW.run_id THEN
        RAISE EXCEPTION 'Rows of a partition may be missing: %', pgonce.first_dispute(NEW.writer_id)
            USING HINT = 'pgonce explain PARTITION_MIXED';
    END IF;
    -- A task may have claimed a partition that is new since the snapshot was taken: its claim would go on.
    IF OLD.run_id IS NOT NULL AND current_setting('transaction_isolation') NOT LIKE 'read %committed'
        AND EXISTS (SELECT FROM pgonce.positions AS p WHERE p.writer_id = NEW.writer_id) THEN
        RAISE EXCEPTION 'A % transaction does not see all that tasks in real time write.', current_setting('transaction_isolation')
            USING HINT = 'Set default_transaction_isolation to read committed for the role.';
    END IF;
    DELETE FROM pgonce.positions AS p WHERE p.writer_id = NEW.writer_id AND p.run_id IS DISTINCT FROM NEW.run_id;
    IF NEW.retired_at IS NOT NULL OR NEW.replaced_by IS NOT NULL THEN
        UPDATE pgonce.positions AS p SET claim = NULL WHERE p.writer_id = NEW.writer_id;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION pgonce.end_claims() FROM PUBLIC;
CREATE TRIGGER end_claims AFTER UPDATE OF run_id, retired_at, replaced_by ON pgonce.writers FOR EACH ROW
    WHEN (OLD.run_id IS DISTINCT FROM NEW.run_id OR OLD.retired_at IS DISTINCT FROM NEW.retired_at
        OR OLD.replaced_by IS DISTINCT FROM NEW.replaced_by)
    EXECUTE FUNCTION pgonce.end_claims();
-- Also for a role whose session_replication_role is replica, so that the triggers of its tables rest.
ALTER TABLE pgonce.writers ENABLE ALWAYS TRIGGER end_claims;

-- As the owner too, because commands of roles that only read ask it.
CREATE FUNCTION pgonce.real_time_positions(writer bigint) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
BEGIN ATOMIC
    SELECT jsonb_build_object('0', jsonb_object_agg(t.topic, t.partitions))
    FROM (SELECT p.topic, jsonb_object_agg(p.partition::text, p.next_offset) AS partitions
          FROM pgonce.positions AS p WHERE p.writer_id = writer GROUP BY p.topic) AS t
    HAVING count(*) > 0;
END;

-- The same, for a transaction that takes the writer over: tasks of other runs cannot move them until it ends.
CREATE FUNCTION pgonce.take_positions(writer bigint, run text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Those who cannot write a batch must not hold up the tasks of those who can. Here current_user is the owner, and a login
    -- may only become the role of the stream (SET ROLE, or options=-crole=...).
    IF NOT has_table_privilege(
        coalesce(nullif(current_setting('role'), 'none'), session_user), 'pgonce.writers', 'UPDATE'
    ) THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied for pgonce.take_positions';
    END IF;
    PERFORM FROM pgonce.positions AS p WHERE p.writer_id = writer AND p.run_id IS DISTINCT FROM run
    ORDER BY p.topic, p.partition FOR UPDATE;
    RETURN pgonce.real_time_positions(writer);
END
$$;

-- Tombstones ----------------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.tombstone_sets (
    tombstone_set_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target           oid NOT NULL,
    target_name      text NOT NULL,
    key_columns      text[] NOT NULL,
    key_types        text[] NOT NULL,
    order_column     text NOT NULL,
    order_type       text NOT NULL,
    expires_at       timestamptz NOT NULL
);
COMMENT ON TABLE pgonce.tombstone_sets IS 'Of which table, keys and order tombstones are. Without its row here, a tombstone has no effect.';
COMMENT ON COLUMN pgonce.tombstone_sets.tombstone_set_id IS 'What its tombstones have.';
COMMENT ON COLUMN pgonce.tombstone_sets.target IS 'The table from which rows were deleted; for a partition, the root of its tree.';
COMMENT ON COLUMN pgonce.tombstone_sets.target_name IS 'Its schema and name. By this it is found again where a dump is restored.';
COMMENT ON COLUMN pgonce.tombstone_sets.key_columns IS 'The key columns, in the order of the values in a tombstone''s key. If a column was renamed, write its new name here.';
COMMENT ON COLUMN pgonce.tombstone_sets.key_types IS 'What their values are: number, text, uuid, boolean or a type of dates and times.';
COMMENT ON COLUMN pgonce.tombstone_sets.order_column IS 'The column of the table that orderBy names. If it was renamed, write its new name here.';
COMMENT ON COLUMN pgonce.tombstone_sets.order_type IS 'What its values are: number, float, text, uuid or a type of dates and times.';
COMMENT ON COLUMN pgonce.tombstone_sets.expires_at IS 'When the last of them may go.';

-- No foreign key: Postgres would look it up for every tombstone, and a tombstone without its set has no effect and
-- goes when it expires.
CREATE TABLE pgonce.tombstones (
    tombstone_set_id bigint NOT NULL,
    key              jsonb NOT NULL,
    order_value      jsonb NOT NULL,
    deleted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at       timestamptz NOT NULL,
    PRIMARY KEY (tombstone_set_id, key)
);
CREATE INDEX tombstones_expiry ON pgonce.tombstones (expires_at);
COMMENT ON TABLE pgonce.tombstones IS 'Rows that were deleted with onlyNewer: an older change of the key is passed over while its tombstone is there.';
COMMENT ON COLUMN pgonce.tombstones.tombstone_set_id IS 'Of which table, keys and order it is.';
COMMENT ON COLUMN pgonce.tombstones.key IS 'The values of the key columns, in the order of key_columns.';
COMMENT ON COLUMN pgonce.tombstones.order_value IS 'The value of orderBy with which the key was deleted.';
COMMENT ON COLUMN pgonce.tombstones.deleted_at IS 'When it was deleted.';
COMMENT ON COLUMN pgonce.tombstones.expires_at IS 'From when on the tombstone may go: tombstoneDays after it was made.';
