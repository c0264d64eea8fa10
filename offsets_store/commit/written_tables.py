"""
Has the batch gone into the same tables as the batches before it?

Runs in the commit, after the rows are written. Invariant: a change is recorded with the batch and logged; with pinTable
it refuses the batch.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pgonce.offsets_store.errors import NOTHING, CommitError
from pgonce.offsets_store.ledger.record import Published
from pgonce.offsets_store.verdict.facts import Batch
from pgonce.offsets_store.verdict.targets import Targets, changed_targets, known_targets

_log = logging.getLogger("pgonce")


def compared_with_earlier(
    batch: Batch, earlier: Targets | None, published: Published, *, pinned: bool, is_one_table: bool
) -> Published:
    """
    What was published, with the tables to remember and what has changed about them.

    :param earlier: the tables of earlier batches.
    :raises CommitError: TARGET_CHANGED, if they are ``pinned``.
    """
    now = published.targets or {}
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
    return replace(published, targets=known_targets(earlier, now, is_one_table=is_one_table), target_changes=changes)
