"""Times in the past, as people write them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from pgonce.cli.answers.figures import parse_since


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
        ("03:00", "2026-10-25T02:00:00+00:00"),
        ("14:30", "2026-10-25T13:30:00+00:00"),
        ("14:30:01", "2026-10-24T12:30:01+00:00"),
        ("2026-10-24", "2026-10-23T22:00:00+00:00"),
        ("2026-10-24 03:00", "2026-10-24T01:00:00+00:00"),
        ("2026-10-24T03:00:00Z", "2026-10-24T03:00:00+00:00"),
    ],
)
def test_what_is_meant(in_berlin, text, meant):
    """A span counts back from now, a time of day is the last one here, and a date is one of this machine's clock."""
    assert parse_since(text, in_berlin) == datetime.fromisoformat(meant)


@pytest.mark.parametrize("text", ["", "3", "h", "3w", "25:00", "yesterday", "2026-13-01", "-3h", "999999999d", "٣h"])
def test_what_is_no_time(in_berlin, text):
    """The error names the forms that can be read."""
    with pytest.raises(ValueError, match="is not a time. Write 90s, 5m"):
        parse_since(text, in_berlin)


def test_the_future(in_berlin):
    """Nothing has been seen since then."""
    with pytest.raises(ValueError, match="future"):
        parse_since("2026-10-26", in_berlin)
