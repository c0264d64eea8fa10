"""
Show numbers in few characters, and the course of numbers in one line, for tables that a person looks over.

Pure: runs in the command ``pgonce``. Invariant: what is unknown reads ``?``, and never 0.
"""

from __future__ import annotations

from itertools import pairwise

UNKNOWN = "?"
_THOUSAND = 1000


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
