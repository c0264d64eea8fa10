"""
How does a micro-batch query go on from a continuous one's checkpoint?

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: no offset is changed; only Spark's
metadata line, which a continuous query leaves empty and a micro-batch query cannot do without, is put in.
"""

from __future__ import annotations

from offsets_store.recovery.changes import Target
from offsets_store.recovery.facts import CheckpointFacts

# What Spark writes for a query without a watermark; it takes settings that are not named here from the session.
_METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


def is_continuous(checkpoint: CheckpointFacts) -> bool:
    """Whether a continuous query has written the newest entry."""
    return checkpoint.newest is not None and checkpoint.offsets[checkpoint.newest].is_continuous


def fit_for_micro_batches(checkpoint: CheckpointFacts) -> Target:
    """The newest two entries, which are all that Spark reads at a start, with their metadata line."""
    newest = checkpoint.newest
    assert newest is not None  # noqa: S101 (narrows the type)
    entries = {
        number: checkpoint.offsets[number].text.replace("\n\n", f"\n{_METADATA}\n", 1)
        for number in (newest - 1, newest)
        if number in checkpoint.offsets and checkpoint.offsets[number].is_continuous
    }
    return Target(
        entries,
        newest,
        is_committed=newest in checkpoint.commits,
        does="puts in the metadata lines without which a micro-batch query cannot go on from a continuous one's "
        "checkpoint",
    )
