"""A primary and its standby, of the major version that is tested."""

from __future__ import annotations

from contextlib import AbstractContextManager

from postgres_binaries import bin_dir
from replicated_postgres import ReplicatedPostgres, replicated
from support.fixtures.postgres import postgres_major


def two_servers(*, synchronous: bool = False) -> AbstractContextManager[tuple[ReplicatedPostgres, ReplicatedPostgres]]:
    """A primary and its standby, as long as the block runs."""
    return replicated(synchronous=synchronous, bin_dir=bin_dir(postgres_major()))
