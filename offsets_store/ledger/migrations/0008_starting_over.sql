-- A table's rows are replaced by those of a new query, in place or by exchanging it for another table.
ALTER TABLE pgonce.interventions
    DROP CONSTRAINT interventions_kind_check,
    ADD CONSTRAINT interventions_kind_check
        CHECK (kind IN ('accept', 'retire', 'recover', 'undo', 'new-checkpoint', 'forget', 'start-over', 'swap'));
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept: publish this batch although nothing proves that it follows; retire: the writer is gone; forget: it is out of the way of a new query that loads the table again; recover, undo, new-checkpoint: its checkpoint was written to; start-over: its batch 0 has replaced the rows of another query; swap: its table was exchanged for another.';

ALTER TABLE pgonce.writers
    ADD COLUMN swapped_from text;
COMMENT ON COLUMN pgonce.writers.swapped_from IS 'The sink''s name before its table was exchanged for another (pgonce swap); null again once a batch has gone into the right table.';
