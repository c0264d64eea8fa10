"""
Has the batch gone into the same tables as the batches before it?

Runs in the commit, after the rows are written. Invariant: a change is recorded with the batch and logged; with pinTable
it refuses the batch.
"""

from __future__ import annotations

import logging

from ..errors import NOTHING, CommitError
from ..verdict.facts import Batch, Writer
from ..verdict.targets import Targets, WrittenTables, changed_targets, known_targets

_log = logging.getLogger("pgonce")


def compared_with_earlier(
    batch: Batch, writer: Writer | None, now: Targets, *, pinned: bool, is_one_table: bool
) -> WrittenTables:
    """
    The tables to remember after this batch, and what has changed about them.

    :param writer: what is known of earlier batches, and of the tables that they were written to.
    :param now: the tables that this batch was written to.
    :raises CommitError: TARGET_CHANGED, if they are ``pinned``, or if one of them was exchanged for another on purpose.
    """
    earlier = writer.targets if writer else None
    if writer and writer.swapped_from and (other := changed_targets(earlier, now, is_one_table=True)):
        raise CommitError(
            "TARGET_CHANGED",
            f"The table of query {batch.query_id} was exchanged for another (`pgonce swap`), and batch "
            f"{batch.batch_id} would go into that other one. {' '.join(other.values())}",
            NOTHING,
            f"Write to {', '.join(earlier or ())}, which has its rows. Or leave the query stopped, if the other table "
            "has taken its place for good.",
        )
    changes = changed_targets(earlier, now, is_one_table=is_one_table)
    if changes and pinned:
        raise CommitError(
            "TARGET_CHANGED",
            f"pinTable is set, and batch {batch.batch_id} would go into another table than those before it. "
            + " ".join(changes.values()),
            NOTHING,
            "If the table was replaced on purpose, start the query once with pinTable=false (pin_table=False): from "
            "that batch on, the new table is the one that counts.",
        )
    for change in changes.values():
        _log.warning("batch %s of query %s: %s", batch.batch_id, batch.query_id, change)
    return WrittenTables(known_targets(earlier, now, is_one_table=is_one_table), changes)
