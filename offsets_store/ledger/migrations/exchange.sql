-- A table that was filled beside another one takes its place: the ledger follows both of them to their new names.

-- As pgonce writes it: quote_ident would put key words in quotes, and which words these are depends on Postgres.
CREATE FUNCTION pgonce.qualified_name(relation regclass) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(CASE WHEN p.part ~ '^[a-z_][a-z0-9_]*$' THEN p.part ELSE '"' || replace(p.part, '"', '""') || '"' END, '.' ORDER BY p.place)
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (VALUES (1, n.nspname::text COLLATE "C"), (2, c.relname::text COLLATE "C")) AS p (place, part)
    WHERE c.oid = relation
$$;
COMMENT ON FUNCTION pgonce.qualified_name(regclass) IS 'The name of a table as the ledger writes it.';

CREATE FUNCTION pgonce.follow_exchange(rebuilt regclass, replaced regclass, reason text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $follow_exchange$
DECLARE
    is_now    CONSTANT text := pgonce.qualified_name(rebuilt);
    put_aside CONSTANT text := pgonce.qualified_name(replaced);
    was       text;
    of_new    bigint[];
    of_old    bigint[];
    is_free   boolean;
    behind    text;
    what      text;
    help      text;
    moved     record;
BEGIN
    SELECT t.key INTO was FROM pgonce.writers AS w, jsonb_each_text(w.targets) AS t
    WHERE t.value::oid = rebuilt AND w.replaced_by IS NULL AND w.retired_at IS NULL ORDER BY w.updated_at DESC LIMIT 1;
    -- A new query holds these locks in its first batch, in which its row is still invisible.
    SELECT bool_and(pg_try_advisory_xact_lock(hashtextextended(n.name, 0))) INTO is_free
    FROM unnest(ARRAY[is_now, put_aside, coalesce(was, is_now)]) AS n (name);
    SELECT coalesce(array_agg(w.writer_id) FILTER (WHERE f.is_new), '{}'), coalesce(array_agg(w.writer_id) FILTER (WHERE NOT f.is_new), '{}')
    INTO of_new, of_old
    FROM pgonce.writers AS w CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(t.value::oid = rebuilt), w.sink_name = was) AS is_new, coalesce(bool_or(t.value::oid = replaced OR t.key = is_now), false) AS is_old
        FROM jsonb_each_text(w.targets) AS t) AS f
    WHERE f.is_new OR f.is_old OR w.sink_name = is_now;
    -- Not waited for: a session that holds one of these may wait for the tables, which this transaction has locked.
    BEGIN
        PERFORM FROM pgonce.writers AS w WHERE w.writer_id = ANY (of_new || of_old) ORDER BY w.writer_id FOR UPDATE NOWAIT;
        LOCK TABLE pgonce.batch_jobs IN SHARE ROW EXCLUSIVE MODE NOWAIT;
        PERFORM FROM pgonce.dead_letters AS l WHERE l.target IN (was, is_now) ORDER BY l.dead_letter_id FOR UPDATE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        is_free := false;
    END;
    SELECT string_agg(format('%s-%s is stored up to %s, but in the rebuilt table up to %s', k.topic, k.partition, k.of_old, k.of_new), '; ') INTO behind
    FROM (
        SELECT r.topic, r.partition, max(r.reached) FILTER (WHERE NOT w.is_new) AS of_old, coalesce(min(r.reached) FILTER (WHERE w.is_new), 0) AS of_new
        FROM (SELECT w.*, w.writer_id = ANY (of_new) AS is_new FROM pgonce.writers AS w WHERE w.writer_id = ANY (of_new || of_old)) AS w
        LEFT JOIN pgonce.batches AS b ON (b.writer_id, b.generation, b.batch_id) = (w.writer_id, w.generation, w.last_batch_id)
        -- By source: of several that read one partition, the old query counts by the furthest, and the new one by the other.
        CROSS JOIN LATERAL (
            SELECT k.topic, k.partition, max(k.next_offset) AS reached
            FROM unnest(ARRAY[coalesce(w.end_offsets, b.end_offsets), b.positions, pgonce.real_time_positions(w.writer_id)]) AS known (offsets),
                jsonb_each(CASE WHEN jsonb_typeof(known.offsets) = 'object' THEN known.offsets END) AS s, pgonce.kafka_offsets(jsonb_build_object(s.key, s.value)) AS k
            GROUP BY s.key, 1, 2) AS r
        WHERE w.replaced_by IS NULL AND (w.retired_at IS NULL OR NOT w.is_new)
            AND NOT EXISTS (SELECT FROM pgonce.interventions AS i WHERE i.writer_id = w.writer_id AND i.kind = 'forget')
        GROUP BY 1, 2) AS k
    WHERE k.of_old > k.of_new;
    -- In this order: an oid of a ledger that was restored says nothing, and without a name nothing can be compared.
    SELECT c.what, c.help INTO what, help FROM (VALUES
        (1, current_setting('transaction_isolation') NOT LIKE 'read %committed', 'This transaction does not see what was committed meanwhile.', 'Use BEGIN ISOLATION LEVEL READ COMMITTED.'),
        (2, NOT EXISTS (SELECT FROM pgonce.home AS h WHERE h.xmin::text::bigint = h.written_in & 4294967295), 'The ledger was restored from a dump, and has oids of another database.', 'Run pgonce init, and try again.'),
        (3, coalesce(reason, '') !~ '[^[:space:]]', 'No reason is given.', 'Give one; the ledger keeps it.'),
        (4, was IS NULL, format('No query of pgonce that may go on fills %s.', is_now),
            format('Check the names. With ALTER TABLE alone, the query that filled %s goes on into %s: if its last rows are not there, forget it first (pgonce forget).', put_aside, is_now)),
        (5, was = is_now, format('%s was called so when its query wrote its last batch.', is_now), 'Rename both tables first, in this transaction. The first argument is the rebuilt table, by the name that it has now.'),
        (6, to_regclass(was) IS NOT NULL, format('The query that fills %s may still write to what is called %s now.', is_now, was), 'Give the table that is put aside a name that no query uses.'),
        (7, EXISTS (SELECT FROM pgonce.writers AS w, jsonb_each_text(w.targets) AS t WHERE w.writer_id = ANY (of_old) AND w.replaced_by IS NULL AND w.retired_at IS NULL
            AND (t.value::oid = replaced) <> (t.key = is_now) AND EXISTS (SELECT FROM pg_class AS c WHERE c.oid = t.value::oid)) OR rebuilt = replaced,
            format('The second argument is not the table that the ledger knows as %s.', is_now), 'Give that table, by the name that it has now. If it was called otherwise at its query''s last batch, let that query write one first.'),
        (8, EXISTS (SELECT FROM pg_class AS c WHERE c.oid IN (rebuilt, replaced) AND (c.relkind <> 'r' OR c.relispartition)), 'One of them is partitioned, a partition, or not a table.', 'Exchange partitions with DETACH and ATTACH. Empty a partitioned table, forget its query (pgonce forget), and load it again.'),
        (9, NOT is_free, 'A batch, a batch job or a replay of dead letters writes to one of them.', 'Stop the queries of both tables, and try again.'),
        (10, EXISTS (SELECT FROM pgonce.heartbeats AS h JOIN pgonce.writers AS w USING (query_id) WHERE w.writer_id = ANY (of_new || of_old)
            AND w.replaced_by IS NULL AND w.retired_at IS NULL AND h.ended_at IS NULL AND h.heard_at > statement_timestamp() - interval '1 minute'),
            'A query of one of them runs.', 'Stop the queries of both tables. One that was killed counts as running for a minute.'),
        (11, EXISTS (SELECT FROM pgonce.writers AS n JOIN pgonce.writers AS o USING (query_id) WHERE n.writer_id = ANY (of_new) AND o.writer_id = ANY (of_old)),
            'One query has written to both of them.', 'Empty the table, forget its query (pgonce forget), and load it again.'),
        -- One that was retired too: it would count as forgotten, and its rows in the other tables as gone.
        (12, EXISTS (SELECT FROM pgonce.writers AS w WHERE w.writer_id = ANY (of_new || of_old) AND w.replaced_by IS NULL
            AND (SELECT count(*) FROM jsonb_object_keys(w.targets)) > 1
            AND NOT EXISTS (SELECT FROM pgonce.interventions AS i WHERE i.writer_id = w.writer_id AND i.kind = 'forget')),
            'A query of one of them writes, or has written, to several tables in one transaction.', 'Empty the table, forget its query (pgonce forget), and load it again. If that query was retired, and its rows may go, forget it and try again.'),
        (13, EXISTS (SELECT FROM pgonce.batch_jobs AS j, jsonb_each_text(j.targets) AS t WHERE t.value::oid IN (rebuilt, replaced) AND t.key <> j.sink_name),
            'Batch jobs with a sinkName of their own have written to one of them, and nothing says which table they mean later on.', 'Give their keys to the table (docs/batch-jobs.md, When tables are exchanged).'),
        (14, EXISTS (SELECT FROM pgonce.batch_jobs AS j JOIN pgonce.batch_jobs AS o USING (batch_key)
            WHERE j.sink_name = is_now AND (j.targets ->> is_now)::oid = replaced AND o.sink_name = put_aside),
            format('Batch jobs have written to an earlier table %s, with keys of %s.', put_aside, is_now), 'Give the table that is put aside another name.'),
        (15, behind IS NOT NULL, format('%s has not caught up: %s.', is_now, behind), 'Let its query go on first. If it has all rows that are needed, forget the other query (pgonce forget), and try again.')
    ) AS c (place, holds, what, help) WHERE c.holds ORDER BY c.place LIMIT 1;
    IF what IS NOT NULL THEN
        RAISE EXCEPTION 'The tables are not exchanged, and nothing was changed. %', what USING ERRCODE = 'object_not_in_prerequisite_state', HINT = help;
    END IF;
    INSERT INTO pgonce.interventions (writer_id, kind, batch_id, reason, details)
    SELECT w.writer_id, CASE WHEN w.writer_id = ANY (of_new) THEN 'swap' ELSE 'forget' END, w.last_batch_id, btrim(reason), jsonb_build_object('rebuilt', is_now, 'was', was, 'put_aside', put_aside)
    FROM pgonce.writers AS w WHERE w.writer_id = ANY (of_new || of_old) AND w.replaced_by IS NULL
        AND NOT EXISTS (SELECT FROM pgonce.interventions AS i WHERE i.writer_id = w.writer_id AND i.kind = 'forget');
    -- The old query keeps the name of its sink, under which it is refused.
    UPDATE pgonce.writers AS w SET retired_at = clock_timestamp() WHERE w.writer_id = ANY (of_old) AND w.replaced_by IS NULL AND w.retired_at IS NULL;
    FOR moved IN SELECT * FROM (VALUES (1, replaced, is_now, put_aside, of_old), (2, rebuilt, was, is_now, of_new)) AS m (turn, relation, was, now, writers) ORDER BY m.turn LOOP
        UPDATE pgonce.writers AS w SET
            sink_name = CASE WHEN moved.relation = rebuilt AND w.sink_name = moved.was THEN moved.now ELSE w.sink_name END,
            targets = (SELECT jsonb_object_agg(CASE WHEN t.value = to_jsonb(moved.relation::oid::bigint) THEN moved.now ELSE t.key END, t.value) FROM jsonb_each(w.targets) AS t),
            written_as = CASE WHEN w.written_as -> 'tables' ? moved.was THEN jsonb_set(w.written_as, '{tables}', (w.written_as -> 'tables') - moved.was
                || jsonb_build_object(moved.now, (w.written_as -> 'tables' -> moved.was) || jsonb_build_object('table', moved.relation::text))) ELSE w.written_as END
        WHERE w.writer_id = ANY (moved.writers);
        UPDATE pgonce.dead_letters AS l SET
            sink_name = CASE WHEN moved.relation = rebuilt AND l.sink_name = moved.was THEN moved.now ELSE l.sink_name END,
            target = CASE WHEN l.target = moved.was THEN moved.now ELSE l.target END,
            destination = CASE WHEN l.target = moved.was AND l.destination ? 'table' THEN jsonb_set(l.destination, '{table}', to_jsonb(moved.relation::text)) ELSE l.destination END
        WHERE moved.was IN (l.sink_name, l.target) AND l.query_id IN (SELECT w.query_id FROM pgonce.writers AS w WHERE w.writer_id = ANY (moved.writers));
        -- In one statement, because the skips refer to the jobs.
        WITH jobs AS (
            UPDATE pgonce.batch_jobs AS j SET sink_name = moved.now, targets = j.targets - moved.was || jsonb_build_object(moved.now, j.targets -> moved.was)
            WHERE j.sink_name = moved.was AND (j.targets ->> moved.was)::oid = moved.relation RETURNING j.batch_key
        )
        UPDATE pgonce.batch_job_skips AS s SET sink_name = moved.now FROM jobs WHERE s.sink_name = moved.was AND s.batch_key = jobs.batch_key;
        UPDATE pgonce.tombstone_sets AS s SET target_name = moved.now WHERE s.target = moved.relation;
    END LOOP;
    RETURN format('The query that fills it goes on with table=%s.', is_now);
END
$follow_exchange$;
REVOKE ALL ON FUNCTION pgonce.follow_exchange(regclass, regclass, text) FROM PUBLIC;
COMMENT ON FUNCTION pgonce.follow_exchange(regclass, regclass, text) IS 'After two ALTER TABLE ... RENAME, in the same transaction: the first table has the name that the second one had, and the ledger follows. The query that filled the second one may publish no more.';
