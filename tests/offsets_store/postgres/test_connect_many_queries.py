"""One driver runs any number of queries: those that find no free connection wait, and say why."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.batches import make_batch
from support.blocked import wait_for_line
from support.committed_rows import appending, ids, settings

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import ConfigurationError, PgonceError
from pgonce.offsets_store.postgres.connect import MAX_CONNECTIONS, engine_for

pytestmark = pytest.mark.usefixtures("events")


@pytest.fixture
def at_most(monkeypatch):
    """Bound the connections of this process, to urls that it has not used yet."""
    return lambda most: monkeypatch.setenv(MAX_CONNECTIONS, str(most))


def append(number, meanwhile=lambda: None):
    """The work of a query that writes its number; ``meanwhile`` is what its transaction waits for."""

    def publish(*given):
        meanwhile()
        return appending(number).publish(*given)

    return Work(lambda _: f"sink {number}", publish)


def first_batch(number):
    """Batch 0 of a query of its own."""
    return replace(make_batch(0), query_id=f"q{number}", run_id=f"run of {number}")


def commit_all(url, count):
    """Commit the first batches of so many queries at the same moment."""
    together = threading.Barrier(count, timeout=60)

    def commit(number):
        together.wait()
        return commit_batch(settings(url, lock_timeout=30, retry_timeout=120), first_batch(number), append(number)).name

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(commit, range(count)))


def test_a_commit_needs_one_connection(admin, url, at_most):
    """With one connection for the whole process, the first contacts of several queries follow one another."""
    at_most(1)
    assert commit_all(url, 8) == ["NEW"] * 8
    assert ids(admin) == list(range(8))


def test_who_finds_none_free_waits_and_says_why(admin, url, at_most, monkeypatch, caplog):
    """The bound and its name stand in the log while a commit waits, and in the error when it has waited too long."""
    at_most(1)
    monkeypatch.setattr("pgonce.offsets_store.postgres.connect.FREE_CONNECTION_SECONDS", 0.2)
    holds, goes_on = threading.Event(), threading.Event()

    def hold():
        holds.set()
        assert goes_on.wait(60)

    with ThreadPoolExecutor(2) as pool, caplog.at_level(logging.WARNING, logger="pgonce"):
        holding = pool.submit(commit_batch, settings(url), first_batch(0), append(0, hold))
        assert holds.wait(60)
        says = rf"CONNECTIONS_IN_USE.* 1 .*{MAX_CONNECTIONS}"
        with pytest.raises(PgonceError, match=says):
            commit_batch(settings(url, retry_timeout=0), first_batch(1), append(1))
        waiting = pool.submit(commit_batch, settings(url, retry_timeout=60), first_batch(2), append(2))
        wait_for_line(caplog, "trying again", waiting)
        goes_on.set()
        assert [holding.result().name, waiting.result().name] == ["NEW", "NEW"]
    assert "CONNECTIONS_IN_USE" in caplog.text
    assert ids(admin) == [0, 2]


def test_a_bound_that_is_no_number_is_refused(url, at_most):
    """It is said before anything is written."""
    for given in ("many", "0", "-1"):
        at_most(given)
        with pytest.raises(ConfigurationError, match=f"BAD_OPTION.*{MAX_CONNECTIONS}='{given}'"):
            engine_for(url)
