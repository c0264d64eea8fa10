"""
A server whose host can vanish: the embedded Postgres over TCP, and a black hole for its packets.

Runs in: pytest, as root with nftables; elsewhere its tests are left out. Invariant: a server of its own, whichever the
other tests use, because only a server of this machine can be cut off.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from black_hole import BlackHole, Lost, refuse_without_tools
from embedded_postgres import EmbeddedPostgres
from fix_no_skips import unavailable
from fix_postgres import _major
from maven import MissingTool
from postgres_binaries import bin_dir


class Vanishing:
    """One database of a server that can be cut off from its clients."""

    def __init__(self, server: EmbeddedPostgres, database: str) -> None:
        self.server = server
        self.database = database
        self.port = server.port
        self.observed_at = server.uri(database)
        """The way through the Unix socket, which no black hole swallows."""

    def url(self, *, seconds: int = 2, **parameters: str) -> str:
        """The way over TCP, on which a line without an answer is dead after so many seconds."""
        bounds = {
            "connect_timeout": "2",
            "keepalives_idle": "1",
            "keepalives_interval": "1",
            "keepalives_count": str(seconds - 1),
            "tcp_user_timeout": str(seconds * 1000),
            **parameters,
        }
        return f"{self.server.tcp_uri(self.database)}?{'&'.join(f'{name}={value}' for name, value in bounds.items())}"

    def black_hole(self, lost: Lost = "both") -> BlackHole:
        """Its packets are lost, from entering the block to leaving it."""
        return BlackHole(self.port, lost)


@pytest.fixture(scope="session")
def server_to_vanish() -> Iterator[EmbeddedPostgres]:
    """A server for all tests of this kind."""
    try:
        refuse_without_tools()
        with EmbeddedPostgres(bin_dir=bin_dir(_major())) as server:
            yield server
    except MissingTool as missing:
        unavailable(str(missing))


@pytest.fixture
def vanishing(server_to_vanish: EmbeddedPostgres) -> Iterator[Vanishing]:
    """A fresh database on a server that can vanish."""
    name = f"vanishing_{secrets.token_hex(4)}"
    with psycopg.connect(server_to_vanish.uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield Vanishing(server_to_vanish, name)
    with psycopg.connect(server_to_vanish.uri(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
