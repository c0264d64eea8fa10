-- The ledger: what pgonce remembers of every writer and batch, in the database of the rows.
--
-- This is the form of the first release. Later migrations only add: they create tables, columns and views, and never
-- change what something means that stands here. Do not edit what has been released; add a migration.

-- The ledger itself ---------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.schema_version (
    version              integer PRIMARY KEY,
    least_reader_version integer NOT NULL,
    applied_at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.schema_version IS 'One row a migration that was applied.';
COMMENT ON COLUMN pgonce.schema_version.version IS 'Number of the migration.';
COMMENT ON COLUMN pgonce.schema_version.least_reader_version IS 'Code that knows only lower versions must not use this ledger.';
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
    swapped_from        text,
    offsets_read_by     text,
    written_as          jsonb,
    UNIQUE (query_id, sink_name),
    CONSTRAINT writers_guarantee_check CHECK (guarantee IN ('offsets', 'ids'))
);
CREATE INDEX writers_sink_name ON pgonce.writers (sink_name);
COMMENT ON TABLE pgonce.writers IS 'One row a writer: a streaming query (by the id in its checkpoint) and one sink of it.';
COMMENT ON COLUMN pgonce.writers.writer_id IS 'Key of the writer inside this ledger.';
COMMENT ON COLUMN pgonce.writers.query_id IS 'The id that Spark keeps in the checkpoint; it survives restarts.';
COMMENT ON COLUMN pgonce.writers.sink_name IS 'The sink''s name; the qualified target table unless the user named it.';
COMMENT ON COLUMN pgonce.writers.query_name IS 'The query''s name, for people; never an identity.';
COMMENT ON COLUMN pgonce.writers.checkpoint_location IS 'Where the checkpoint was when the last batch was published.';
COMMENT ON COLUMN pgonce.writers.run_id IS 'The run that published the last batch: the owner.';
COMMENT ON COLUMN pgonce.writers.generation IS 'Counts how often batch ids began to be used again.';
COMMENT ON COLUMN pgonce.writers.last_batch_id IS 'The newest batch whose rows are in the target.';
COMMENT ON COLUMN pgonce.writers.end_offsets IS 'Where that batch ended: source id to offset; a Kafka offset is the next one to read.';
COMMENT ON COLUMN pgonce.writers.guarantee IS 'What a replay is judged by: offsets (proof), or ids alone (offsetsFrom=listener).';
COMMENT ON COLUMN pgonce.writers.replaces IS 'The query id whose place this writer took.';
COMMENT ON COLUMN pgonce.writers.replaced_by IS 'The query id that took this writer''s place; it may publish no more.';
COMMENT ON COLUMN pgonce.writers.created_at IS 'When its first batch was published.';
COMMENT ON COLUMN pgonce.writers.updated_at IS 'When its last batch was published.';
COMMENT ON COLUMN pgonce.writers.retired_at IS 'When a person said that this writer will publish no more; null while it may.';
COMMENT ON COLUMN pgonce.writers.targets IS 'Qualified name to oid of the tables that the last batch was written to; null where no batch has recorded them.';
COMMENT ON COLUMN pgonce.writers.sources IS 'All that the query has ever read: kafka (topic to partitions) and folders (of files, as Spark describes them); null where not all of it is known.';
COMMENT ON COLUMN pgonce.writers.swapped_from IS 'The sink''s name before its table was exchanged for another (pgonce swap); null again once a batch has gone into the right table.';
COMMENT ON COLUMN pgonce.writers.offsets_read_by IS 'How the checkpoint of the last batch was read: python, from a disk; pyarrow, from another store; spark, through Spark''s own file system; or listener, which has not read it.';
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
    PRIMARY KEY (writer_id, generation, batch_id)
);
COMMENT ON TABLE pgonce.batches IS 'One row a published batch, written in the transaction that wrote its rows.';
COMMENT ON COLUMN pgonce.batches.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.batches.generation IS 'The writer''s generation when the batch was published.';
COMMENT ON COLUMN pgonce.batches.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.batches.run_id IS 'The run that published it.';
COMMENT ON COLUMN pgonce.batches.attempt IS 'Token of the commit that published it; tells our own lost answer from somebody else''s batch.';
COMMENT ON COLUMN pgonce.batches.start_offsets IS 'Where the batch began, inclusive; null where unknown.';
COMMENT ON COLUMN pgonce.batches.end_offsets IS 'Where the batch ended, exclusive for Kafka; null where unknown.';
COMMENT ON COLUMN pgonce.batches.offset_log IS 'The text of the checkpoint''s offsets/N, byte for byte: what proves a replay.';
COMMENT ON COLUMN pgonce.batches.rows IS 'Rows that the batch carried.';
COMMENT ON COLUMN pgonce.batches.transport IS 'How the rows came: inline, staged, inline+staged, arrow, function, adopted.';
COMMENT ON COLUMN pgonce.batches.committed_at IS 'When the record was written, just before COMMIT.';
COMMENT ON COLUMN pgonce.batches.positions IS 'Source id to topic to partition to next position: rows below are in the target or were never selected; null where rows carry no positions.';
COMMENT ON COLUMN pgonce.batches.dropped_rows IS 'Rows that the batch carried and that an earlier batch had published.';
COMMENT ON COLUMN pgonce.batches.stateful IS 'Whether the query keeps state, so that its checkpoint cannot be rebuilt from here; null where unknown.';
COMMENT ON COLUMN pgonce.batches.topic_ids IS 'Topic to Kafka''s id of it, where brokers were asked: a topic made anew has another.';
COMMENT ON COLUMN pgonce.batches.counts IS 'What became of the rows, where they were written by key and not all of them count: written, deleted, superseded by a later change in the batch, passed_over because the table has something newer, not_found, ignored. Together they are the batch''s rows. dead_letters and unrouted count rows that are not among these.';
COMMENT ON COLUMN pgonce.batches.tables IS 'How many rows went into each table, where the batch writes to several.';

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
COMMENT ON TABLE pgonce.runs IS 'The runs that owned a writer, each from its first published batch.';
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
COMMENT ON TABLE pgonce.replays IS 'One row a proven replay that was skipped, per run and batch.';
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
COMMENT ON TABLE pgonce.target_changes IS 'One row a batch whose rows went into another table than those before: recreated, swapped, renamed or moved.';
COMMENT ON COLUMN pgonce.target_changes.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.target_changes.generation IS 'The writer''s generation.';
COMMENT ON COLUMN pgonce.target_changes.batch_id IS 'The first batch in the other table.';
COMMENT ON COLUMN pgonce.target_changes.table_name IS 'The table that it was written to.';
COMMENT ON COLUMN pgonce.target_changes.change IS 'What is different, in words.';
COMMENT ON COLUMN pgonce.target_changes.noticed_at IS 'When.';

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
        'accept', 'retire', 'recover', 'undo', 'new-checkpoint', 'forget', 'start-over', 'swap',
        'replay-dead-letters', 'discard-dead-letters'
    ))
);
CREATE INDEX interventions_writer ON pgonce.interventions (writer_id, kind, batch_id);
COMMENT ON TABLE pgonce.interventions IS 'What people did by hand to a writer or its checkpoint, and why.';
COMMENT ON COLUMN pgonce.interventions.intervention_id IS 'Counts them.';
COMMENT ON COLUMN pgonce.interventions.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept: publish this batch although nothing proves that it follows; retire: the writer is gone; forget: it is out of the way of a new query that loads the table again; recover, undo, new-checkpoint: its checkpoint was written to; start-over: its batch 0 has replaced the rows of another query; swap: its table was exchanged for another; replay-dead-letters, discard-dead-letters: rows that it had put aside were published after all, or given up.';
COMMENT ON COLUMN pgonce.interventions.batch_id IS 'The batch that is accepted, or at which the checkpoint stands now.';
COMMENT ON COLUMN pgonce.interventions.reason IS 'In the person''s words.';
COMMENT ON COLUMN pgonce.interventions.details IS 'What was written, and where what it replaced is kept.';
COMMENT ON COLUMN pgonce.interventions.made_by IS 'The database role.';
COMMENT ON COLUMN pgonce.interventions.made_at IS 'When.';
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
    received_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, run_id, batch_id)
);
-- Status reads the newest event of each query, and how many events disagree. With 100 queries and the 1,000 events that
-- the listener keeps of each, it would read all 100,000 rows for that.
CREATE INDEX progress_newest ON pgonce.progress (query_id, progress_at, batch_id);
CREATE INDEX progress_disagreements ON pgonce.progress (query_id) WHERE disagreement IS NOT NULL;
COMMENT ON TABLE pgonce.progress IS 'What the progress listener heard. It comes after the commit, and never feeds a verdict.';
COMMENT ON COLUMN pgonce.progress.query_id IS 'Spark''s query id.';
COMMENT ON COLUMN pgonce.progress.run_id IS 'Spark''s run id.';
COMMENT ON COLUMN pgonce.progress.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.progress.query_name IS 'The query''s name.';
COMMENT ON COLUMN pgonce.progress.progress_at IS 'The trigger''s time, as the event gives it.';
COMMENT ON COLUMN pgonce.progress.num_input_rows IS 'Rows read, as Spark counts them.';
COMMENT ON COLUMN pgonce.progress.start_offsets IS 'Source position to offset where the batch began.';
COMMENT ON COLUMN pgonce.progress.end_offsets IS 'Source position to offset where the batch ended.';
COMMENT ON COLUMN pgonce.progress.latest_offsets IS 'Source position to the newest offset that the source knew: what lag is counted from.';
COMMENT ON COLUMN pgonce.progress.durations_ms IS 'Spark''s durationMs: phase to milliseconds.';
COMMENT ON COLUMN pgonce.progress.disagreement IS 'Null where event and ledger agree, else what differs.';
COMMENT ON COLUMN pgonce.progress.received_at IS 'When the row was written.';

