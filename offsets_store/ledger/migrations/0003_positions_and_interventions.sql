-- Exactly-once by source position, what a checkpoint can be rebuilt from, and what people did by hand.
ALTER TABLE pgonce.batches
    ADD COLUMN positions    jsonb,
    ADD COLUMN dropped_rows bigint NOT NULL DEFAULT 0,
    ADD COLUMN stateful     boolean,
    ADD COLUMN topic_ids    jsonb;
COMMENT ON COLUMN pgonce.batches.positions IS 'Source id to topic to partition to next position: rows below are in the target or were never selected; null where rows carry no positions.';
COMMENT ON COLUMN pgonce.batches.dropped_rows IS 'Rows that the batch carried and that an earlier batch had published.';
COMMENT ON COLUMN pgonce.batches.stateful IS 'Whether the query keeps state, so that its checkpoint cannot be rebuilt from here; null where unknown.';
COMMENT ON COLUMN pgonce.batches.topic_ids IS 'Topic to Kafka''s id of it, where brokers were asked: a topic made anew has another.';

ALTER TABLE pgonce.writers
    ADD COLUMN retired_at timestamptz;

-- As before, but where rows carry their positions: a batch that is run again may end before what is stored.
CREATE OR REPLACE VIEW pgonce.current_offsets AS
SELECT w.query_id, w.query_name, w.sink_name, w.last_batch_id AS batch_id, s.key AS source,
       t.topic, t.partition,
       CASE WHEN t.topic IS NULL THEN s.value ELSE to_jsonb(greatest(
           t.next_offset::bigint, (b.positions -> s.key -> t.topic ->> t.partition::text)::bigint)) END AS end_offset,
       w.updated_at AS committed_at
FROM pgonce.writers AS w
LEFT JOIN pgonce.batches AS b
    ON (b.writer_id, b.generation, b.batch_id) = (w.writer_id, w.generation, w.last_batch_id)
CROSS JOIN LATERAL jsonb_each(coalesce(w.end_offsets, b.end_offsets)) AS s
LEFT JOIN LATERAL (
    SELECT topics.key AS topic, parts.key::integer AS partition, parts.value AS next_offset
    FROM jsonb_each(CASE WHEN jsonb_typeof(s.value) = 'object' THEN s.value ELSE '{}' END) AS topics
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(topics.value) = 'object' THEN topics.value ELSE '{}' END) AS parts
    WHERE parts.key ~ '^[0-9]{1,9}$' AND jsonb_typeof(parts.value) = 'number'
) AS t ON true
WHERE w.replaced_by IS NULL AND w.retired_at IS NULL;

COMMENT ON COLUMN pgonce.writers.retired_at IS 'When a person said that this writer will publish no more; null while it may.';

CREATE TABLE pgonce.interventions (
    intervention_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer_id       bigint      NOT NULL REFERENCES pgonce.writers ON DELETE CASCADE,
    kind            text        NOT NULL CHECK (kind IN ('accept', 'retire', 'recover', 'undo', 'new-checkpoint')),
    batch_id        bigint,
    reason          text,
    details         jsonb,
    made_by         text        NOT NULL DEFAULT session_user,
    made_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at         timestamptz
);
CREATE INDEX interventions_writer ON pgonce.interventions (writer_id, kind, batch_id);
COMMENT ON TABLE pgonce.interventions IS 'What people did by hand to a writer or its checkpoint, and why.';
COMMENT ON COLUMN pgonce.interventions.intervention_id IS 'Counts them.';
COMMENT ON COLUMN pgonce.interventions.writer_id IS 'The writer.';
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept: publish this batch although nothing proves that it follows; retire: the writer is gone; recover, undo, new-checkpoint: its checkpoint was written to.';
COMMENT ON COLUMN pgonce.interventions.batch_id IS 'The batch that is accepted, or at which the checkpoint stands now.';
COMMENT ON COLUMN pgonce.interventions.reason IS 'In the person''s words.';
COMMENT ON COLUMN pgonce.interventions.details IS 'What was written, and where what it replaced is kept.';
COMMENT ON COLUMN pgonce.interventions.made_by IS 'The database role.';
COMMENT ON COLUMN pgonce.interventions.made_at IS 'When.';
COMMENT ON COLUMN pgonce.interventions.used_at IS 'When the accepted batch was published.';
