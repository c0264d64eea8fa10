-- The schema of staging tables. This runs after each migration, because a dump of the schema pgonce alone does not have it.
-- An administrator may have made it: CREATE SCHEMA IF NOT EXISTS would need CREATE on the database all the same.
DO $$
BEGIN
    IF to_regnamespace('pgonce_staging') IS NULL THEN
        CREATE SCHEMA pgonce_staging;
        COMMENT ON SCHEMA pgonce_staging IS 'Rows of batches that are not decided yet; pgonce.staged_tables lists the tables.';
    END IF;
END
$$;
