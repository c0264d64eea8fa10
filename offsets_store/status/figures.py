"""
Show numbers and times in few characters or in JSON, and read time spans as people write them.

Pure: runs in the commands of ``pgonce``, among them ``pgonce serve``. Invariant: what is unknown reads ``?``, and
never 0.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from ..errors import bad_option

UNKNOWN = "?"
_THOUSAND = 1000
# From this rate on, tenths of rows say nothing.
_TENTHS = 10
_LEAST_RATE = 0.1


def count_text(count: float | None) -> str:
    """
    A number in at most five characters.

    >>> count_text(0), count_text(999), count_text(12_345), count_text(4_500_000), count_text(None)
    ('0', '999', '12.3k', '4.5M', '?')
    """
    if count is None:
        return UNKNOWN
    # By what is shown: 999.6 is 1.0k and not 1000, which would be a character more.
    if round(count) < _THOUSAND:
        return f"{count:.0f}" if count >= 1 or count == 0 else "<1"
    for unit in ("k", "M", "G", "T"):
        count /= _THOUSAND
        if round(count) < _THOUSAND:
            return f"{count:.1f}{unit}" if round(count, 1) < _THOUSAND / 10 else f"{count:.0f}{unit}"
    return f"{count:.0f}T"


def rate_text(rows_per_second: float | None) -> str:
    """
    Rows a second, in at most five characters.

    >>> rate_text(0), rate_text(0.02), rate_text(1.25), rate_text(14_200), rate_text(None)
    ('0', '<0.1', '1.2', '14.2k', '?')
    """
    if rows_per_second is None or rows_per_second == 0 or round(rows_per_second, 1) >= _TENTHS:
        return count_text(rows_per_second)
    return f"{rows_per_second:.1f}" if rows_per_second >= _LEAST_RATE else "<0.1"


_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": _MINUTE, "h": _HOUR, "d": _DAY}


def parse_span(text: str) -> float:
    """
    A time span in seconds.

    >>> parse_span("5m"), parse_span(" 1.5h ")
    (300.0, 5400.0)

    :raises ConfigurationError: BAD_OPTION, for another form.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise bad_option("BAD_OPTION", f"{text[:50]!r} is not a time span.", "Write 90s, 5m, 2h or 1d.")
    return float(found[1]) * _SECONDS[found[2]]


def time_ago(span: str) -> datetime:
    """
    The time that was so long ago.

    :raises ConfigurationError: BAD_OPTION, if it is no time span, or one that is longer than there are dates.
    """
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=parse_span(span))
    except OverflowError:
        raise bad_option("BAD_OPTION", f"{span[:50]!r} is too long.", "Write 90s, 5m, 2h or 1d.") from None


# Below this many seconds, tenths are shown.
_TENTHS_OF_SECONDS = 9.95


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


def took_text(seconds: float | None) -> str:
    """
    How long something short took, in at most five characters.

    >>> took_text(0.0341), took_text(0.0004), took_text(2.34), took_text(59), took_text(200), took_text(None)
    ('34ms', '<1ms', '2.3s', '59s', '3m', '?')
    """
    if seconds is None or seconds >= _TENTHS_OF_SECONDS:
        return duration_text(seconds)
    if seconds >= 1:
        return f"{seconds:.1f}s"
    return f"{seconds * 1000:.0f}ms" if seconds >= 0.0005 else "<1ms"  # noqa: PLR2004 (what rounds to one)


def times_text(count: int | None) -> str:
    """How often."""
    return "1 time" if count == 1 else f"{count} times"


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
