"""
Which Kafka do the tests talk to? A real broker of their own, started once for the session.

Runs in: pytest. Invariant: every test has topics of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from fix_no_skips import unavailable
from kafka_broker import KafkaBroker, MissingTool


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """The session's broker; a test that kills it starts it again."""
    try:
        broker = KafkaBroker()
    except MissingTool as missing:
        unavailable(str(missing))
    with broker:
        yield broker


@pytest.fixture
def topic(kafka: KafkaBroker) -> Callable[..., str]:
    """Make a topic, ``topic(partitions=2)``, and give its name."""

    def make(partitions: int = 1, **settings: str) -> str:
        name = f"pgonce-test-{secrets.token_hex(4)}"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([new], operation_timeout=10)[name].result(timeout=30)
        return name

    return make
