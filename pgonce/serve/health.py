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
    """Whether the ledger is being read, and the line that says so."""

    is_well: bool
    line: str


def of_process(snapshot: Snapshot, now: datetime, every: float) -> Health:
    """Whether the ledger is being read."""
    trouble = snapshot.trouble
    if trouble is not None:
        said = f"The ledger cannot be read since {trouble.since:%H:%M:%S} UTC: [{trouble.code}] {trouble.text}"
        return Health(False, one_line(said))
    if snapshot.at is None:
        return Health(False, "The ledger was not read yet")
    age = (now - snapshot.at).total_seconds()
    if age > max(_OLDEST_LOOK_SECONDS, 3 * every):
        return Health(False, f"The ledger was last read {duration_text(age)} ago")
    read = f"{len(snapshot.states)} queries, read {duration_text(age)} ago"
    if not snapshot.findings:
        return Health(True, f"ok: {read}")
    # The process is well, so this is no 503; what it has found is said too.
    found = f"{snapshot.critical} critical of {len(snapshot.findings)} findings (pgonce health)"
    return Health(True, f"the ledger is read: {read}; {found}")
