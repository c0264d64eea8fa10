"""
Say in one line whether the ledger is being read.

Pure: runs in ``pgonce serve``, for probes. Invariant: what is unknown is not well.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgonce.offsets_store.log_lines import one_line
from pgonce.offsets_store.status.figures import duration_text

from .reader import Snapshot

_OLDEST_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class Health:
    """Whether all is well, and the line that says so."""

    is_well: bool
    line: str


def of_process(snapshot: Snapshot, now: datetime, every: float) -> Health:
    """Whether the ledger is being read."""
    trouble = snapshot.trouble
    if trouble is not None:
        return _not_well(
            f"the ledger cannot be read since {trouble.since:%H:%M:%S} UTC: [{trouble.code}] {trouble.text}"
        )
    if snapshot.at is None:
        return _not_well("the ledger was not read yet")
    age = (now - snapshot.at).total_seconds()
    if age > max(_OLDEST_LOOK_SECONDS, 3 * every):
        return _not_well(f"the ledger was last read {duration_text(age)} ago")
    read = f"{len(snapshot.states)} queries, read {duration_text(age)} ago"
    if not snapshot.findings:
        return Health(True, f"ok: {read}")
    # The process is well, so this is no 503; what it has found is said too.
    found = f"{snapshot.critical} critical of {len(snapshot.findings)} findings (pgonce health)"
    return Health(True, f"the ledger is read: {read}; {found}")


def _not_well(line: str) -> Health:
    return Health(False, one_line(line[0].upper() + line[1:]))
