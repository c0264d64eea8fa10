-- What people read: views of the ledger, and the functions that they and programs call.

CREATE FUNCTION pgonce.kafka_offsets(offsets jsonb)
RETURNS TABLE (topic text, partition integer, next_offset bigint)
-- Where Postgres has LLVM, it compiles a statement whose cost it guesses at more than 100000, which takes seconds. It would
-- guess a million rows for each object within an object: as a call, which STRICT makes of it, it has the rows told here.
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT COST 10 ROWS 12
BEGIN ATOMIC
    SELECT topics.key, parts.key::integer, min(parts.value::bigint)
    FROM jsonb_each(CASE WHEN jsonb_typeof(offsets) = 'object' THEN offsets ELSE '{}' END) AS sources
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(sources.value) = 'object' THEN sources.value ELSE '{}' END) AS topics
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(topics.value) = 'object' THEN topics.value ELSE '{}' END) AS parts
    WHERE parts.key ~ '^[0-9]{1,9}$' AND jsonb_typeof(parts.value) = 'number'
    GROUP BY 1, 2;
END;
COMMENT ON FUNCTION pgonce.kafka_offsets(jsonb) IS 'The next offset of each Kafka partition in offsets of the ledger; the least, if several sources read it.';

-- The id of a query as a word of a command that people copy. One that is no id of Spark's may be a command of its own.
CREATE FUNCTION pgonce.in_command(query_id text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN query_id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' THEN query_id ELSE 'QUERY' END;

CREATE VIEW pgonce.current_offsets AS
SELECT w.query_id, w.query_name, w.sink_name, w.last_batch_id AS batch_id, s.key AS source,
       t.topic, t.partition,
       -- Where rows carry positions, a batch that Spark ran again may end before what is stored.
       CASE WHEN t.topic IS NULL THEN s.value ELSE to_jsonb(greatest(
           t.next_offset, (b.positions -> s.key -> t.topic ->> t.partition::text)::bigint, p.next_offset)) END AS end_offset,
       w.updated_at AS committed_at
FROM pgonce.writers AS w
-- The listener fills in the batch's record even where the next commit keeps it from the writer's row.
LEFT JOIN pgonce.batches AS b
    ON (b.writer_id, b.generation, b.batch_id) = (w.writer_id, w.generation, w.last_batch_id)
CROSS JOIN LATERAL jsonb_each(coalesce(w.end_offsets, b.end_offsets)) AS s
LEFT JOIN LATERAL pgonce.kafka_offsets(jsonb_build_object(s.key, s.value)) AS t ON true
LEFT JOIN pgonce.positions AS p ON (p.writer_id, p.topic, p.partition) = (w.writer_id, t.topic, t.partition)
WHERE w.replaced_by IS NULL AND w.retired_at IS NULL;
COMMENT ON VIEW pgonce.current_offsets IS 'Where every writer stands: one row for each topic and partition of Kafka, or for each other source.';
COMMENT ON COLUMN pgonce.current_offsets.query_id IS 'Spark''s query id.';
COMMENT ON COLUMN pgonce.current_offsets.query_name IS 'Its name, for people.';
COMMENT ON COLUMN pgonce.current_offsets.sink_name IS 'The sink''s name.';
COMMENT ON COLUMN pgonce.current_offsets.batch_id IS 'The newest published batch.';
COMMENT ON COLUMN pgonce.current_offsets.source IS 'The source''s position in the query, or its name.';
COMMENT ON COLUMN pgonce.current_offsets.topic IS 'Kafka''s topic; null for other sources.';
COMMENT ON COLUMN pgonce.current_offsets.partition IS 'Kafka''s partition; null for other sources.';
COMMENT ON COLUMN pgonce.current_offsets.end_offset IS 'The next offset to read (Kafka), or the source''s own offset.';
COMMENT ON COLUMN pgonce.current_offsets.committed_at IS 'When that batch was published.';

-- What this session has measured counts too: pgonce.measured_lag may be set to a JSON list of rows of that table.
CREATE VIEW pgonce.queries AS
WITH measured AS (
    SELECT DISTINCT ON (m.query_id, m.sink_name) m.*
    FROM (
        -- What a host with a wrong clock has dated later than now would count until then.
        SELECT query_id, sink_name, lag, lag_seconds, retention_used_percent, measured_at FROM pgonce.measured_lag
        WHERE measured_at < statement_timestamp() + interval '1 minute'
        UNION ALL
        SELECT s.*
        FROM jsonb_to_recordset(coalesce(nullif(current_setting('pgonce.measured_lag', true), ''), '[]')::jsonb) AS s (
            query_id text, sink_name text, lag bigint, lag_seconds double precision, retention_used_percent double precision,
            measured_at timestamptz)
    ) AS m
    ORDER BY m.query_id, m.sink_name, m.measured_at DESC
), sessions AS MATERIALIZED (
    SELECT substr(a.application_name, 8) AS run_id, min(a.xact_start) AS began_at,
           max(CASE
               WHEN a.wait_event_type = 'Lock' THEN (
                   SELECT string_agg(format('pid %s (%s, user %s)', o.pid, coalesce(nullif(o.application_name, ''), 'no application name'), o.usename), ', ')
                   FROM pg_stat_activity AS o WHERE o.pid = ANY (pg_blocking_pids(a.pid)))
               WHEN a.wait_event = 'SyncRep' THEN 'synchronous standbys'
           END) AS waits_for
    FROM pg_stat_activity AS a
    WHERE a.application_name LIKE 'pgonce %' AND a.datname = current_database()
    GROUP BY 1
), known AS (
    SELECT w.writer_id, w.query_id, w.query_name, w.sink_name, w.run_id, w.generation, w.last_batch_id, w.end_offsets,
           w.created_at, w.updated_at, w.replaced_by, w.retired_at
    FROM pgonce.writers AS w
    UNION ALL
    -- A query that has published nothing is not in pgonce.writers: it has failed, or a listener has heard it start. (One that has
    -- finished a batch writes elsewhere.) It counts for a day, or until a query of its name has published since, which has taken
    -- its place. Its sink may have become known only at a later failure.
    SELECT NULL, n.query_id, max(n.query_name), n.sink_name, NULL, 0, NULL, NULL, min(n.first_at), NULL, NULL, NULL
    FROM (
        SELECT f.query_id, f.query_name, f.sink_name, f.first_at, f.last_at FROM pgonce.failures AS f
        UNION ALL
        SELECT h.query_id, h.query_name, NULL, h.started_at, h.heard_at FROM pgonce.heartbeats AS h
        WHERE NOT EXISTS (SELECT FROM pgonce.writers AS w WHERE w.query_id = h.query_id)
            AND NOT EXISTS (SELECT FROM pgonce.progress AS p WHERE p.query_id = h.query_id)
    ) AS n
    WHERE n.last_at > statement_timestamp() - interval '1 day'
        AND NOT EXISTS (
            SELECT FROM pgonce.writers AS w
            WHERE w.query_id = n.query_id OR (w.query_name = n.query_name AND w.updated_at > n.last_at))
        AND (n.sink_name IS NOT NULL
            OR NOT EXISTS (SELECT FROM pgonce.failures AS o WHERE o.query_id = n.query_id AND o.sink_name IS NOT NULL))
    GROUP BY n.query_id, n.sink_name
), facts AS (
    SELECT w.*, b.rows AS last_rows, b.transport, b.counts, h.run_id AS heard_run_id, h.heard_at, h.idle_since, h.ended_at, h.ended_by,
           h.ended_by IN ('SIGTERM', 'EXIT') AS is_driver_gone,
           -- A failure that could not be written down while Postgres was unavailable: the listener has heard what ended the query.
           coalesce(f.code, e.code) AS code, f.message, f.remedy, f.batch_id AS failed_batch_id,
           coalesce(f.failures, e.failures) AS failures, coalesce(f.failing_since, e.failing_since) AS failing_since, s.waits_for, s.began_at AS session_began_at,
           r.rows_per_second, r.usual_interval, l.lag, l.lag_seconds, l.retention_used_percent, l.last_lag, l.measured_at AS lag_measured_at,
           coalesce(h.ended_at IS NULL AND h.heard_at > statement_timestamp() - interval '1 minute', false) AS is_heard,
           s.run_id IS NOT NULL AS has_session,
           coalesce(w.updated_at > statement_timestamp() - greatest(interval '1 minute', r.patience), false) AS is_recent,
           g.lagging_since,
           coalesce(l.lag_seconds > 60 OR (l.lag > 0 AND l.lag_seconds IS NULL AND g.grows), false) AS is_behind
    FROM known AS w
    LEFT JOIN pgonce.batches AS b
        ON (b.writer_id, b.generation, b.batch_id) = (w.writer_id, w.generation, w.last_batch_id)
    LEFT JOIN LATERAL (
        SELECT h.* FROM pgonce.heartbeats AS h WHERE h.query_id = w.query_id ORDER BY h.started_at DESC LIMIT 1
    ) AS h ON true
    LEFT JOIN LATERAL (
        SELECT s.* FROM sessions AS s WHERE s.run_id IN (w.run_id, h.run_id) ORDER BY s.waits_for NULLS LAST LIMIT 1
    ) AS s ON true
    -- A failure counts until a batch is published, a replay is skipped, or a later run is heard. What an old run meets
    -- after another has taken its place (FENCED, or a run that has published before) says nothing of the other.
    LEFT JOIN LATERAL (
        SELECT f.code, f.message, f.remedy, f.batch_id, sum(f.attempts) OVER of_code AS failures, min(f.first_at) OVER of_code AS failing_since
        FROM pgonce.failures AS f
        WHERE f.query_id = w.query_id AND (f.sink_name = w.sink_name OR f.sink_name IS NULL OR w.sink_name IS NULL)
            AND f.last_at > coalesce(w.updated_at, '-infinity') AND f.code <> 'FENCED'
            AND (f.run_id IS NULL OR f.run_id = w.run_id
                OR NOT EXISTS (SELECT FROM pgonce.runs AS o WHERE o.writer_id = w.writer_id AND o.run_id = f.run_id))
            AND NOT EXISTS (SELECT FROM pgonce.replays AS o WHERE o.writer_id = w.writer_id AND o.skipped_at > f.last_at)
            AND (h.run_id IS NULL OR h.ended_at IS NOT NULL OR h.started_at <= f.last_at)
        WINDOW of_code AS (PARTITION BY f.code)
        ORDER BY f.last_at DESC, f.failure_id DESC
        LIMIT 1
    ) AS f ON true
    LEFT JOIN LATERAL (
        SELECT h.ended_by AS code, 1::bigint AS failures, h.ended_at AS failing_since
        WHERE h.ended_by NOT IN ('FENCED', 'SIGTERM', 'EXIT') AND h.ended_at >= coalesce(w.updated_at, '-infinity')
            AND (h.run_id = w.run_id
                OR NOT EXISTS (SELECT FROM pgonce.runs AS o WHERE o.writer_id = w.writer_id AND o.run_id = h.run_id))
            AND NOT EXISTS (SELECT FROM pgonce.replays AS o WHERE o.writer_id = w.writer_id AND o.skipped_at > h.ended_at)
            AND NOT EXISTS (
                SELECT FROM pgonce.failures AS o
                WHERE o.query_id = w.query_id AND o.last_at > coalesce(w.updated_at, '-infinity')
                    AND (o.run_id = h.run_id OR (o.run_id IS NULL AND o.last_at > h.started_at)))
    ) AS e ON true
    -- Over the last ten minutes, or over the newest 60 batches if they took less.
    LEFT JOIN LATERAL (
        SELECT coalesce(sum(n.rows) FILTER (WHERE n.committed_at > n.began), 0)
                   / nullif(extract(epoch FROM statement_timestamp() - max(n.began)), 0) AS rows_per_second,
               (max(n.committed_at) - min(n.committed_at)) / nullif(count(*) - 1, 0) AS usual_interval,
               -- Null for a single batch: least() would ignore a null.
               CASE WHEN count(*) > 1 THEN least(3 * (max(n.committed_at) - min(n.committed_at)) / (count(*) - 1), interval '1 hour') END AS patience
        FROM (
            SELECT n.*, greatest(statement_timestamp() - interval '10 minutes',
                                 CASE WHEN count(*) OVER () < 60 THEN w.created_at - interval '1 second' ELSE min(n.committed_at) OVER () END) AS began
            FROM (
                SELECT n.rows, n.committed_at FROM pgonce.batches AS n
                WHERE n.writer_id = w.writer_id AND n.generation = w.generation ORDER BY n.batch_id DESC LIMIT 60
            ) AS n
        ) AS n
    ) AS r ON true
    LEFT JOIN LATERAL (
        SELECT p.progress_at, p.latest_offsets FROM pgonce.progress AS p
        WHERE p.query_id = w.query_id ORDER BY p.progress_at DESC, p.batch_id DESC LIMIT 1
    ) AS p ON true
    -- Unknown as soon as one side of one partition is unknown.
    LEFT JOIN LATERAL (
        SELECT CASE WHEN count(*) = count(*) FILTER (WHERE d.lag >= 0) THEN sum(d.lag) END AS lag
        FROM (
            SELECT n.next_offset - greatest(e.next_offset, i.next_offset) AS lag
            FROM pgonce.kafka_offsets(p.latest_offsets) AS n
            FULL JOIN pgonce.kafka_offsets(coalesce(w.end_offsets, b.end_offsets)) AS e USING (topic, partition)
            LEFT JOIN pgonce.kafka_offsets(b.positions) AS i USING (topic, partition)
        ) AS d
    ) AS d ON true
    LEFT JOIN measured AS m ON m.query_id = w.query_id AND m.sink_name = w.sink_name
    -- What the brokers told before what a listener heard; what was measured more than ten minutes ago is the last resort.
    LEFT JOIN LATERAL (
        SELECT CASE WHEN l.is_new THEN l.lag END AS lag, CASE WHEN l.is_new THEN l.lag_seconds END AS lag_seconds,
               CASE WHEN l.is_new THEN l.retention_used_percent END AS retention_used_percent, l.lag AS last_lag, l.measured_at
        FROM (
            SELECT l.*, l.measured_at > statement_timestamp() - interval '10 minutes' AS is_new
            FROM (VALUES (m.lag, m.lag_seconds, m.retention_used_percent, m.measured_at, 1), (d.lag::bigint, NULL, NULL, p.progress_at, 2))
                AS l (lag, lag_seconds, retention_used_percent, measured_at, place)
            WHERE l.lag IS NOT NULL
        ) AS l
        ORDER BY l.is_new DESC, CASE WHEN l.is_new THEN l.place END, l.measured_at DESC LIMIT 1
    ) AS l ON true
    LEFT JOIN LATERAL (
        SELECT count(*) = 10 AND min(g.lag) > 0 AND (array_agg(g.lag ORDER BY g.progress_at DESC))[1] >= (array_agg(g.lag ORDER BY g.progress_at))[1] AS grows,
               min(g.progress_at) AS lagging_since
        FROM (
            SELECT g.lag, g.progress_at FROM pgonce.progress AS g
            WHERE g.query_id = w.query_id AND g.progress_at > statement_timestamp() - interval '1 hour'
            ORDER BY g.progress_at DESC, g.batch_id DESC LIMIT 10
        ) AS g
    ) AS g ON true
), judged AS (
    SELECT f.*, f.is_heard OR f.has_session OR f.is_recent AS is_alive,
           CASE
               WHEN f.replaced_by IS NOT NULL THEN 'replaced'
               WHEN f.retired_at IS NOT NULL THEN 'retired'
               WHEN f.code IS NOT NULL THEN 'refused'
               WHEN f.waits_for IS NOT NULL THEN 'waiting'
               WHEN f.retention_used_percent >= 80 THEN 'expiring'
               WHEN f.ended_at >= coalesce(f.updated_at, '-infinity') THEN CASE WHEN f.is_driver_gone THEN 'gone' ELSE 'stopped' END
               WHEN f.is_behind AND (f.is_heard OR f.has_session OR f.is_recent) THEN 'lagging'
               WHEN f.is_heard AND f.idle_since IS NOT NULL THEN 'idle'
               WHEN f.is_heard AND f.last_batch_id IS NULL THEN 'starting'
               WHEN f.is_heard OR f.has_session OR f.is_recent THEN 'running'
               -- A query with many batches a minute has published after its last beat. One that goes on for longer than that has
               -- lost only its listener.
               WHEN f.ended_at IS NULL AND f.heard_at > coalesce(f.updated_at, '-infinity') - interval '1 minute' THEN 'gone'
               WHEN f.lag > 0 THEN 'stuck'
               ELSE 'quiet'
           END AS state
    FROM facts AS f
)
SELECT j.query_id, j.query_name, j.sink_name, j.state,
       CASE j.state
           WHEN 'replaced' THEN 'query ' || j.replaced_by || ' has taken its place'
           WHEN 'retired' THEN 'a person has said that it publishes no more'
           WHEN 'refused' THEN j.code || coalesce(' at batch ' || j.failed_batch_id, '')
           WHEN 'waiting' THEN 'its session waits for ' || j.waits_for
           WHEN 'stopped' THEN 'its listener heard it end'
           WHEN 'expiring' THEN 'its oldest unread record has used ' || round(j.retention_used_percent) || ' percent of the topic''s retention'
           WHEN 'lagging' THEN CASE WHEN j.lag_seconds IS NOT NULL THEN 'its oldest unread record is ' || round(j.lag_seconds) || ' s old'
                                    ELSE 'its last ten batches have not reduced the lag' END
           WHEN 'idle' THEN 'its listener hears it, and Spark finds nothing to read'
           WHEN 'running' THEN CASE WHEN j.is_heard THEN 'its listener hears it' WHEN j.has_session THEN 'a session of it is in a transaction'
                                    ELSE 'it has published lately' END
           WHEN 'starting' THEN 'its listener hears it, and it has published nothing yet'
           WHEN 'gone' THEN CASE j.ended_by WHEN 'SIGTERM' THEN 'a SIGTERM ended its driver' WHEN 'EXIT' THEN 'its driver ended, and had not stopped it'
                                 ELSE 'its listener fell silent, and did not hear it end' END
           WHEN 'stuck' THEN 'records wait for it, and nothing shows that it runs'
           ELSE 'nothing shows whether it is idle or gone: no listener hears it, and it has no session'
       END AS because,
       CASE j.state
           WHEN 'retired' THEN j.retired_at
           WHEN 'refused' THEN j.failing_since
           WHEN 'waiting' THEN j.session_began_at
           WHEN 'stopped' THEN j.ended_at
           WHEN 'lagging' THEN coalesce(statement_timestamp() - make_interval(secs => j.lag_seconds), j.lagging_since)
           WHEN 'idle' THEN j.idle_since
           WHEN 'starting' THEN j.created_at
           WHEN 'gone' THEN coalesce(j.ended_at, j.heard_at)
           WHEN 'stuck' THEN j.updated_at
           WHEN 'quiet' THEN j.updated_at
       END AS state_since,
       j.last_batch_id AS batch_id, j.updated_at AS published_at, j.last_rows AS rows, j.transport, j.rows_per_second::double precision,
       extract(epoch FROM j.usual_interval)::double precision AS usual_interval_seconds,
       j.lag::bigint AS lag, j.lag_seconds, j.retention_used_percent, j.last_lag::bigint AS last_lag, j.lag_measured_at,
       j.code AS failure_code, j.message AS failure_message, j.failed_batch_id, j.failures::bigint AS failures, j.failing_since,
       j.waits_for, j.run_id, j.created_at, j.heard_at,
       (SELECT count(*) FROM (SELECT FROM pgonce.dead_letters AS d WHERE d.query_id = j.query_id AND d.sink_name = j.sink_name LIMIT 10000) AS d) AS dead_letters,
       (SELECT count(*) FROM pgonce.replays AS y WHERE y.writer_id = j.writer_id) AS replays,
       -- A deployment ends drivers too, and starts others in their place.
       CASE WHEN j.state = 'gone' AND coalesce(j.ended_at, j.heard_at) > statement_timestamp() - interval '10 minutes' THEN 'warning'
            WHEN j.state IN ('refused', 'expiring', 'gone', 'stuck') THEN 'critical'
            WHEN j.state = 'lagging' OR (j.state = 'waiting' AND j.session_began_at < statement_timestamp() - interval '1 minute') THEN 'warning'
       END AS severity,
       CASE j.state
           WHEN 'refused' THEN CASE
               -- A role has written it: it must not look like a command of ours.
               WHEN j.remedy IS NOT NULL THEN 'Help: ' || j.remedy
               WHEN j.code ~ '^[A-Z0-9_]+$' THEN 'pgonce explain ' || j.code
               WHEN j.code LIKE '%FileNotFoundException'
               THEN 'If its checkpoint was deleted: page recovering of the documentation, A lost checkpoint. If files of its source were: restore them.'
               ELSE 'pgonce errors --query ' || pgonce.in_command(j.query_id) END
           WHEN 'waiting' THEN CASE WHEN j.waits_for = 'synchronous standbys'
               THEN 'Bring a standby back, and do not end the session: page recovering of the documentation.'
               ELSE 'End that session, or wait for it.' END
           WHEN 'expiring' THEN CASE WHEN j.ended_at >= coalesce(j.updated_at, '-infinity')
               THEN 'It was stopped: start it again, or set retention.ms of the topic higher at once.'
               ELSE 'Make the query faster, or set retention.ms of the topic higher at once.' END
           WHEN 'lagging' THEN 'Make it faster: page performance of the documentation.'
           WHEN 'gone' THEN 'Start the query again. First see what the start will do: pgonce doctor ' || pgonce.in_command(j.query_id)
           WHEN 'stuck' THEN 'Start the query again. First see what the start will do: pgonce doctor ' || pgonce.in_command(j.query_id)
       END AS help
FROM judged AS j;
COMMENT ON VIEW pgonce.queries IS 'What every query is doing: one row for each query and sink.';
COMMENT ON COLUMN pgonce.queries.query_id IS 'Spark''s query id.';
COMMENT ON COLUMN pgonce.queries.query_name IS 'Its name, for people.';
COMMENT ON COLUMN pgonce.queries.sink_name IS 'The sink; null if it is not known yet.';
COMMENT ON COLUMN pgonce.queries.state IS 'starting, running, idle, lagging, expiring, waiting, refused, stopped, gone, stuck, quiet, retired or replaced.';
COMMENT ON COLUMN pgonce.queries.because IS 'What the state was concluded from.';
COMMENT ON COLUMN pgonce.queries.state_since IS 'Since when, where that is known.';
COMMENT ON COLUMN pgonce.queries.batch_id IS 'The newest published batch; null if there is none.';
COMMENT ON COLUMN pgonce.queries.published_at IS 'When it was published.';
COMMENT ON COLUMN pgonce.queries.rows IS 'How many rows it had; null if its record is not kept.';
COMMENT ON COLUMN pgonce.queries.transport IS 'How its rows came.';
COMMENT ON COLUMN pgonce.queries.rows_per_second IS 'Rows a second, over ten minutes or the newest 60 batches.';
COMMENT ON COLUMN pgonce.queries.usual_interval_seconds IS 'The mean time between two of its newest 60 batches.';
COMMENT ON COLUMN pgonce.queries.lag IS 'Kafka records that are not published yet; null where unknown.';
COMMENT ON COLUMN pgonce.queries.lag_seconds IS 'The age of the oldest of them; only a broker tells it.';
COMMENT ON COLUMN pgonce.queries.retention_used_percent IS 'How much of its topic''s retention that record has used.';
COMMENT ON COLUMN pgonce.queries.last_lag IS 'The lag that was known last, however old that is.';
COMMENT ON COLUMN pgonce.queries.lag_measured_at IS 'When it was measured.';
COMMENT ON COLUMN pgonce.queries.failure_code IS 'The code of what went wrong since the last published batch.';
COMMENT ON COLUMN pgonce.queries.failure_message IS 'What happened.';
COMMENT ON COLUMN pgonce.queries.failed_batch_id IS 'The batch that failed, if there was one.';
COMMENT ON COLUMN pgonce.queries.failures IS 'How often that went wrong since the last published batch.';
COMMENT ON COLUMN pgonce.queries.failing_since IS 'When that went wrong first.';
COMMENT ON COLUMN pgonce.queries.waits_for IS 'What the session of its commit waits for.';
COMMENT ON COLUMN pgonce.queries.run_id IS 'The run that published the last batch.';
COMMENT ON COLUMN pgonce.queries.created_at IS 'When its first batch was published, or it was first seen.';
COMMENT ON COLUMN pgonce.queries.heard_at IS 'When a listener last heard the query.';
COMMENT ON COLUMN pgonce.queries.dead_letters IS 'Rows in pgonce.dead_letters; at most 10000 are counted.';
COMMENT ON COLUMN pgonce.queries.replays IS 'Replays that were skipped and are still recorded.';
COMMENT ON COLUMN pgonce.queries.severity IS 'critical or warning if the state needs attention, else null.';
COMMENT ON COLUMN pgonce.queries.help IS 'What to do, or the command that says more.';

-- Of the findings that are no states, pgonce.queries need not be asked: WHERE NOT is_state leaves its part out.
CREATE VIEW pgonce.health AS
SELECT q.severity, q.state AS finding, q.query_id, q.query_name, q.sink_name, q.because AS what, q.state_since AS since, q.help, true AS is_state
FROM pgonce.queries AS q
WHERE q.severity IS NOT NULL
UNION ALL
SELECT 'warning', 'dead letters', d.query_id, max(w.query_name), d.sink_name,
       count(*) || ' rows were put aside within a day, the newest for ' || (array_agg(d.code ORDER BY d.made_at DESC))[1], min(d.made_at),
       'pgonce dead-letters ' || pgonce.in_command(d.query_id), false
FROM pgonce.dead_letters AS d
LEFT JOIN pgonce.writers AS w ON w.query_id = d.query_id AND w.sink_name = d.sink_name
WHERE d.made_at > statement_timestamp() - interval '1 day'
GROUP BY d.query_id, d.sink_name
UNION ALL
SELECT 'warning', 'restarts', w.query_id, w.query_name, w.sink_name,
       count(DISTINCT r.run_id) || ' runs have begun within a day by skipping a batch that was published', min(r.skipped_at),
       'pgonce errors --query ' || pgonce.in_command(w.query_id), false
FROM pgonce.replays AS r JOIN pgonce.writers AS w USING (writer_id)
WHERE r.skipped_at > statement_timestamp() - interval '1 day' AND w.retired_at IS NULL AND w.replaced_by IS NULL
GROUP BY w.writer_id
HAVING count(DISTINCT r.run_id) > 5
UNION ALL
-- A restart runs at most the last two batches again.
SELECT 'warning', 'replays', w.query_id, w.query_name, w.sink_name,
       'one run has skipped ' || count(*) || ' batches that were published, within a day', min(r.skipped_at),
       'pgonce history ' || pgonce.in_command(w.query_id), false
FROM pgonce.replays AS r JOIN pgonce.writers AS w USING (writer_id)
WHERE r.skipped_at > statement_timestamp() - interval '1 day' AND w.retired_at IS NULL AND w.replaced_by IS NULL
GROUP BY w.writer_id, r.run_id
HAVING count(*) > 2
UNION ALL
SELECT 'critical', 'disagreement', p.query_id, max(p.query_name), NULL,
       'batch ' || max(p.batch_id) || ': ' || (array_agg(p.disagreement ORDER BY p.received_at DESC))[1], min(p.received_at),
       'See page recovering of the documentation.', false
FROM pgonce.progress AS p
WHERE p.disagreement IS NOT NULL AND p.received_at > statement_timestamp() - interval '1 day'
GROUP BY p.query_id
UNION ALL
SELECT 'warning', 'staging tables', s.query_id, NULL, s.sink_name, count(*) || ' staging tables are older than a day', min(s.created_at),
       'See page running of the documentation.', false
FROM pgonce.staged_tables AS s
WHERE s.created_at < statement_timestamp() - interval '1 day'
GROUP BY s.query_id, s.sink_name;
COMMENT ON VIEW pgonce.health IS 'What needs attention: one row for each finding. Empty if all is well.';
COMMENT ON COLUMN pgonce.health.severity IS 'critical or warning.';
COMMENT ON COLUMN pgonce.health.finding IS 'The state of a query, or: dead letters, restarts, replays, disagreement, staging tables.';
COMMENT ON COLUMN pgonce.health.query_id IS 'The query.';
COMMENT ON COLUMN pgonce.health.query_name IS 'Its name.';
COMMENT ON COLUMN pgonce.health.sink_name IS 'The sink; null if it is about all of them.';
COMMENT ON COLUMN pgonce.health.what IS 'What was found.';
COMMENT ON COLUMN pgonce.health.since IS 'Since when, where that is known.';
COMMENT ON COLUMN pgonce.health.help IS 'What to do, or the command that says more.';
COMMENT ON COLUMN pgonce.health.is_state IS 'Whether the finding is a state of the query.';

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
