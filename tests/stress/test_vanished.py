"""
Postgres's host vanishes under running queries, and comes back: no packet is answered, and none acknowledged.

One outage serves all tests of this module. In its url a line is dead after two seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
import pytest
from support.audit import what_is_wrong
from support.fixtures.black_hole import Vanishing
from support.inbox import Inbox
from support.remote_driver import Remote, RemoteQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_WAYS = ("inline", "staged", "writer_append", "function")


@dataclass(frozen=True)
class Outage:
    """The queries that went through it."""

    remote: Remote
    vanishing: Vanishing
    queries: dict[str, RemoteQuery]

    def tries(self, way: str) -> list[str]:
        """What the log says of the second batch's tries."""
        about = f"batch 1 of query {self.queries[way].query_id}: "
        # After the time, in a Python worker of Spark's.
        return re.findall(rf"^(?:\S+Z )?({re.escape(about)}\w+ again in .*)$", self.remote.output(), re.MULTILINE)


@pytest.fixture(scope="module")
def outage(server_to_vanish, remote, tmp_path_factory):
    """Let the host vanish until every query has noticed, and come back."""
    vanishing = Vanishing(server_to_vanish, "postgres")
    inbox = Inbox(tmp_path_factory.mktemp("vanished") / "inbox")
    inbox.add(10)
    url = vanishing.url()
    queries = {way: remote.query(url, way, "vanished", inbox, retry_timeout=600) for way in _WAYS}
    for query in queries.values():
        query.start()
    for query in queries.values():
        query.wait_for_all_rows()
    found = Outage(remote, vanishing, queries)
    with vanishing.black_hole():
        inbox.add(20)
        for way in _WAYS:
            remote.wait_for(lambda way=way: found.tries(way), f"{way} noticed")
    for query in queries.values():
        query.wait_for_all_rows()
        query.stop()
    return found


@pytest.mark.parametrize("way", _WAYS)
def test_a_query_notices_and_goes_on(way, outage):
    """Whichever process it is (task, commit worker, driver) notices and tries again; no row is lost or doubled."""
    assert outage.tries(way)
    query = outage.queries[way]
    with psycopg.connect(outage.vanishing.observed_at, autocommit=True) as observer:
        assert what_is_wrong(observer, query.table, query.checkpoint, query.inbox.rows) == []
