"""
What if a pooler stands between? Real PgBouncers before the test's database.

Runs in: pytest. Invariant: where there is no PgBouncer, the test is skipped with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fix_no_skips import unavailable
from fix_postgres import PostgresServer
from maven import MissingTool
from pgbouncer import PgBouncer, PoolMode


@pytest.fixture
def pgbouncer(postgres_server: PostgresServer) -> Iterator[Callable[..., PgBouncer]]:
    """Start a PgBouncer: ``pgbouncer(mode, server=..., default_pool_size="1")``; all end with the test."""
    with ExitStack() as stack:

        def start(
            mode: PoolMode = "transaction", *, server: dict[str, Any] | None = None, **settings: str
        ) -> PgBouncer:
            try:
                return stack.enter_context(PgBouncer(server or postgres_server.tcp, mode, settings=settings))
            except MissingTool as missing:
                unavailable(str(missing))

        yield start


@pytest.fixture
def pooled_url(pgbouncer: Callable[..., PgBouncer], database: str) -> str:
    """The test's database through a PgBouncer in transaction mode."""
    return pgbouncer().url(database)
