"""How long the same is tried again: pauses that grow, up to a bound that begins with the first error."""

from __future__ import annotations

import time

import pytest

from pgonce.offsets_store.postgres.backoff import Backoff


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still, until it is set forward."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def pauses(backoff, clock):
    """All pauses, each of them waited for."""
    while (pause := backoff.next_pause()) is not None:
        yield pause
        clock[0] += pause


def test_pauses_grow_and_end_in_time(clock):
    """From a tenth of a second to five, each shortened by chance to no less than half; none ends after the bound."""
    began = clock[0]
    found = list(pauses(Backoff(120), clock))
    longest = [min(0.1 * 2**n, 5) for n in range(len(found))]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(found, longest, strict=True))
    assert began + 115 <= clock[0] <= began + 120


def test_work_that_takes_long_uses_nothing_up(clock):
    """The time counts from the first error, not from the beginning of the work."""
    backoff = Backoff(1)
    clock[0] += 3600
    assert backoff.next_pause() is not None
    clock[0] += 1
    assert backoff.next_pause() is None


def test_without_any_time_nothing_is_tried_again():
    """A bound of 0 is one try."""
    assert Backoff(0).next_pause() is None
