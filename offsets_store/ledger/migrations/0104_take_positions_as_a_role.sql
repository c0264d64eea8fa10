-- A login that only becomes the role of the stream (SET ROLE, or options=-crole=...) may take positions over.

CREATE OR REPLACE FUNCTION pgonce.take_positions(writer bigint, run text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Those who cannot write a batch must not hold up the tasks of those who can. Here current_user is the owner.
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
