-- What queries are doing, and what went wrong.
--
-- Batches need none of it: code that knows this migration commits into a ledger that lacks it. What is written here is
-- written in sessions of its own, so nothing here refers to pgonce.writers: a foreign key would wait for a commit.

CREATE TABLE pgonce.failures (
    failure_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id   text NOT NULL,
    query_name text,
    sink_name  text,
    run_id     text,
    batch_id   bigint,
    code       text NOT NULL,
    message    text NOT NULL,
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
COMMENT ON TABLE pgonce.failures IS 'What went wrong, as far as it could be written down: one row for each query, sink, run, batch and code. The newest 100 of a query are kept.';
COMMENT ON COLUMN pgonce.failures.failure_id IS 'Key of the failure.';
COMMENT ON COLUMN pgonce.failures.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.failures.query_name IS 'Its name, if it is known where the failure was seen.';
COMMENT ON COLUMN pgonce.failures.sink_name IS 'The sink; null if the failure is one of the whole query, or came before the sink was known.';
COMMENT ON COLUMN pgonce.failures.run_id IS 'The run; null where it is not known (Spark does not tell it to the planner).';
COMMENT ON COLUMN pgonce.failures.batch_id IS 'The batch; null if there was none yet.';
COMMENT ON COLUMN pgonce.failures.code IS 'The error''s code (pgonce explain CODE), or the class of Spark''s error.';
COMMENT ON COLUMN pgonce.failures.message IS 'What happened, without values of rows and without secrets. The driver''s log has all of it.';
COMMENT ON COLUMN pgonce.failures.seen_by IS 'Who saw it: the commit, the planner (before rows were computed), a recovery, or the listener, when Spark said that the query had ended.';
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
COMMENT ON TABLE pgonce.heartbeats IS 'One row a run that a listener hears. The newest 20 runs of a query are kept.';
COMMENT ON COLUMN pgonce.heartbeats.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.heartbeats.run_id IS 'The run.';
COMMENT ON COLUMN pgonce.heartbeats.query_name IS 'The query''s name.';
COMMENT ON COLUMN pgonce.heartbeats.listener IS 'The process that hears it: host and process id.';
COMMENT ON COLUMN pgonce.heartbeats.started_at IS 'When the listener first heard of the run.';
COMMENT ON COLUMN pgonce.heartbeats.heard_at IS 'When the listener last said that the run was alive; it says so every 15 seconds.';
COMMENT ON COLUMN pgonce.heartbeats.idle_since IS 'Since when Spark finds nothing to read; null if it does.';
COMMENT ON COLUMN pgonce.heartbeats.ended_at IS 'When Spark said that the run had ended; null if it has not.';
COMMENT ON COLUMN pgonce.heartbeats.ended_by IS 'The code or class of the error that ended it; null if it was stopped.';

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
COMMENT ON COLUMN pgonce.measured_lag.retention_used_percent IS 'How much of its topic''s retention that record has used. From 100 on, Kafka may have deleted it.';
COMMENT ON COLUMN pgonce.measured_lag.measured_at IS 'When it was measured.';

CREATE TABLE pgonce.brokers (
    query_id          text PRIMARY KEY,
    bootstrap_servers text NOT NULL,
    noted_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgonce.brokers IS 'The Kafka brokers that queries name themselves, with the option bootstrapServers.';
COMMENT ON COLUMN pgonce.brokers.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.brokers.bootstrap_servers IS 'Host names and ports, and never a login.';
COMMENT ON COLUMN pgonce.brokers.noted_at IS 'When a run named these brokers first.';

-- The lag within one event: what lay in the sources when its batch was planned, less what the batch read.
ALTER TABLE pgonce.progress ADD COLUMN lag bigint;
COMMENT ON COLUMN pgonce.progress.lag IS 'Kafka records that lay in the sources when the batch was planned and that it left there; null where unknown.';

-- In two steps: a default that is there at once would give the batches of before the time of this migration. No INSERT
-- names the column, so older code fills it in too.
ALTER TABLE pgonce.batches ADD COLUMN begun_at timestamptz;
ALTER TABLE pgonce.batches ALTER COLUMN begun_at SET DEFAULT transaction_timestamp();
COMMENT ON COLUMN pgonce.batches.begun_at IS 'When the transaction that published the batch began; null for batches of before this column.';

CREATE FUNCTION pgonce.kafka_offsets(offsets jsonb)
RETURNS TABLE (topic text, partition integer, next_offset bigint)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT topics.key, parts.key::integer, min(parts.value::bigint)
    FROM jsonb_each(CASE WHEN jsonb_typeof(offsets) = 'object' THEN offsets ELSE '{}' END) AS sources
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(sources.value) = 'object' THEN sources.value ELSE '{}' END) AS topics
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(topics.value) = 'object' THEN topics.value ELSE '{}' END) AS parts
    WHERE parts.key ~ '^[0-9]{1,9}$' AND jsonb_typeof(parts.value) = 'number'
    GROUP BY 1, 2;
END;
COMMENT ON FUNCTION pgonce.kafka_offsets(jsonb) IS 'The next offset of each Kafka partition in offsets of the ledger; the least, if several sources read it.';
