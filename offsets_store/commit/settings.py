"""
The settings of a commit, the same for every way in.

Pure: runs where settings are made, and in tasks, which get them with their options. Invariant: settings that cannot
work are refused when they are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import bad_option
from ..postgres.text import refuse_unstorable
from ..verdict.facts import Remedies

LEAST_RETAINED_BATCHES = 100

# The defaults of every way in.
RETAINED_BATCHES = 1000
LOCK_TIMEOUT_SECONDS = 30
# Longer than Postgres takes to restart, or to fail over. Recoveries have it too.
RETRY_SECONDS = 120

# Eleven days. Postgres and TCP count milliseconds up to 2147483647, and some waits are a little longer than this one.
MOST_LOCK_SECONDS = 1_000_000
# A millisecond: less would be zero in Postgres, and so no limit.
LEAST_LOCK_SECONDS = 0.001
# Postgres's own bound: NAMEDATALEN, less the byte that ends the text.
_LONGEST_CHANNEL = 63


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


def commit_settings(
    url: str,
    remedies: Remedies,
    *,
    retain_batches: int,
    lock_timeout: float,
    retry_timeout: float,
    pin_table: bool = False,
    notify_channel: str | None = None,
) -> CommitSettings:
    """
    Checked :class:`CommitSettings`, for every way in.

    :raises ConfigurationError: if too few records are kept, times mean nothing, remedies exclude each other, or libpq
        cannot read the url.
    """
    if retain_batches < LEAST_RETAINED_BATCHES:
        raise bad_option(
            "BAD_OPTION",
            f"retainBatches={retain_batches} is too small: Spark keeps 100 batches in a checkpoint and may run "
            "them again.",
            f"Use at least {LEAST_RETAINED_BATCHES}.",
        )
    if not LEAST_LOCK_SECONDS <= lock_timeout <= MOST_LOCK_SECONDS or not retry_timeout >= 0:
        raise bad_option(
            "BAD_OPTION",
            f"lockTimeout={lock_timeout:g} and retryTimeout={retry_timeout:g} are not times to wait, in seconds.",
            f"Give lockTimeout {LEAST_LOCK_SECONDS} to {MOST_LOCK_SECONDS}, and retryTimeout 0 or more.",
        )
    if sum((remedies.adopt_checkpoint is not None, remedies.replaces is not None, remedies.independent)) > 1:
        raise bad_option(
            "CLASHING_OPTIONS",
            "adoptCheckpoint, replaces and independent exclude each other: each says something else about the "
            "query's past.",
            "Keep the one that is true.",
        )
    refuse_unstorable(replaces=remedies.replaces)
    refuse_unfit_channel(notify_channel)
    # Here, because tasks have no need of libpq for settings that were made elsewhere.
    from ..postgres.connect import parse_url

    parse_url(url)
    return CommitSettings(url, remedies, retain_batches, lock_timeout, retry_timeout, pin_table, notify_channel)


def refuse_unfit_channel(channel: str | None) -> None:
    """:raises ConfigurationError: BAD_OPTION, for a name that pg_notify would refuse in every batch."""
    refuse_unstorable(notifyChannel=channel)
    length = len((channel or "").encode())
    if channel is not None and not 0 < length <= _LONGEST_CHANNEL:
        raise bad_option(
            "BAD_OPTION",
            f"notifyChannel has {length} bytes; in Postgres, a channel's name has 1 to {_LONGEST_CHANNEL}.",
            "Use another name, in lower case, so that LISTEN takes it without quotes.",
        )
