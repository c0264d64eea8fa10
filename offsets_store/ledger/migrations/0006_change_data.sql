-- Deletes that are remembered, so that an older change does not bring the row back; and what became of a batch's rows.
-- Of type regclass, because a dump has the table's name for it, so that it means the same table where it is restored.
CREATE TABLE pgonce.tombstones (
    target      regclass NOT NULL,
    key         jsonb NOT NULL,
    order_value jsonb NOT NULL,
    deleted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (target, key)
);
CREATE INDEX tombstones_expiry ON pgonce.tombstones (expires_at);
COMMENT ON TABLE pgonce.tombstones IS 'Rows that were deleted with onlyNewer: an older change of the key is passed over while its tombstone is there.';
COMMENT ON COLUMN pgonce.tombstones.target IS 'The table from which the row was deleted.';
COMMENT ON COLUMN pgonce.tombstones.deleted_at IS 'When it was deleted.';
COMMENT ON COLUMN pgonce.tombstones.expires_at IS 'From when on the tombstone may go: tombstoneDays after it was made.';
COMMENT ON COLUMN pgonce.tombstones.key IS 'The values of the key columns, in the order of the keys'' names.';
COMMENT ON COLUMN pgonce.tombstones.order_value IS 'The value of orderBy with which the key was deleted.';

ALTER TABLE pgonce.batches ADD COLUMN counts jsonb;
COMMENT ON COLUMN pgonce.batches.counts IS 'What became of the rows, where they were written by key and not all of them count: written, deleted, superseded by a later change in the batch, passed_over because the table has something newer, not_found, ignored. Together they are the batch''s rows.';
