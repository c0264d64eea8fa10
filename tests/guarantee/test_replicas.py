"""
Postgres fails over, or is switched over, under whole queries.

The source is rate-micro-batch: batch N has the rows 10*N to 10*N+9, whenever it is planned. Two real servers change
their parts: the old primary is rewound, and follows the new one.
"""

from __future__ import annotations

import psycopg
import pytest
from replicated_postgres import url_of
from support.audit import replays, wrong_ledger
from support.fixtures.driver import wait_until
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish
from support.two_servers import two_servers
from support.ways_in import WAYS, Sink

from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.recover import recover_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Staged rows are not on standbys: such a batch fails and is run again, as it does after a crash.
_WAYS = [way for way in WAYS if way.name in ("inline", "writer_append")]


@pytest.fixture
def servers(request):
    """A primary and its standby, for one test: it changes their parts."""
    with two_servers(synchronous=getattr(request, "param", False)) as both:
        with psycopg.connect(both[0].uri(), autocommit=True) as connection:
            connection.execute("CREATE TABLE events (value bigint, timestamp timestamptz)")
        yield both


@pytest.fixture(params=_WAYS, ids=lambda way: way.name)
def stream(request, spark, servers, checkpoint):
    """The query, ready to start; its url names both servers."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("startTimestamp", 1000).load()
    return request.param.append(frame, Sink(url_of(*servers, target_session_attrs="read-write"), "events", checkpoint))


def values(server):
    """What is in a server's table, in order."""
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM events ORDER BY value").fetchall()]


def reach(query, server, count):
    """Wait until a server's table has so many rows more than now."""
    wanted = len(values(server)) + count
    wait_until(lambda: not query.isActive or len(values(server)) >= wanted, PATIENCE_SECONDS)
    assert query.isActive, str(query.exception())
    assert len(values(server)) >= wanted


def assert_whole(server, checkpoint):
    """The table is a beginning of the source, row by row, and the ledger agrees with the checkpoint."""
    found = values(server)
    assert found == list(range(len(found)))
    with psycopg.connect(server.uri(), autocommit=True) as observer:
        assert wrong_ledger(observer, checkpoint) == []


def test_a_failover_that_loses_the_last_commits(stream, servers, checkpoint):
    """Rows and ledger go back together: the next batch is refused, and after `recover` the stream goes on, whole."""
    one, two = servers
    url = url_of(one, two, target_session_attrs="read-write")
    for _ in range(3):
        finish(stream)
    two.wait_for(one)
    two.hear_nothing()
    for _ in range(2):
        finish(stream)
    one.halt("sigkill")
    two.promote()
    assert values(two) == list(range(30))
    assert_refused(stream, "GAP")
    assert examine(checkpoint, url).finding is Finding.RECOVERABLE
    assert recover_checkpoint(checkpoint, url, quiet_seconds=0).stands_at == 2
    for _ in range(3):
        finish(stream)
    assert values(two) == list(range(60))
    assert_whole(two, checkpoint)
    # The old primary has two batches that nobody else has; it gives them up, and becomes a copy.
    one.follow(two)
    one.wait_for(two)
    assert values(one) == list(range(60))


def test_a_switchover_in_mid_stream(stream, servers, checkpoint):
    """The primary hands over in order, and later takes over again: the query waits, and goes on, with nothing lost."""
    one, two = servers
    query = stream.start()
    reach(query, one, 30)
    one.halt("fast")
    two.promote()
    one.follow(two)
    reach(query, two, 30)
    two.halt("fast")
    one.promote()
    two.follow(one)
    reach(query, one, 30)
    query.stop()
    # A stop may have come between COMMIT and Spark's own record of the batch.
    finish(stream)
    assert_whole(one, checkpoint)
    two.wait_for(one)
    assert values(two) == values(one)


@pytest.mark.parametrize("servers", [True], ids=["synchronous"], indirect=True)
def test_a_crash_of_a_primary_with_a_synchronous_standby(stream, servers, checkpoint):
    """What COMMIT has answered is on the standby: the query goes on there by itself, with nothing lost or doubled."""
    one, two = servers
    query = stream.start()
    reach(query, one, 30)
    one.halt("sigkill")
    two.promote()
    reach(query, two, 30)
    query.stop()
    # A stop may have come between COMMIT and Spark's own record of the batch.
    finish(stream)
    assert_whole(two, checkpoint)
    with psycopg.connect(two.uri()) as observer:
        assert len(replays(observer, checkpoint)) <= 1
