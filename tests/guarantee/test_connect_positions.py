"""
Exactly-once by source position, over Spark Connect: what test_positions.py says of a classic session.

Covers: sink.identity.from_server, sink.positions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from connect_server import ConnectServer
from guarantee.test_positions import (  # noqa: F401 (pytest finds them here)
    target,
    test_a_new_checkpoint_may_start_before_the_old_end,
    test_a_row_without_a_position_is_refused,
    test_a_start_past_the_stored_end_is_refused,
    test_a_topic_that_goes_back_is_refused,
    test_an_older_copy_of_the_checkpoint_goes_on,
    test_many_rows_of_a_message_and_many_tasks_of_a_partition,
)
from support.fixtures.spark import spark_settings

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with Spark's Kafka connector."""
    settings = spark_settings(tmp_path_factory.mktemp("connect"), kafka=True)
    with ConnectServer(settings, Path(__file__).parents[1]) as running:
        yield running


@pytest.fixture
def spark(server, client):
    """A client's session."""
    return client(server)


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test():
    """The client's fixture sees to it."""
