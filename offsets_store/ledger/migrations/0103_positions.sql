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
COMMENT ON TABLE pgonce.positions IS 'One row a Kafka partition of a query in real-time or continuous mode: how far its rows are in the table. A batch of another mode takes the rows away again, and goes on from there.';
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

-- Whoever takes a writer over, retires it or takes its place ends the claims of its tasks, whatever code does it.
-- As the ledger's owner, because roles that only write micro-batches were granted nothing on this table.
CREATE FUNCTION pgonce.end_claims() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pgonce.first_dispute(NEW.writer_id) IS NOT NULL AND OLD.run_id IS DISTINCT FROM NEW.run_id THEN
        RAISE EXCEPTION 'Rows of a partition may be missing: %', pgonce.first_dispute(NEW.writer_id)
            USING HINT = 'pgonce explain PARTITION_MIXED';
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

-- From the first such query on, code that knows nothing of this table would double its rows. It is refused from then on.
CREATE FUNCTION pgonce.need_positions() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pgonce.schema_version AS v WHERE v.version = 103 AND v.least_reader_version < 103) THEN
        -- Waits for the commits of such code that have begun.
        LOCK TABLE pgonce.schema_version;
        UPDATE pgonce.schema_version AS v SET least_reader_version = 103 WHERE v.version = 103;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION pgonce.need_positions() FROM PUBLIC;
CREATE TRIGGER need_positions AFTER INSERT ON pgonce.positions FOR EACH STATEMENT
    EXECUTE FUNCTION pgonce.need_positions();

-- As the owner too: commits and commands ask it.
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
    -- Whoever cannot write a batch must not hold up the tasks of those who can.
    IF NOT has_table_privilege(session_user, 'pgonce.writers', 'UPDATE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied for pgonce.take_positions';
    END IF;
    PERFORM FROM pgonce.positions AS p WHERE p.writer_id = writer AND p.run_id IS DISTINCT FROM run
    ORDER BY p.topic, p.partition FOR UPDATE;
    RETURN pgonce.real_time_positions(writer);
END
$$;
