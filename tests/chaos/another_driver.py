"""
The errors with which a query ends that has met another driver on its checkpoint.

Pure. Invariant: no other failure has their texts.
"""

from __future__ import annotations

# Of pgonce: by the ledger, or by the checkpoint's files.
OUR_WORDS = ("[FENCED]", "[CHECKPOINT_IN_USE]", "[NOT_MICRO_BATCH]")
# Of Spark, where it is the first to notice.
SPARKS_WORDS = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",
    "Multiple streaming jobs detected",
    "Multiple streaming queries",
)


def another_driver(ending: str) -> str | None:
    """The words that tell of another driver; None where there are none."""
    return next((word for word in (*OUR_WORDS, *SPARKS_WORDS) if word in ending), None)
