-- Which tables a writer's rows are in, by oid: a table of the same name may be another one.
ALTER TABLE pgonce.writers
    ADD COLUMN targets jsonb;
COMMENT ON COLUMN pgonce.writers.targets IS 'Qualified name to oid of the tables that the last batch was written to; null where no version that records them has published.';

CREATE TABLE pgonce.target_changes (
    writer_id  bigint      NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    generation integer     NOT NULL,
    batch_id   bigint      NOT NULL,
    table_name text        NOT NULL,
    change     text        NOT NULL,
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