-- Staging tables ------------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.staged_tables (
    table_name text PRIMARY KEY,
    query_id   text NOT NULL,
    sink_name  text NOT NULL,
    run_id     text NOT NULL,
    batch_id   bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.staged_tables IS 'Every staging table that is alive; the sweep drops those whose batch is decided.';
COMMENT ON COLUMN pgonce.staged_tables.table_name IS 'Its name, in this schema.';
COMMENT ON COLUMN pgonce.staged_tables.query_id IS 'The query whose tasks fill it; for a batch job, the word batchKey and its key.';
COMMENT ON COLUMN pgonce.staged_tables.sink_name IS 'The sink it is for.';
COMMENT ON COLUMN pgonce.staged_tables.run_id IS 'The run whose tasks fill it; for a batch job, its attempt.';
COMMENT ON COLUMN pgonce.staged_tables.batch_id IS 'The batch whose rows it holds.';
COMMENT ON COLUMN pgonce.staged_tables.created_at IS 'When its first task created it.';

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

-- Dead letters --------------------------------------------------------------------------------------------------------

CREATE TABLE pgonce.dead_letters (
    dead_letter_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id       text NOT NULL,
    sink_name      text NOT NULL,
    batch_id       bigint NOT NULL,
    target         text NOT NULL,
    position       jsonb,
    row_data       jsonb NOT NULL,
    column_name    text,
    code           text NOT NULL,
    message        text NOT NULL,
    destination    jsonb NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letters_writer ON pgonce.dead_letters (query_id, sink_name, batch_id);
COMMENT ON TABLE pgonce.dead_letters IS 'Rows that could not be published for their own values, if the query asks for that (deadLetters). Repair row_data and run pgonce dead-letters --replay, or discard them.';
COMMENT ON COLUMN pgonce.dead_letters.dead_letter_id IS 'What pgonce dead-letters --id takes.';
COMMENT ON COLUMN pgonce.dead_letters.query_id IS 'The query whose batch the row was in.';
COMMENT ON COLUMN pgonce.dead_letters.sink_name IS 'Its sink: the option sinkName, or the qualified target table.';
COMMENT ON COLUMN pgonce.dead_letters.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.dead_letters.target IS 'The table, with its schema, that refused the row or was to get it.';
COMMENT ON COLUMN pgonce.dead_letters.position IS 'Where in Kafka the row comes from (topic, partition, offset), where that is known.';
COMMENT ON COLUMN pgonce.dead_letters.row_data IS 'The row''s columns, as they were to be written. A value that neither Postgres nor JSON can hold is an object with the key base64, json or arrow.';
COMMENT ON COLUMN pgonce.dead_letters.column_name IS 'The column whose value was refused, where that is known.';
COMMENT ON COLUMN pgonce.dead_letters.code IS 'The SQLSTATE with which Postgres refused the row, or the code of an error of pgonce.';
COMMENT ON COLUMN pgonce.dead_letters.message IS 'What Postgres, or pgonce, says of the row.';
COMMENT ON COLUMN pgonce.dead_letters.destination IS 'How the row was to be written: the columns and their types, mode, keys and the like. A replay needs it.';
COMMENT ON COLUMN pgonce.dead_letters.made_at IS 'When it was put aside.';

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

-- For people ----------------------------------------------------------------------------------------------------------

CREATE VIEW pgonce.current_offsets AS
SELECT w.query_id, w.query_name, w.sink_name, w.last_batch_id AS batch_id, s.key AS source,
       t.topic, t.partition,
       -- Where rows carry positions, a batch that Spark ran again may end before what is stored.
       CASE WHEN t.topic IS NULL THEN s.value ELSE to_jsonb(greatest(
           t.next_offset::bigint, (b.positions -> s.key -> t.topic ->> t.partition::text)::bigint)) END AS end_offset,
       w.updated_at AS committed_at
FROM pgonce.writers AS w
-- The listener fills in the batch's record even where the next commit keeps it from the writer's row.
LEFT JOIN pgonce.batches AS b
    ON (b.writer_id, b.generation, b.batch_id) = (w.writer_id, w.generation, w.last_batch_id)
CROSS JOIN LATERAL jsonb_each(coalesce(w.end_offsets, b.end_offsets)) AS s
LEFT JOIN LATERAL (
    SELECT topics.key AS topic, parts.key::integer AS partition, parts.value AS next_offset
    FROM jsonb_each(CASE WHEN jsonb_typeof(s.value) = 'object' THEN s.value ELSE '{}' END) AS topics
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(topics.value) = 'object' THEN topics.value ELSE '{}' END) AS parts
    WHERE parts.key ~ '^[0-9]{1,9}$' AND jsonb_typeof(parts.value) = 'number'
) AS t ON true
WHERE w.replaced_by IS NULL AND w.retired_at IS NULL;
COMMENT ON VIEW pgonce.current_offsets IS 'Where every writer stands: one row a topic and partition for Kafka, one a source otherwise.';
COMMENT ON COLUMN pgonce.current_offsets.query_id IS 'The id that Spark keeps in the checkpoint.';
COMMENT ON COLUMN pgonce.current_offsets.query_name IS 'The query''s name, for people.';
COMMENT ON COLUMN pgonce.current_offsets.sink_name IS 'The sink''s name.';
COMMENT ON COLUMN pgonce.current_offsets.batch_id IS 'The newest published batch.';
COMMENT ON COLUMN pgonce.current_offsets.source IS 'The source''s position in the query, or its name.';
COMMENT ON COLUMN pgonce.current_offsets.topic IS 'Kafka''s topic; null for other sources.';
COMMENT ON COLUMN pgonce.current_offsets.partition IS 'Kafka''s partition; null for other sources.';
COMMENT ON COLUMN pgonce.current_offsets.end_offset IS 'The next offset to read (Kafka), or the source''s own offset.';
COMMENT ON COLUMN pgonce.current_offsets.committed_at IS 'When that batch was published.';

CREATE VIEW pgonce.replays_skipped AS
SELECT w.query_id, w.query_name, w.sink_name, count(*) AS replays, max(r.skipped_at) AS last_skipped_at
FROM pgonce.replays AS r JOIN pgonce.writers AS w USING (writer_id)
GROUP BY w.writer_id;
COMMENT ON VIEW pgonce.replays_skipped IS 'How many replays were skipped for every writer.';
COMMENT ON COLUMN pgonce.replays_skipped.query_id IS 'The id that Spark keeps in the checkpoint.';
COMMENT ON COLUMN pgonce.replays_skipped.query_name IS 'The query''s name, for people.';
COMMENT ON COLUMN pgonce.replays_skipped.sink_name IS 'The sink''s name.';
COMMENT ON COLUMN pgonce.replays_skipped.replays IS 'Proven replays that were skipped.';
COMMENT ON COLUMN pgonce.replays_skipped.last_skipped_at IS 'When the last of them was skipped.';

-- Read your writes: wait until the rows of given Kafka records are in Postgres.
CREATE FUNCTION pgonce.wait_for(query text, offsets jsonb, timeout interval DEFAULT '10 seconds', sink text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql
-- VOLATILE, so that under READ COMMITTED each statement in here sees what was committed before it began.
VOLATILE
PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $wait_for$
DECLARE
    longest CONSTANT interval := '10 minutes';
    until   CONSTANT timestamptz := clock_timestamp() + timeout;
    pause   double precision := 0.005;
    queries text[];
    missing bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' AND current_setting('transaction_isolation') <> 'read uncommitted' THEN
        RAISE EXCEPTION 'pgonce.wait_for cannot see new commits in a transaction that is %.', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Call it in a READ COMMITTED transaction, before the one that reads, or outside of any transaction.';
    END IF;
    IF query IS NULL OR offsets IS NULL OR timeout IS NULL OR timeout < '0 seconds' OR timeout > longest THEN
        RAISE EXCEPTION 'pgonce.wait_for needs a query, offsets, and a timeout of at most %.', longest
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(offsets) <> 'object' OR jsonb_path_exists(offsets, 'strict $.* ? (@.type() != "object")')
        OR jsonb_path_exists(offsets, 'strict $.*.* ? (@.type() != "number")')
        OR jsonb_path_exists(offsets, 'strict $.*.* ? (@ < 0 || @.floor() != @)')
    THEN
        RAISE EXCEPTION 'The offsets of pgonce.wait_for are not in the form {"topic": {"0": 41}}.'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give the topic, partition and offset of each record for which you wait, as the producer returned them.';
    END IF;
    LOOP
        SELECT array_agg(DISTINCT w.query_id) INTO queries
        FROM pgonce.writers AS w
        WHERE (w.query_id = query OR w.query_name = query) AND w.replaced_by IS NULL AND w.retired_at IS NULL
            AND (sink IS NULL OR w.sink_name = sink);
        IF queries IS NULL OR cardinality(queries) > 1 THEN
            RAISE EXCEPTION '% by the name or id %.',
                CASE WHEN queries IS NULL THEN 'No query that may still publish is known' ELSE 'Several queries are known' END, quote_literal(query)
                USING ERRCODE = 'no_data_found',
                      HINT = 'pgonce status shows all queries. Give the id of one of them; the name of a sink counts, too, where it is given.';
        END IF;
        SELECT count(*) INTO missing
        FROM pgonce.writers AS w
        LEFT JOIN pgonce.batches AS b
            ON b.writer_id = w.writer_id AND b.generation = w.generation AND b.batch_id = w.last_batch_id
        CROSS JOIN jsonb_each(offsets) AS t
        CROSS JOIN jsonb_each(t.value) AS p
        WHERE w.query_id = queries[1] AND w.replaced_by IS NULL AND w.retired_at IS NULL
            AND (sink IS NULL OR w.sink_name = sink)
            AND NOT EXISTS (
                -- A topic that two sources read has to be past the record in both of them.
                SELECT FROM jsonb_each(coalesce(w.end_offsets, b.end_offsets)) AS s
                WHERE jsonb_typeof(s.value -> t.key -> p.key) = 'number'
                HAVING count(*) > 0 AND min(greatest(
                    (s.value -> t.key ->> p.key)::numeric, (b.positions -> s.key -> t.key ->> p.key)::numeric
                )) > (p.value #>> '{}')::numeric
            );
        IF missing = 0 THEN
            RETURN true;
        END IF;
        IF clock_timestamp() >= until THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(least(pause, greatest(extract(epoch FROM until - clock_timestamp()), 0)));
        pause := least(pause * 2, 0.1);
    END LOOP;
END
$wait_for$;
COMMENT ON FUNCTION pgonce.wait_for(text, jsonb, interval, text) IS 'Waits until the rows of these Kafka records, {"topic": {"partition": offset}}, are in all tables of the query: true, or false after the timeout. A later statement sees them.';
