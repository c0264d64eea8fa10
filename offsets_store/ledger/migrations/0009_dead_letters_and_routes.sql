-- Rows that were put aside instead of published, and how many rows of a batch went into each of its tables.
CREATE TABLE pgonce.dead_letters (
    dead_letter_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    query_id       text NOT NULL,
    sink_name      text NOT NULL,
    batch_id       bigint NOT NULL,
    target         text NOT NULL,
    position       jsonb,
    row_data       jsonb NOT NULL,
    column_name    text,
    code           text NOT NULL,
    message        text NOT NULL,
    destination    jsonb NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letters_writer ON pgonce.dead_letters (query_id, sink_name, batch_id);
COMMENT ON TABLE pgonce.dead_letters IS 'Rows that could not be published for their own values, if the query asks for that (deadLetters). Repair row_data and run pgonce dead-letters --replay, or discard them.';
COMMENT ON COLUMN pgonce.dead_letters.dead_letter_id IS 'What pgonce dead-letters --id takes.';
COMMENT ON COLUMN pgonce.dead_letters.query_id IS 'The query whose batch the row was in.';
COMMENT ON COLUMN pgonce.dead_letters.sink_name IS 'Its sink: the option sinkName, or the qualified target table.';
COMMENT ON COLUMN pgonce.dead_letters.batch_id IS 'Spark''s batch id.';
COMMENT ON COLUMN pgonce.dead_letters.message IS 'What Postgres, or pgonce, says of the row.';
COMMENT ON COLUMN pgonce.dead_letters.made_at IS 'When it was put aside.';
COMMENT ON COLUMN pgonce.dead_letters.target IS 'The table, with its schema, that refused the row or was to get it.';
COMMENT ON COLUMN pgonce.dead_letters.position IS 'Where in Kafka the row comes from (topic, partition, offset), where that is known.';
COMMENT ON COLUMN pgonce.dead_letters.row_data IS 'The row''s columns, as they were to be written. A value that neither Postgres nor JSON can hold is an object with the key base64, json or arrow.';
COMMENT ON COLUMN pgonce.dead_letters.column_name IS 'The column whose value was refused, where that is known.';
COMMENT ON COLUMN pgonce.dead_letters.code IS 'The SQLSTATE with which Postgres refused the row, or the code of an error of pgonce.';
COMMENT ON COLUMN pgonce.dead_letters.destination IS 'How the row was to be written: the columns and their types, mode, keys and the like. A replay needs it.';

ALTER TABLE pgonce.batches ADD COLUMN tables jsonb;
COMMENT ON COLUMN pgonce.batches.tables IS 'How many rows went into each table, where the batch writes to several.';
COMMENT ON COLUMN pgonce.batches.counts IS 'What became of the rows, where they were written by key and not all of them count: written, deleted, superseded by a later change in the batch, passed_over because the table has something newer, not_found, ignored. Together they are the batch''s rows. dead_letters and unrouted count rows that are not among these.';

ALTER TABLE pgonce.interventions
    DROP CONSTRAINT interventions_kind_check,
    ADD CONSTRAINT interventions_kind_check
        CHECK (kind IN ('accept', 'retire', 'recover', 'undo', 'new-checkpoint', 'forget', 'start-over', 'swap', 'replay-dead-letters', 'discard-dead-letters'));
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept: publish this batch although nothing proves that it follows; retire: the writer is gone; forget: it is out of the way of a new query that loads the table again; recover, undo, new-checkpoint: its checkpoint was written to; start-over: its batch 0 has replaced the rows of another query; swap: its table was exchanged for another; replay-dead-letters, discard-dead-letters: rows that it had put aside were published after all, or given up.';
