-- Which way the offsets of a writer's batches came, for people: it decides nothing.
ALTER TABLE pgonce.writers ADD COLUMN offsets_read_by text;
COMMENT ON COLUMN pgonce.writers.offsets_read_by IS 'How the checkpoint of the last batch was read: python, from a disk; pyarrow, from another store; spark, through Spark''s own file system; or listener, which has not read it.';
