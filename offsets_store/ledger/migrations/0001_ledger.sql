-- The ledger's first form. Migrations are additive: a later one adds columns, tables and views, and never
-- changes the meaning of what stands here.

CREATE TABLE pgonce.schema_version (
    version              integer     PRIMARY KEY,
    least_reader_version integer     NOT NULL,
    applied_at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.schema_version IS 'One row a migration that was applied.';
COMMENT ON COLUMN pgonce.schema_version.version IS 'Number of the migration.';
COMMENT ON COLUMN pgonce.schema_version.least_reader_version IS 'Code that knows only lower versions must not use this ledger.';
COMMENT ON COLUMN pgonce.schema_version.applied_at IS 'When it was applied.';

CREATE TABLE pgonce.writers (
    writer_id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id            text        NOT NULL,
    sink_name           text        NOT NULL,
    query_name          text,
    checkpoint_location text,
    run_id              text,
    generation          integer     NOT NULL DEFAULT 0,
    last_batch_id       bigint,
    end_offsets         jsonb,
    guarantee           text        NOT NULL DEFAULT 'offsets' CHECK (guarantee IN ('offsets', 'ids')),
    replaces            text,
    replaced_by         text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (query_id, sink_name)
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

CREATE TABLE pgonce.batches (
    writer_id     bigint      NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    generation    integer     NOT NULL,
    batch_id      bigint      NOT NULL,
    run_id        text        NOT NULL,
    attempt       uuid        NOT NULL,
    start_offsets jsonb,
    end_offsets   jsonb,
    offset_log    text,
    rows          bigint      NOT NULL,
    transport     text        NOT NULL,
    committed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
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

-- A writer may name a last batch only where that batch is recorded. Deferred, so that a transaction function
-- can be sealed first and recorded last: a COMMIT that its own SQL issues in between fails, and takes all with it.
ALTER TABLE pgonce.writers ADD CONSTRAINT last_batch_is_recorded
    FOREIGN KEY (writer_id, generation, last_batch_id) REFERENCES pgonce.batches (writer_id, generation, batch_id)
    DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE pgonce.runs (
    writer_id      bigint      NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    run_id         text        NOT NULL,
    first_batch_id bigint      NOT NULL,
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
    writer_id  bigint      NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    generation integer     NOT NULL,
    batch_id   bigint      NOT NULL,
    run_id     text        NOT NULL,
    attempt    uuid        NOT NULL,
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

CREATE TABLE pgonce.progress (
    query_id        text        NOT NULL,
    run_id          text        NOT NULL,
    batch_id        bigint      NOT NULL,
    query_name      text,
    progress_at     timestamptz NOT NULL,
    num_input_rows  bigint      NOT NULL,
    start_offsets   jsonb,
    end_offsets     jsonb,
    latest_offsets  jsonb,
    durations_ms    jsonb,
    disagreement    text,
    received_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, run_id, batch_id)
);
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

CREATE TABLE pgonce.staged_tables (
    table_name text        PRIMARY KEY,
    query_id   text        NOT NULL,
    sink_name  text        NOT NULL,
    run_id     text        NOT NULL,
    batch_id   bigint      NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.staged_tables IS 'Every staging table that is alive; the sweep drops those whose batch is decided.';
COMMENT ON COLUMN pgonce.staged_tables.table_name IS 'Its name, in this schema.';
COMMENT ON COLUMN pgonce.staged_tables.query_id IS 'The query whose tasks fill it.';
COMMENT ON COLUMN pgonce.staged_tables.sink_name IS 'The sink it is for.';
COMMENT ON COLUMN pgonce.staged_tables.run_id IS 'The run whose tasks fill it.';
COMMENT ON COLUMN pgonce.staged_tables.batch_id IS 'The batch whose rows it holds.';
COMMENT ON COLUMN pgonce.staged_tables.created_at IS 'When its first task created it.';

CREATE VIEW pgonce.current_offsets AS
SELECT w.query_id, w.query_name, w.sink_name, w.last_batch_id AS batch_id, s.key AS source,
       t.topic, t.partition,
       CASE WHEN t.topic IS NULL THEN s.value ELSE t.next_offset END AS end_offset,
       w.updated_at AS committed_at
FROM pgonce.writers AS w
-- The listener fills the batch's record even where the next commit keeps it from the writer's row.
LEFT JOIN pgonce.batches AS b
    ON (b.writer_id, b.generation, b.batch_id) = (w.writer_id, w.generation, w.last_batch_id)
CROSS JOIN LATERAL jsonb_each(coalesce(w.end_offsets, b.end_offsets)) AS s
LEFT JOIN LATERAL (
    SELECT topics.key AS topic, parts.key::integer AS partition, parts.value AS next_offset
    FROM jsonb_each(CASE WHEN jsonb_typeof(s.value) = 'object' THEN s.value ELSE '{}' END) AS topics
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(topics.value) = 'object' THEN topics.value ELSE '{}' END) AS parts
    WHERE parts.key ~ '^[0-9]{1,9}$' AND jsonb_typeof(parts.value) = 'number'
) AS t ON true
WHERE w.replaced_by IS NULL;
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
