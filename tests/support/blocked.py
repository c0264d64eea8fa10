"""
Wait until a session waits for another one's lock, for a standby, or until the log says something.

Runs in: pytest. Invariant: it only looks, and gives up after a minute.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from support.fixtures.driver import wait_until


def wait_for_blocked(looking: psycopg.Connection, holder: psycopg.Connection) -> None:
    """Until some session waits for a lock that this connection's session holds."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    assert wait_until(lambda: looking.execute(query, [holder.info.backend_pid]).fetchone() != (0,), seconds=60)


def wait_until_blocked(looking: psycopg.Connection, waiting: psycopg.Connection) -> None:
    """Until this connection's session waits for a lock."""
    query = "SELECT cardinality(pg_blocking_pids(%s))"
    assert wait_until(lambda: looking.execute(query, [waiting.info.backend_pid]).fetchone() != (0,), seconds=60)


def wait_for_queue(looking: psycopg.Connection) -> None:
    """Until some session waits for one that waits itself, at a gate for example."""
    query = (
        "SELECT count(*) FROM pg_stat_activity AS a, unnest(pg_blocking_pids(a.pid)) AS b(pid) "
        "JOIN pg_stat_activity AS o USING (pid) WHERE cardinality(pg_blocking_pids(o.pid)) > 0"
    )
    assert wait_until(lambda: looking.execute(query).fetchone() != (0,), seconds=60)


def wait_for_standby(url: str, *running: Future[Any]) -> None:
    """Until some session's COMMIT waits for a synchronous standby, while all that waits for it is under way."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(url, autocommit=True) as looking:
        assert wait_until(
            lambda: looking.execute(query).fetchone() != (0,) or any(one.done() for one in running), seconds=60
        )
    assert [one.exception() for one in running if one.done()] == []


def wait_for_line(caplog: pytest.LogCaptureFixture, text: str, *running: Future[Any]) -> None:
    """Until the log says ``text``, while all that waits for it is under way."""
    assert wait_until(lambda: text in caplog.text or any(one.done() for one in running), seconds=60), caplog.text
    assert [one.exception() for one in running if one.done()] == [], caplog.text
