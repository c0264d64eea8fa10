"""
Find when a table had a given number of rows, from the commits that brought them.

Pure. Invariant: a stretch begins and ends with rows that were committed, never with the start of a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """A part of a run, in seconds since 1970."""

    begin: float
    end: float

    @property
    def ms(self) -> int:
        """How long it took."""
        return round((self.end - self.begin) * 1000)


def cut(commits: Sequence[tuple[float, int]], marks: Sequence[int]) -> list[Stretch]:
    """
    From when the table had the rows of one mark until it had those of the next.

    The rows of one transaction are spread evenly over its time, because some hold a fifth of a batch.

    :param commits: when each was, in order, and how many rows it brought.
    :raises ValueError: if the table never had as many rows as the last mark.
    """
    at = [seconds for seconds, _ in commits]
    totals = list(accumulate(rows for _, rows in commits))
    if not totals or totals[-1] < marks[-1]:
        raise ValueError(f"{marks[-1]} rows should be there, but there are {totals[-1] if totals else 0}.")
    times = np.interp(marks, totals, at).tolist()
    return [Stretch(begin, end) for begin, end in pairwise(times)]
