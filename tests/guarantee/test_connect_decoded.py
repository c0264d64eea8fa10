"""
Records of a topic are decoded over Spark Connect as they are without it.

Covers: sink.decoding.record_reader.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from connect_server import ConnectServer
from guarantee.test_decoded_topic import (  # noqa: F401 (pytest finds them here)
    create,
    test_each_record_is_in_the_table_or_aside,
)
from support.fixtures.spark import spark_settings

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with Spark's Kafka connector."""
    settings = spark_settings(tmp_path_factory.mktemp("spark"), kafka=True)
    with ConnectServer(settings, Path(__file__).parents[1]) as running:
        yield running


@pytest.fixture
def spark(server, client):
    """A client's session, for the tests that are imported."""
    return client(server)


@pytest.fixture(autouse=True)
def no_query_outlives_its_test():
    """The client's fixture sees to it."""
