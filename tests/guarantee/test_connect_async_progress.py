"""
Asynchronous progress tracking and positions over Spark Connect: what is exactly-once there, and what is refused.

Covers: sink.identity.from_server, sink.identity.from_running_query, sink.positions.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from connect_server import ConnectServer
from guarantee.test_connect_decoded import no_query_outlives_its_test, spark  # noqa: F401 (pytest finds them here)
from guarantee.test_positions import (  # noqa: F401 (pytest finds them here)
    target,
    test_an_older_copy_of_the_checkpoint_goes_on,
)
from support.audit import wrong_rows
from support.fixtures.driver import wait_until
from support.fixtures.spark import spark_settings
from support.messages import POSITIONS
from support.patience import PATIENCE_SECONDS
from support.ways_in import WAYS, Sink

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

BY_NAME = {way.name: way for way in WAYS}
BY_POSITION = {"position_columns": ",".join(POSITIONS)}
IN_FOREACH_BATCH = ["writer_append", "function"]
KILLS = 3


@pytest.fixture
def server(tmp_path):
    """A server with Spark's Kafka connector, which a test may kill."""
    with ConnectServer(spark_settings(tmp_path, kafka=True), Path(__file__).parents[1]) as running:
        yield running


@pytest.fixture
def start(url, tmp_path, messages, server, client):
    """
    Start a query at the server: ``start(way, interval, **settings)``, interval in milliseconds.

    The client comes after the server, and so ends before it.
    """
    with psycopg.connect(url) as connection:
        # What carries positions writes them, too; the view has what was sent.
        connection.execute('CREATE TABLE messages (id bigint, text text, topic text, partition int, "offset" bigint)')
        connection.execute("CREATE VIEW arrived AS SELECT id, text FROM messages")

    def begin(way, interval, **settings):
        frame = messages.frame(client(server), "earliest", positions="position_columns" in settings)
        sink = Sink(url, "messages", str(tmp_path / "checkpoint"), settings)
        return (
            BY_NAME[way]
            .append(frame, sink)
            .options(
                asyncProgressTrackingEnabled="true",
                asyncProgressTrackingCheckpointIntervalMs=str(interval),
                _asyncProgressTrackingOverrideSinkSupportCheck="true",
            )
            .trigger(processingTime="0 seconds")
            .start()
        )

    return begin


def wait_for_rows(query, observer, messages):
    """Wait until the table has as many rows as were sent; a query that ends before that has failed."""

    def are_there():
        count = observer.execute("SELECT count(*) FROM messages").fetchone()[0]
        return count >= len(messages.rows) or not query.isActive

    assert wait_until(are_there, PATIENCE_SECONDS), "rows did not come"
    assert query.isActive, query.exception()


@pytest.mark.parametrize("way", IN_FOREACH_BATCH)
def test_a_server_is_killed_while_rows_come(way, start, server, messages, observer):
    """With interval 0 each row comes once."""
    for kill in range(KILLS):
        query = start(way, 0)
        wait_for_rows(query, observer, messages)
        # The kill finds a batch at another moment each time.
        for _ in range(5 + kill):
            messages.send(7)
            wait_until(lambda: False, 0.15)
        server.sigkill()
        server.start()
    messages.send(3)
    query = start(way, 0)
    wait_for_rows(query, observer, messages)
    query.stop()
    assert wrong_rows(observer, "arrived", messages.rows) == []


@pytest.mark.parametrize("settings", [{}, BY_POSITION], ids=["offsets", "positions"])
@pytest.mark.parametrize("way", IN_FOREACH_BATCH)
def test_above_interval_0_foreach_batch_is_refused(way, settings, start, messages, observer):
    """The entry of a batch may never come, so the batch is refused, with nothing of it written."""
    query = start(way, 60_000, **settings)
    wait_for_rows(query, observer, messages)
    published = list(messages.rows)
    messages.send(4)
    assert wait_until(lambda: not query.isActive, PATIENCE_SECONDS)
    assert "[OFFSETS_NOT_FOUND]" in str(query.exception())
    assert wrong_rows(observer, "arrived", published) == []
