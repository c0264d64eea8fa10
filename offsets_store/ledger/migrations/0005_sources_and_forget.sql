-- What a query reads, by which another one that feeds the same sink is proven to be apart; and writers that people forget.
ALTER TABLE pgonce.writers
    ADD COLUMN sources jsonb;
COMMENT ON COLUMN pgonce.writers.sources IS 'All that the query has ever read: kafka (topic to partitions) and folders (of files, as Spark describes them); null where not all of it is known.';

ALTER TABLE pgonce.interventions
    DROP CONSTRAINT interventions_kind_check,
    ADD CONSTRAINT interventions_kind_check
        CHECK (kind IN ('accept', 'retire', 'recover', 'undo', 'new-checkpoint', 'forget'));
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept: publish this batch although nothing proves that it follows; retire: the writer is gone; forget: it is out of the way of a new query that loads the table again; recover, undo, new-checkpoint: its checkpoint was written to.';
