-- How the last batch was written, so that `pgonce doctor` and `pgonce check --query` can look at a table as the next commit will.
ALTER TABLE pgonce.writers ADD COLUMN written_as jsonb;
COMMENT ON COLUMN pgonce.writers.written_as IS 'How the last batch was written into each of its tables: mode, keys, options, and the columns of its rows. It is replaced when that changes; "digest" tells one from another. Null where no batch has recorded it.';
