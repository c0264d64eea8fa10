"""
Show numbers and times in few characters, for tables that a person looks over.

Pure: runs in the command ``pgonce``. Invariant: what is unknown reads ``?``, and never 0.
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

UNKNOWN = "?"
_THOUSAND = 1000
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count_text(count: float | None) -> str:
    """
    A number in at most five characters.

    >>> count_text(0), count_text(999), count_text(12_345), count_text(4_500_000), count_text(None)
    ('0', '999', '12.3k', '4.5M', '?')
    """
    if count is None:
        return UNKNOWN
    if count < _THOUSAND:
        return f"{count:.0f}" if count >= 1 or count == 0 else "<1"
    for unit in ("k", "M", "G", "T"):
        count /= _THOUSAND
        if count < _THOUSAND:
            return f"{count:.1f}{unit}" if count < _THOUSAND / 10 else f"{count:.0f}{unit}"
    return f"{count:.0f}T"


def duration_text(seconds: float | None) -> str:
    """
    A time span in at most four characters.

    >>> duration_text(0.2), duration_text(59), duration_text(200), duration_text(7300), duration_text(500_000)
    ('0s', '59s', '3m', '2h', '5d')
    """
    if seconds is None:
        return UNKNOWN
    # A clock here may be a little behind the server's.
    seconds = max(seconds, 0)
    if seconds < _MINUTE:
        return f"{int(seconds)}s"
    if seconds < _HOUR:
        return f"{int(seconds / _MINUTE)}m"
    # A day and a half says more in hours.
    if seconds < 2 * _DAY:
        return f"{int(seconds / _HOUR)}h"
    return f"{int(seconds / _DAY)}d"


def age_text(when: datetime | None, now: datetime) -> str:
    """How long ago that was, in at most four characters; ``?`` if it is unknown."""
    return duration_text(None if when is None else (now - when).total_seconds())


def time_text(when: datetime | None, now: datetime) -> str:
    """
    A time as a person says it, absolute and relative: ``03:12:44 (12m ago)``; with the date if it was another day.
    """
    if when is None:
        return UNKNOWN
    local, today = when.astimezone(), now.astimezone()
    clock = f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M:%S}"
    return f"{clock} ({age_text(when, now)} ago)"


_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*#@"


def sparkline(values: tuple[float, ...] | list[float], width: int, *, ascii_only: bool = False) -> str:
    """
    The course of ``values`` in ``width`` characters; a space stands where there was nothing.

    >>> sparkline([0, 1, 4, 8], 4), sparkline([0, 1, 4, 8], 4, ascii_only=True)
    (' ▁▄█', ' _=@')
    """
    if width < 1 or not values:
        return ""
    steps = _ASCII if ascii_only else _BLOCKS
    width = min(width, len(values))
    # Equal shares of the values, the oldest first.
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    sums = [sum(values[start:end]) for start, end in pairwise(edges)]
    top = max(sums)
    return "".join(" " if value <= 0 else steps[max(int(value / top * len(steps)) - 1, 0)] for value in sums)
