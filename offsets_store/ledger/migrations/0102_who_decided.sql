-- What is decided about dead letters can also be that their rows were repaired. Batches need none of it.

ALTER TABLE pgonce.interventions
    DROP CONSTRAINT interventions_kind_check,
    ADD CONSTRAINT interventions_kind_check CHECK (kind IN (
        'accept', 'retire', 'recover', 'undo', 'new-checkpoint', 'forget', 'start-over', 'swap',
        'replay-dead-letters', 'discard-dead-letters', 'repair-dead-letters'
    ));
COMMENT ON COLUMN pgonce.interventions.kind IS 'accept: publish this batch although nothing proves that it follows; retire: the writer is gone; forget: it is out of the way of a new query that loads the table again; recover, undo, new-checkpoint: its checkpoint was written to; start-over: its batch 0 has replaced the rows of another query; swap: its table was exchanged for another; replay-dead-letters, discard-dead-letters, repair-dead-letters: rows that it had put aside were published after all, given up, or changed.';
