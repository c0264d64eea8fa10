"""
The suite of test_conformance.py over Spark Connect: a server in a process of its own, and its client in this one.

Covers: sink.identity.from_server, sink.identity.checkpoint_claim, sink.foreach_batch.frame_rows.
"""

from __future__ import annotations

import pytest
from guarantee.test_conformance import (  # noqa: F401 (pytest finds them here)
    TestBehindAPooler,
    TestCheckpoints,
    TestLostConnections,
    TestRestarts,
    TestSeveralWriters,
    TestStatefulQueries,
    sink,
    way,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def spark(connect):
    """Not the session's classic driver."""
    return connect


@pytest.fixture(autouse=True)
def no_query_outlives_its_test():
    """The client's fixture sees to it."""
