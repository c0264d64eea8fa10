"""Numbers in few characters, and times in the past, as people write and read them."""

from __future__ import annotations

import doctest
import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.status import figures
from pgonce.offsets_store.status.figures import count_text, parse_since, parse_span

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


@pytest.fixture
def in_berlin(monkeypatch):
    """Be in Berlin, in the afternoon of the day after the clocks went back."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield datetime(2026, 10, 25, 14, 30, tzinfo=timezone(timedelta(hours=1)))
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90s", "2026-10-25T13:28:30+00:00"),
        ("5m", "2026-10-25T13:25:00+00:00"),
        (" 3h ", "2026-10-25T10:30:00+00:00"),
        ("2d", "2026-10-23T13:30:00+00:00"),
        ("2026-10-24", "2026-10-23T22:00:00+00:00"),
        ("2026-10-24 03:00", "2026-10-24T01:00:00+00:00"),
        ("2026-10-24T03:00:00Z", "2026-10-24T03:00:00+00:00"),
    ],
)
def test_a_span_or_a_time_is_taken_as_people_mean_it(in_berlin, text, meant):
    """A span counts back from now, and a date is one of this machine's clock."""
    assert parse_since(text, in_berlin) == datetime.fromisoformat(meant)


@pytest.mark.parametrize("text", ["", "3", "h", "3w", "03:00", "yesterday", "2026-13-01", "-3h", "999999999d", "٣h"])
def test_what_is_no_time(in_berlin, text):
    """The error names the forms that can be read."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION.*90s, 5m"):
        parse_since(text, in_berlin)


def test_a_time_in_the_future_is_refused(in_berlin):
    """Nothing has been seen since then."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION.*future"):
        parse_since("2026-10-26", in_berlin)


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5 minutes", "٣m"])
def test_a_span_of_time_needs_a_number_and_a_unit(text):
    """A number alone has no unit."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION.*90s, 5m, 2h or 1d"):
        parse_span(text)
