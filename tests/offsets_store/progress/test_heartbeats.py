"""Which runs are alive, as one listener says it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.ledger_history import QUERY, RUN

from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.progress import heartbeats
from pgonce.offsets_store.progress.heartbeats import BEAT_SECONDS, Heartbeats


@pytest.fixture
def clock():
    """A clock that a test sets."""
    return SimpleNamespace(now=100.0)


@pytest.fixture
def beats(clock):
    """What a listener says, by that clock."""
    return Heartbeats(lambda: clock.now)


@pytest.fixture
def say(url, beats):
    """Store what is to be said."""

    def say():
        with writing(url) as connection:
            runs = beats.store_in_tx(connection)
        beats.forget_ended(runs)

    return say


def rows(observer, columns):
    """The stored runs, the oldest first."""
    return observer.execute(f"SELECT {columns} FROM pgonce.heartbeats ORDER BY started_at".encode()).fetchall()


class TestWhen:
    def test_every_quarter_of_a_minute(self, beats, clock, say):
        """One transaction for all runs, however many events come in between."""
        beats.start(QUERY, RUN, "orders")
        beats.start("another", "run", None)
        assert beats.is_due()
        say()
        for _ in range(10):
            beats.progress(QUERY, RUN, "orders", has_rows=True)
            clock.now += 1
            assert not beats.is_due()
        clock.now += BEAT_SECONDS - 10
        assert beats.is_due()

    def test_starts_and_ends_at_once(self, beats, clock, say):
        """A run that ends is said soon, so that a driver may end; many together are said at once."""
        beats.start(QUERY, RUN, "orders")
        say()
        beats.end(QUERY, RUN, None)
        assert not beats.is_due()
        assert beats.is_due(at_last=True)
        clock.now += 1
        assert beats.is_due()
        say()
        clock.now += BEAT_SECONDS
        assert not beats.is_due()

    def test_what_could_not_be_stored_waits(self, beats, clock):
        """After an error nothing is tried for a while, and then all of it."""
        beats.start(QUERY, RUN, "orders")
        beats.wait(BEAT_SECONDS)
        assert not beats.is_due()
        clock.now += BEAT_SECONDS
        assert beats.is_due()

    def test_a_listener_that_hears_no_query_says_nothing(self, beats):
        """A listener that hears no query says nothing."""
        assert not beats.is_due(at_last=True)


class TestWhat:
    def test_a_run_is_idle_until_it_has_rows(self, beats, clock, say, observer):
        """idle_since is the first time that Spark found nothing to read, after the last rows."""
        beats.start(QUERY, RUN, "orders")
        beats.idle(QUERY, RUN)
        clock.now += 60
        beats.idle(QUERY, RUN)
        beats.progress(QUERY, RUN, "orders", has_rows=False)
        say()
        ((name, idle_seconds, ended_at),) = rows(
            observer, "query_name, extract(epoch FROM heard_at - idle_since)::int, ended_at"
        )
        assert (name, idle_seconds, ended_at) == ("orders", 60, None)
        beats.progress(QUERY, RUN, "orders", has_rows=True)
        say()
        assert rows(observer, "idle_since") == [(None,)]

    def test_a_run_that_has_ended(self, beats, clock, say, observer):
        """It says when and by what, once; it is not said to be alive again."""
        beats.start(QUERY, RUN, "orders")
        clock.now += 5
        beats.end(QUERY, RUN, "LOCKED")
        clock.now += 2
        say()
        found = rows(observer, "ended_by, extract(epoch FROM ended_at - started_at)::int, heard_at >= ended_at")
        assert found == [("LOCKED", 5, True)]
        assert not beats.living()
        assert not beats.is_due()

    def test_a_listener_that_came_late(self, beats, say, observer):
        """A run that started before is heard from its first event on."""
        beats.progress(QUERY, RUN, "orders", has_rows=True)
        say()
        assert rows(observer, "query_id, run_id, query_name") == [(QUERY, RUN, "orders")]

    def test_the_newest_runs_stay(self, beats, clock, say, observer, monkeypatch):
        """Old runs of a query go, and not those of others."""
        monkeypatch.setattr(heartbeats, "KEPT_RUNS", 3)
        beats.start("another", "one", None)
        for number in range(6):
            clock.now += 1
            beats.start(QUERY, str(number), None)
            beats.end(QUERY, str(number), None)
            say()
        assert rows(observer, "run_id") == [("one",), ("3",), ("4",), ("5",)]
