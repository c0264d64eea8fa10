"""Does the benchmark's report compare what it should, and does it say so where a goal was missed?"""

import pytest
from support.benchmark_modules import benchmark_module


@pytest.fixture(scope="module")
def report():
    """The benchmark's own module."""
    with benchmark_module("report") as module:
        yield module


def test_figures_are_of_all_rounds(report):
    """Median and spread count every time of every round once, with tenths between two times interpolated."""
    found = report.figures([[10, 20, 30], [40, 50, 60, 70, 80, 90, 100, 110]])
    assert (found.p10, found.median, found.p90) == (20, 60, 100)


def test_ratios_compare_within_a_round(report):
    """A round in which the whole machine was slow changes no ratio."""
    contender, baseline = [[11, 12, 13], [110, 120, 130]], [[9, 10, 11], [90, 100, 110]]
    assert report.ratios(contender, baseline) == [1.2, 1.2]


def test_ratios_need_the_same_rounds(report):
    """A contender that is short of a round is not compared with another's rounds."""
    with pytest.raises(ValueError, match="zip"):
        report.ratios([[10]], [[10], [20]])


@pytest.mark.parametrize(("times", "met"), [([[13], [13], [26]], True), ([[13.1], [13.1], [10]], False)])
def test_goal_is_judged_by_the_median_round(report, times, met):
    """A goal is met at its limit, and missed above it, whatever a single odd round says."""
    goal = report.Goal("a load", "ours", "theirs", at_most=1.3)
    outcome = report.judge(goal, {"ours": times, "theirs": [[10], [10], [10]]})
    assert outcome.met is met
    assert outcome.goal == "a load: ours takes at most 1.3 x theirs"


def test_a_goal_of_speed_is_told_as_speed(report):
    """Where a contender should take a third of the time, goal and figure say how many times as fast it is."""
    outcome = report.judge(report.Goal("a load", "ours", "theirs", at_most=1 / 3), {"ours": [[2]], "theirs": [[5]]})
    assert outcome.goal == "a load: ours is at least 3 times as fast as theirs"
    assert outcome.measured.startswith("2.50 times")
    assert not outcome.met


@pytest.mark.parametrize(("peak", "met"), [(399_999_999, True), (400_000_000, False)])
def test_memory_must_stay_under_the_limit(report, peak, met):
    """A peak that reaches the limit misses the goal."""
    assert report.judge_memory("5,000,000 rows", "staged", peak, 400_000_000).met is met
