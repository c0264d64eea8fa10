"""How long the same is tried again: pauses that grow, up to a bound that begins with the first error."""

from __future__ import annotations

import logging
import time
from itertools import pairwise

import psycopg
import pytest

from pgonce.offsets_store.postgres.backoff import Tries


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between tries of work that takes so many seconds and always fails, by a clock of their own."""
    now = 1000.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)

    def fail(tries, takes):
        while True:
            with tries:
                sleep(takes)
                raise psycopg.OperationalError(str(now))

    def found(seconds, takes=0.0):
        ended = []
        tries = Tries(seconds, log=logging.getLogger("pgonce"), trying="", failed=lambda error: error)
        monkeypatch.setattr(tries, "may_pass", lambda _: ended.append(now) or True)
        with pytest.raises(psycopg.OperationalError):
            fail(tries, takes)
        return [after - before - takes for before, after in pairwise(ended)]

    return found


def test_pauses_grow_and_end_in_time(pauses):
    """From a tenth of a second to five, each shortened by chance to no less than half; none ends after the bound."""
    found = pauses(120)
    longest = [min(0.1 * 2**n, 5) for n in range(len(found))]
    assert all(bound / 2 - 1e-6 <= pause <= bound + 1e-6 for pause, bound in zip(found, longest, strict=True))
    assert 115 <= sum(found) <= 120


def test_work_that_takes_long_uses_nothing_up(pauses):
    """The time counts from the first error, not from the beginning of the work."""
    assert len(pauses(1, takes=3600)) == 1


def test_without_any_time_nothing_is_tried_again(pauses):
    """A bound of 0 is one try."""
    assert pauses(0) == []
