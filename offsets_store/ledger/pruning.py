"""
When do the ledger's old rows go, and which of a writer's?

Runs in the commit, and in the listener's thread, in the transaction that writes the next row. Invariant: one
transaction deletes a bounded number of a writer's records, and never the newest ones.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, delete, func, or_, select

from .tables import batches, replays

# To delete a few rows from time to time is cheaper than to delete one row every time.
PRUNE_EVERY = 16
# After retainBatches was lowered there may be any number of rows to delete. 9,000 took a commit one second: each is a
# deferred check of ``last_batch_is_recorded``.
PRUNE_AT_MOST = 1000


def is_pruned_at(batch_id: int) -> bool:
    """Whether the transaction of this batch deletes old rows."""
    return batch_id % PRUNE_EVERY == 0


def prune_in_tx(connection: Connection, writer_id: int, generation: int, newest_to_go: int) -> None:
    """Delete a writer's oldest records, up to that of batch ``newest_to_go``."""
    for table in (batches, replays):
        of_generation = and_(table.c.writer_id == writer_id, table.c.generation == generation)
        oldest = select(func.min(table.c.batch_id)).where(of_generation).scalar_subquery()
        old = and_(of_generation, table.c.batch_id < oldest + PRUNE_AT_MOST)
        if generation > 0:
            # Each earlier generation has at most retainBatches records.
            old = or_(old, and_(table.c.writer_id == writer_id, table.c.generation < generation))
        connection.execute(delete(table).where(old, table.c.batch_id <= newest_to_go))
