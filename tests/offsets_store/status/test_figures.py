"""Numbers and times in few characters, and time spans as people write them."""

from __future__ import annotations

import doctest
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.status import figures
from pgonce.offsets_store.status.figures import count_text, parse_span

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=timezone.utc)


def test_the_examples_in_its_docstrings_hold():
    """The docstrings say what numbers and times look like."""
    assert doctest.testmod(figures).failed == 0


def test_times_of_other_days_have_their_date():
    """A time of today has no date, because it is read at a glance."""
    assert figures.time_text(NOW - timedelta(minutes=2), NOW).endswith(" (2m ago)")
    assert len(figures.time_text(NOW - timedelta(minutes=2), NOW).split()[0]) == len("11:58:00")
    assert figures.time_text(NOW - timedelta(days=3), NOW).startswith("2026-11-23 ")
    assert figures.time_text(None, NOW) == figures.age_text(None, NOW) == "?"


def test_a_clock_that_is_behind():
    """A time that seems to lie ahead is now."""
    assert figures.age_text(NOW + timedelta(seconds=3), NOW) == "0s"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"), (0.4, "<1"), (1, "1"), (999.4, "999"), (999.6, "1.0k"), (12_345, "12.3k"), (99_949, "99.9k"),
        (99_960, "100k"), (999_600, "1.0M"), (4_500_000, "4.5M"), (None, "?"),
    ],
)  # fmt: skip
def test_a_number_goes_over_to_the_next_unit_where_it_is_rounded_up(count, shown):
    """What is shown never has a character more than the column."""
    assert count_text(count) == shown


@settings(deadline=None)
@given(st.floats(0, 9.99e14))
def test_at_most_five_characters(count):
    """Up to hundreds of trillions."""
    assert len(count_text(count)) <= 5


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "3w", "5 minutes", "٣m", "03:00", "2026-11-26"])
def test_a_span_of_time_needs_a_number_and_a_unit(text):
    """A number alone has no unit."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION.*90s, 5m, 2h or 1d"):
        parse_span(text)
