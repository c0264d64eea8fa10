-- Status reads of each query its newest event, and how many events disagree: with 100 queries and the 1,000 events that
-- the listener keeps of each, it would read all of 100,000 rows for that.
CREATE INDEX progress_newest ON pgonce.progress (query_id, progress_at, batch_id);
CREATE INDEX progress_disagreements ON pgonce.progress (query_id) WHERE disagreement IS NOT NULL;
