-- Of which table, key columns and order tombstones are, and whether the oids in the ledger are those of this database.
-- Tombstones of the form before do not say it, and are gone: changes that are older than a delete may bring its row back.
DROP TABLE pgonce.tombstones;
CREATE TABLE pgonce.tombstone_sets (
    tombstone_set_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target           oid NOT NULL,
    target_name      text NOT NULL,
    key_columns      text[] NOT NULL,
    key_types        text[] NOT NULL,
    order_column     text NOT NULL,
    order_type       text NOT NULL,
    expires_at       timestamptz NOT NULL
);
COMMENT ON TABLE pgonce.tombstone_sets IS 'Of which table, keys and order tombstones are. Without its row here, a tombstone has no effect.';
COMMENT ON COLUMN pgonce.tombstone_sets.tombstone_set_id IS 'What its tombstones have.';
COMMENT ON COLUMN pgonce.tombstone_sets.target IS 'The table from which rows were deleted; for a partition, the root of its tree.';
COMMENT ON COLUMN pgonce.tombstone_sets.target_name IS 'Its schema and name. By this it is found again where a dump is restored.';
COMMENT ON COLUMN pgonce.tombstone_sets.key_columns IS 'The key columns, in the order of the values in a tombstone''s key. If a column was renamed, write its new name here.';
COMMENT ON COLUMN pgonce.tombstone_sets.key_types IS 'What their values are: number, text, uuid, boolean or a type of dates and times.';
COMMENT ON COLUMN pgonce.tombstone_sets.order_column IS 'The column of the table that orderBy names. If it was renamed, write its new name here.';
COMMENT ON COLUMN pgonce.tombstone_sets.order_type IS 'What its values are: number, float, text, uuid or a type of dates and times.';
COMMENT ON COLUMN pgonce.tombstone_sets.expires_at IS 'When the last of them may go.';

-- No foreign key: it would be looked up for every tombstone, and one without its set has no effect and goes in its time.
CREATE TABLE pgonce.tombstones (
    tombstone_set_id bigint NOT NULL,
    key              jsonb NOT NULL,
    order_value      jsonb NOT NULL,
    deleted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at       timestamptz NOT NULL,
    PRIMARY KEY (tombstone_set_id, key)
);
CREATE INDEX tombstones_expiry ON pgonce.tombstones (expires_at);
COMMENT ON TABLE pgonce.tombstones IS 'Rows that were deleted with onlyNewer: an older change of the key is passed over while its tombstone is there.';
COMMENT ON COLUMN pgonce.tombstones.tombstone_set_id IS 'Of which table, keys and order it is.';
COMMENT ON COLUMN pgonce.tombstones.key IS 'The values of the key columns, in the order of key_columns.';
COMMENT ON COLUMN pgonce.tombstones.order_value IS 'The value of orderBy with which the key was deleted.';
COMMENT ON COLUMN pgonce.tombstones.deleted_at IS 'When it was deleted.';
COMMENT ON COLUMN pgonce.tombstones.expires_at IS 'From when on the tombstone may go: tombstoneDays after it was made.';

CREATE TABLE pgonce.home (
    is_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_only_row),
    written_in  bigint NOT NULL,
    since       timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO pgonce.home (written_in) VALUES (pg_current_xact_id()::text::bigint);
COMMENT ON TABLE pgonce.home IS 'Whether the oids in the ledger are those of this database. They are while the transaction that wrote this row (its xmin) is written_in; a dump that is restored brings the value with it, and not the xmin.';
COMMENT ON COLUMN pgonce.home.is_only_row IS 'There is one row.';
COMMENT ON COLUMN pgonce.home.written_in IS 'The transaction that wrote the row.';
COMMENT ON COLUMN pgonce.home.since IS 'Since when the oids are those of this database: since the ledger was created, or since tables were looked up by name after a restore.';
