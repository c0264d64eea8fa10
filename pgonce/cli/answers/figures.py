"""
Show numbers in few characters, and the course of numbers in one line, for tables that a person looks over.

Pure: runs in the command ``pgonce``. Invariant: what is unknown reads ``?``, and never 0.
"""

from __future__ import annotations

from itertools import pairwise

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
