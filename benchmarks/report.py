"""
Say what the times mean, and whether the goals were reached.

Pure. Invariant: contenders are compared within a round, where the machine was the same for both, and only then over
rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

Rounds = Sequence[Sequence[float]]
"""Times in ms of one contender with one load: a sequence for each round."""


@dataclass(frozen=True)
class Figures:
    """Times in ms over all rounds."""

    median: float
    p10: float
    p90: float


@dataclass(frozen=True)
class Goal:
    """``contender`` takes at most ``at_most`` times as long as ``baseline`` under ``load`` (all by name)."""

    load: str
    contender: str
    baseline: str
    at_most: float

    def __str__(self) -> str:
        if self.at_most < 1:
            return f"{self.load}: {self.contender} is at least {1 / self.at_most:g} times as fast as {self.baseline}"
        return f"{self.load}: {self.contender} takes at most {self.at_most:g} x {self.baseline}"


@dataclass(frozen=True)
class Outcome:
    """A goal as text, what was measured against it, and whether it was reached."""

    goal: str
    measured: str
    met: bool


def figures(rounds: Rounds) -> Figures:
    """Median and spread of all times; there must be at least two."""
    times = [time for of_round in rounds for time in of_round]
    tenths = quantiles(times, n=10, method="inclusive")
    return Figures(median(times), tenths[0], tenths[-1])


def ratios(contender: Rounds, baseline: Rounds) -> list[float]:
    """The contender's median to the baseline's, round by round."""
    return [median(own) / median(theirs) for own, theirs in zip(contender, baseline, strict=True)]


def slower_in_every_round(after: Rounds, before: Rounds, times: float) -> bool:
    """Whether ``after`` took at least ``times`` as long as ``before``, whatever the machine did meanwhile."""
    return min(ratios(after, before)) >= times


def judge(goal: Goal, times: Mapping[str, Rounds]) -> Outcome:
    """Compare the median of the rounds' ratios with the goal; ``times`` are those of its load, by contender."""
    found = ratios(times[goal.contender], times[goal.baseline])
    middle = median(found)
    measured = f"{middle:.2f} x (rounds {min(found):.2f} to {max(found):.2f})"
    if goal.at_most < 1:
        measured = f"{1 / middle:.2f} times (rounds {1 / max(found):.2f} to {1 / min(found):.2f})"
    return Outcome(str(goal), measured, middle <= goal.at_most)


def judge_memory(load: str, way_in: str, peak_bytes: int, limit_bytes: int) -> Outcome:
    """Compare the peak of the driver-side Python processes that take part in every batch with the limit."""
    goal = f"{load} in one batch, {way_in}: driver-side Python stays under {limit_bytes / 1e6:,.0f} MB"
    return Outcome(goal, f"{peak_bytes / 1e6:,.0f} MB", peak_bytes < limit_bytes)
