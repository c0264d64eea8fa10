"""
The settings of a commit, the same for every way in.

Pure: runs where settings are made, and in tasks, which get them with their options. The table of options says which
values they may have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..verdict.facts import Remedies

# The defaults of every way in.
RETAINED_BATCHES = 1000
LOCK_TIMEOUT_SECONDS = 30
# Longer than Postgres takes to restart, or to fail over. Recoveries have it too.
RETRY_SECONDS = 120


@dataclass(frozen=True)
class CommitSettings:
    """What the commit needs to know, from every way in. Times are in seconds."""

    url: str = field(repr=False)
    remedies: Remedies = field(default_factory=Remedies)
    retain_batches: int = RETAINED_BATCHES
    lock_timeout: float = LOCK_TIMEOUT_SECONDS
    retry_timeout: float = RETRY_SECONDS
    pin_table: bool = False
    notify_channel: str | None = None
