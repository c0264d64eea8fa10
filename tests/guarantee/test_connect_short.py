"""
By one way in of each kind, a restart over Spark Connect: what test_connect_conformance.py does with all of them.

Covers: sink.identity.from_server, sink.identity.from_server, sink.foreach_batch.arriving_batches.
"""

from __future__ import annotations

import pytest
from guarantee import test_conformance as conformance
from guarantee.test_conformance import sink  # noqa: F401 (fixture)
from support.ways_in import WAYS

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(
    params=[way for way in WAYS if way.name in {"inline", "writer_append", "function"}], ids=lambda w: w.name
)
def way(request):
    """One of each kind."""
    return request.param


@pytest.fixture
def spark(connect):
    """Not the session's classic driver."""
    return connect


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test():
    """The client's fixture sees to it."""


class TestRestarts:
    test_replay_is_skipped_and_counted = conformance.TestRestarts.test_replay_is_skipped_and_counted
