-- Audit a table that a stream fills, without any code of pgonce's: what was lost, doubled or altered, and whether the
-- ledger agrees with itself and with the rows. The functions are temporary: they are gone with the session, and look only.
--
--   psql "$URL" -f examples/audit.sql -c "SELECT * FROM pg_temp.audit_rows('sent', 'orders', '{id}')"
--
-- `sent` is a table of what the source held, with the columns that tell records apart (an id; or topic, partition and
-- offset), and any others of the target. Columns that only one of both has are not compared.

-- Where there is no ledger, the functions that read it are made as well.
SET check_function_bodies = off;

-- Rows of the target against the source. No rows in the answer: nothing is wrong.
--   keys       the columns that tell records apart; for a table by key, its keys
--   newest_by  for a table by key: the source's column that orders the changes of a key; only the last one counts
--   deletes    for a table by key: the source's boolean column that says which changes delete
CREATE FUNCTION pg_temp.audit_rows(
    source regclass, target regclass, keys text[], newest_by text DEFAULT NULL, deletes text DEFAULT NULL
) RETURNS TABLE (finding text, record jsonb, in_source bigint, in_target bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    compared text;
    identity text;
    compared_rows text;
    -- With their schemas, so that no name below is taken for a table.
    source_name text := (SELECT format('%I.%I', relnamespace::regnamespace, relname) FROM pg_class WHERE oid = source);
    target_name text := (SELECT format('%I.%I', relnamespace::regnamespace, relname) FROM pg_class WHERE oid = target);
BEGIN
    -- Both as jsonb, so that types of the same values may differ (an integer and a bigint).
    SELECT string_agg(format('%L, r.%I', name, name), ', ' ORDER BY name) INTO compared FROM (
        SELECT a.attname::text AS name FROM pg_attribute AS a JOIN pg_attribute AS b USING (attname)
        WHERE a.attrelid = source AND b.attrelid = target AND a.attnum > 0 AND b.attnum > 0
            AND NOT a.attisdropped AND NOT b.attisdropped
    ) AS common;
    SELECT string_agg(format('%L, r.%I', name, name), ', ' ORDER BY name) INTO identity FROM unnest(keys) AS name;
    compared_rows := source_name || ' AS r';
    IF newest_by IS NOT NULL THEN
        SELECT format('(SELECT *, rank() OVER (PARTITION BY %s ORDER BY %I DESC NULLS LAST) AS from_newest FROM %s) AS r'
            ' WHERE r.from_newest = 1', string_agg(quote_ident(name), ', '), newest_by, source_name)
        INTO compared_rows FROM unnest(keys) AS name;
        IF deletes IS NOT NULL THEN
            compared_rows := compared_rows || format(' AND r.%I IS NOT TRUE', deletes);
        END IF;
    END IF;
    RETURN QUERY EXECUTE format($query$
        WITH sent AS (
            SELECT jsonb_build_object(%1$s) AS id, jsonb_build_object(%2$s) AS whole, count(*) AS times
            FROM %4$s GROUP BY 1, 2
        ), stored AS (
            SELECT jsonb_build_object(%1$s) AS id, jsonb_build_object(%2$s) AS whole, count(*) AS times
            FROM %5$s AS r GROUP BY 1, 2
        ), ever AS (
            SELECT DISTINCT jsonb_build_object(%1$s) AS id, jsonb_build_object(%2$s) AS whole FROM %3$s AS r
        ), of_source AS (SELECT id, sum(times)::bigint AS times FROM sent GROUP BY id),
        of_target AS (SELECT id, sum(times)::bigint AS times FROM stored GROUP BY id)
        SELECT CASE
            WHEN coalesce(t.times, 0) < coalesce(s.times, 0) THEN 'lost'
            WHEN s.times IS NULL AND EXISTS (SELECT FROM ever AS e WHERE e.id = t.id) THEN 'not deleted'
            WHEN s.times IS NULL THEN 'not of the source'
            ELSE 'doubled'
        END, id, coalesce(s.times, 0), coalesce(t.times, 0)
        FROM of_source AS s FULL JOIN of_target AS t USING (id)
        WHERE coalesce(t.times, 0) <> coalesce(s.times, 0)
        UNION ALL
        -- An older change of the key, in place of the last one; or values that the source never had.
        SELECT CASE WHEN EXISTS (SELECT FROM ever AS e WHERE e.id = t.id AND e.whole = t.whole)
            THEN 'out of order' ELSE 'altered' END, t.whole, coalesce(s.times, 0), t.times
        FROM stored AS t LEFT JOIN sent AS s ON s.id = t.id AND s.whole = t.whole
        WHERE coalesce(s.times, 0) <> t.times
            AND EXISTS (SELECT FROM of_source AS o JOIN of_target AS f USING (id, times) WHERE o.id = t.id)
    $query$, identity, compared, source_name, compared_rows, target_name);
END $$;

-- The ledger of all writers, within what it retains. No rows in the answer: nothing is wrong.
CREATE FUNCTION pg_temp.audit_ledger() RETURNS TABLE (finding text, query_id text, sink_name text, batch_id bigint, more text)
LANGUAGE sql STABLE AS $$
    WITH batch AS (
        SELECT w.query_id::text, w.sink_name, b.*, w.last_batch_id, w.end_offsets AS newest,
            lag(b.batch_id) OVER in_order AS before, lag(b.end_offsets) OVER in_order AS ended,
            row_number() OVER (PARTITION BY b.writer_id ORDER BY b.generation DESC, b.batch_id DESC) AS from_the_end
        FROM pgonce.batches AS b JOIN pgonce.writers AS w USING (writer_id)
        WINDOW in_order AS (PARTITION BY b.writer_id, b.generation ORDER BY b.batch_id)
    ), accepted AS (SELECT i.writer_id, i.batch_id FROM pgonce.interventions AS i WHERE i.kind = 'accept')
    SELECT 'batches are missing', b.query_id, b.sink_name, b.batch_id, format('the one before is %s', b.before)
    FROM batch AS b WHERE b.batch_id <> b.before + 1 AND (b.writer_id, b.batch_id) NOT IN (SELECT * FROM accepted)
    UNION ALL
    SELECT 'ranges do not adjoin', b.query_id, b.sink_name, b.batch_id, format('%s, after %s', b.start_offsets, b.ended)
    FROM batch AS b
    WHERE b.start_offsets <> b.ended AND (b.writer_id, b.batch_id) NOT IN (SELECT * FROM accepted)
    UNION ALL
    SELECT 'the newest batch is another', b.query_id, b.sink_name, b.batch_id, format('the writer has %s', b.last_batch_id)
    FROM batch AS b WHERE b.from_the_end = 1 AND (b.batch_id <> b.last_batch_id OR b.end_offsets <> b.newest)
$$;

-- Rows that carry their positions in Kafka, against the offsets of the writer that fills the table. Topics that are
-- compacted or transactional have offsets without a record: leave those findings of 'no row' out.
CREATE FUNCTION pg_temp.audit_positions(target regclass, topic text, partition text, "offset" text)
RETURNS TABLE (finding text, of_topic text, of_partition integer, at bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    target_name text := (SELECT format('%I.%I', relnamespace::regnamespace, relname) FROM pg_class WHERE oid = target);
BEGIN
    RETURN QUERY EXECUTE format($query$
        WITH stored AS (SELECT %2$I::text AS topic, %3$I::integer AS part, %4$I::bigint AS at FROM %1$s),
        aside AS (
            SELECT position ->> 'topic', (position ->> 'partition')::integer, (position ->> 'offset')::bigint
            FROM pgonce.dead_letters WHERE position IS NOT NULL
        ), ends AS (
            SELECT o.topic, o.partition AS part, max(o.end_offset::text::bigint) AS at
            FROM pgonce.current_offsets AS o WHERE o.topic IN (SELECT s.topic FROM stored AS s) GROUP BY 1, 2
        ), seen AS (SELECT * FROM stored UNION ALL SELECT * FROM aside)
        SELECT 'twice', topic, part, at FROM stored GROUP BY 2, 3, 4 HAVING count(*) > 1
        UNION ALL
        SELECT 'beyond the offsets', s.topic, s.part, s.at FROM stored AS s JOIN ends AS e USING (topic, part) WHERE s.at >= e.at
        UNION ALL
        SELECT 'no row', e.topic, e.part, missing.at
        FROM ends AS e JOIN (SELECT topic, part, min(at) AS first FROM seen GROUP BY 1, 2) AS f USING (topic, part),
            generate_series(f.first, e.at - 1) AS missing (at)
        WHERE NOT EXISTS (SELECT FROM seen AS s WHERE (s.topic, s.part, s.at) = (e.topic, e.part, missing.at))
    $query$, target_name, topic, partition, "offset");
END $$;
