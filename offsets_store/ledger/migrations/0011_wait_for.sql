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
