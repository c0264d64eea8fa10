"""When do slow tests run, and which tests stay together?"""

from __future__ import annotations

import pytest
from support.fixtures.order import STAY_TOGETHER, spread, unit_of
from support.named_tests import ROOT


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SSabcdefgh", "SabcSdefgh"),
        ("abcSdefghS", "SabcSdefgh"),
        ("SSSab", "SSSab"),
        ("SS", "SS"),
        ("abc", "abc"),
        ("", ""),
    ],
)
def test_slow_tests_are_spread_over_three_quarters_of_the_others(given, expected):
    """None is lost or doubled, each kind keeps its order, and quick ones come last."""
    assert "".join(spread(list(given), str.isupper)) == expected


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        ("tests/stress/test_soak.py::test_all_batches_were_published", "tests/stress/test_soak.py"),
        ("tests/stress/test_away.py::test_a_query_waits_and_goes_on[inline]", "tests/stress"),
        ("tests/sink/test_spool.py::test_one[a]", "tests/sink/test_spool.py::test_one[a]"),
    ],
)
def test_tests_that_share_an_outage_stay_together(test, unit):
    """One process takes all of them; any other test runs wherever there is time."""
    assert unit_of(test) == unit


@pytest.mark.parametrize("place", STAY_TOGETHER)
def test_what_stays_together_exists(place):
    """A file that was renamed is not silently set up twice."""
    assert (ROOT / place).exists()
