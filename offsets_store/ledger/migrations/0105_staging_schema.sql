-- Staging tables get a schema of their own. Who may create tables in a schema may also create functions there, and with
-- other types of arguments such a function could be taken for one of the ledger's, and run as whoever calls it.

-- An administrator may have made it: CREATE SCHEMA IF NOT EXISTS would need CREATE on the database all the same.
DO $$
BEGIN
    IF to_regnamespace('pgonce_staging') IS NULL THEN
        CREATE SCHEMA pgonce_staging;
        COMMENT ON SCHEMA pgonce_staging IS 'Rows of batches that are not decided yet; pgonce.staged_tables lists the tables.';
    END IF;
END
$$;

-- Roles that could stage still can.
DO $$
DECLARE
    role_name text;
BEGIN
    FOR role_name IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(n.nspacl) AS a
        WHERE n.nspname = 'pgonce' AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
    LOOP
        EXECUTE format('GRANT USAGE, CREATE ON SCHEMA pgonce_staging TO %s', role_name);
        EXECUTE format('REVOKE CREATE ON SCHEMA pgonce FROM %s', role_name);
    END LOOP;
END
$$;

-- docs/tables.md is made from these.
COMMENT ON TABLE pgonce.schema_version IS 'One row for each migration that was applied.';
COMMENT ON TABLE pgonce.writers IS 'One row for each writer: a streaming query (by the id in its checkpoint) and one of its sinks. Rows are kept for ever.';
COMMENT ON COLUMN pgonce.writers.sink_name IS 'The sink: the qualified target table, with double quotes where SQL needs them (public.events, app."Orders"), unless the user has named it.';
COMMENT ON COLUMN pgonce.writers.run_id IS 'The run that published the last batch: the owner. After a recovery it begins with recovery-.';
COMMENT ON COLUMN pgonce.writers.replaces IS 'The id of the query whose place this writer took.';
COMMENT ON COLUMN pgonce.writers.replaced_by IS 'The id of the query that took this writer''s place; it may publish no more.';
COMMENT ON COLUMN pgonce.writers.retired_at IS 'When pgonce retire or pgonce forget ended this writer; null while it may publish.';
COMMENT ON COLUMN pgonce.writers.targets IS 'Qualified name to oid: the table of the last batch, or all tables so far if the writer may write to several; null where no batch has recorded them.';
COMMENT ON TABLE pgonce.batches IS 'One row for each published batch, written in the transaction that wrote its rows. The newest of a writer are kept (retainBatches).';
COMMENT ON COLUMN pgonce.batches.rows IS 'Rows that were published.';
COMMENT ON COLUMN pgonce.batches.transport IS 'How the rows came: inline, received or staged, or several of these joined by +; arrow with PostgresBatchWriter; function with transactional_batch; adopted for a batch that another sink had written; real-time for what tasks in real time had written by then.';
COMMENT ON COLUMN pgonce.batches.dropped_rows IS 'Rows of the batch that an earlier batch had published. They are not among rows.';
COMMENT ON COLUMN pgonce.batches.counts IS 'What became of the rows, where they were written by key and not all of them count: written, deleted, superseded by a later change in the batch, passed_over because the table has something newer, not_found, ignored. Together they are the batch''s rows. dead_letters and unrouted count rows that are not among these; not_read counts those of the written rows in which a value was not read, and moved those whose old rows are counted too.';
COMMENT ON TABLE pgonce.runs IS 'One row for each run that has owned a writer, from its first published batch on.';
COMMENT ON TABLE pgonce.replays IS 'One row for each run and batch, if that run skipped the batch as a proven replay. Rows are pruned with their batches.';
COMMENT ON TABLE pgonce.target_changes IS 'One row for each batch whose rows went into another table than those before (recreated, swapped, renamed or moved), or that altered its table or left out columns (schemaEvolution).';
COMMENT ON COLUMN pgonce.target_changes.batch_id IS 'The first batch to which this applies.';
COMMENT ON COLUMN pgonce.target_changes.change IS 'A sentence that says what is different.';
COMMENT ON COLUMN pgonce.target_changes.noticed_at IS 'When it was noticed.';
COMMENT ON COLUMN pgonce.interventions.intervention_id IS 'Number of the intervention.';
COMMENT ON COLUMN pgonce.interventions.made_at IS 'When it was done.';
COMMENT ON COLUMN pgonce.interventions.used_at IS 'When the accepted batch was published, or the table was emptied to start over.';
COMMENT ON COLUMN pgonce.staged_tables.table_name IS 'Its name, in the schema pgonce_staging.';
COMMENT ON COLUMN pgonce.staged_tables.created_at IS 'When its batch was planned, or when it was registered, if that was earlier.';
COMMENT ON COLUMN pgonce.batch_jobs.sink_name IS 'The option sinkName, or the qualified target table as it was called then.';
COMMENT ON TABLE pgonce.batch_jobs IS 'One row for each batch job that was published. Rows are never pruned: a key that is gone could be published again.';
COMMENT ON TABLE pgonce.batch_job_skips IS 'One row for each run of a batch job that was skipped, because its key had been published.';
COMMENT ON TABLE pgonce.batch_job_aborts IS 'One row for each run of a batch job that Spark gave up after it may have staged rows: a sweep may drop its staging table.';
COMMENT ON VIEW pgonce.current_offsets IS 'Where every writer stands: one row for each topic and partition of Kafka, or for each other source. Writers that were replaced or retired, or whose offsets are unknown, are left out.';
COMMENT ON TABLE pgonce.failures IS 'What went wrong, as far as it could be written down: one row for each query, sink, run, batch and code. It is written after the batch was rolled back, within two seconds or not at all. The newest 100 of a query are kept.';
COMMENT ON TABLE pgonce.heartbeats IS 'One row for each run that a listener hears. The newest 20 runs of a query are kept.';
COMMENT ON COLUMN pgonce.heartbeats.ended_at IS 'When Spark said that the run had ended; null if it has not. A driver that was killed falls silent: then heard_at stays behind.';
COMMENT ON COLUMN pgonce.batches.begun_at IS 'When the transaction that published the batch began. committed_at - begun_at is how long the commit took, without the COMMIT itself. Null for batches of before this column.';
COMMENT ON TABLE pgonce.positions IS 'One row for each Kafka partition of a query in real-time or continuous mode: how far its rows are in the table. A batch of another mode takes the rows away again, and goes on from there.';
