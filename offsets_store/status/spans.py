"""
Read time spans as people write them: ``90s``, ``5m``, ``2h``, ``1d``.

Pure: runs in the command line and in ``pgonce serve``.
"""

from __future__ import annotations

import re

from ..errors import bad_option

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str) -> float | None:
    """
    A time span in seconds; None if it has another form.

    >>> seconds_of("5m"), seconds_of("1.5h"), seconds_of("soon")
    (300.0, 5400.0, None)
    """
    found = _SPAN.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] if found else None


def parse_span(text: str) -> float:
    """
    A time span in seconds.

    :raises ConfigurationError: BAD_OPTION, for another form.
    """
    seconds = seconds_of(text)
    if seconds is None:
        raise bad_option("BAD_OPTION", f"{text[:50]!r} is not a time span.", "Write 90s, 5m, 2h or 1d.")
    return seconds
