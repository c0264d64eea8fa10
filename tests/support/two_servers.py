"""
Give a test a primary and its standby.

Runs in: pytest. Invariant: both are of the major version that is tested; a test that cannot have them is left out, or
fails where everything is required.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from maven import MissingTool
from postgres_binaries import bin_dir
from replicated_postgres import ReplicatedPostgres, replicated
from support.fixtures.postgres import postgres_major
from support.fixtures.skips import unavailable


@contextmanager
def two_servers(*, synchronous: bool = False) -> Iterator[tuple[ReplicatedPostgres, ReplicatedPostgres]]:
    """A primary and its standby, as long as the block runs."""
    try:
        with replicated(synchronous=synchronous, bin_dir=bin_dir(postgres_major())) as both:
            yield both
    except MissingTool as missing:
        unavailable(str(missing))
