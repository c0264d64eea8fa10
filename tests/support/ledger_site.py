"""
A database in which the real commit runs for drivers that are played: its table, its ledger, and a backup of both.

Runs in: pytest. Invariant: what is restored is what was backed up, rows and ledger together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from pyspark.sql import types as t
from sqlalchemy import Connection
from support.fixtures.proxy import Proxy
from support.ledger_model import Plan, Source
from support.sent_rows import arrow_rows
from support.typed_rows import struct_of

from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection, engine_for
from pgonce.offsets_store.verdict.facts import Batch
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN

STRUCT = struct_of({"source": t.StringType(), "position": t.LongType(), "label": t.StringType()})
# What a database is restored with; staging tables are unlogged, so a backup has them empty, or not at all.
KEPT = ("pgonce.writers", "pgonce.batches", "pgonce.runs", "pgonce.replays", "pgonce.positions")


class Vanished(BaseException):
    """The driver's process is gone: nothing of it runs on, and its sockets are closed."""


def encoded(source: Source, plan: Plan, mark: int | None = None) -> bytes:
    """The rows of a batch, as tasks would send or stage them."""
    rows = [(source.name, position, plan.label) for position in plan.positions]
    encoder = CopyEncoder(STRUCT, extra=None if mark is None else {ATTEMPT_COLUMN: mark})
    return encoder.encode(arrow_rows(STRUCT, rows))


def vanish(connection: Connection) -> None:
    """Close a session's line as the end of its process does: without a word."""
    line = socket.socket(fileno=os.dup(driver_connection(connection).pgconn.socket))
    line.shutdown(socket.SHUT_RDWR)
    line.close()
    raise Vanished


@dataclass
class Site:
    """Where the histories take place: one database for all of them."""

    url: str
    proxy: Proxy
    admin: psycopg.Connection
    table: str = "events"

    @property
    def _kept(self) -> list[str]:
        return [*KEPT, f"public.{self.table}"]

    def reset(self) -> None:
        """An empty target and an empty ledger."""
        self.drop_staging_tables()
        self.admin.execute(f"TRUNCATE {', '.join(self._kept)} CASCADE")

    def drop_staging_tables(self) -> None:
        """As a crash of the server or a restore does, more or less: their rows are gone."""
        for (name,) in self.admin.execute("SELECT table_name FROM pgonce.staged_tables").fetchall():
            self.admin.execute(f'DROP TABLE IF EXISTS pgonce_staging."{name}"')
        self.admin.execute("DELETE FROM pgonce.staged_tables")

    def back_up(self) -> None:
        """Put ledger and target aside."""
        with self.admin.transaction():
            for table in self._kept:
                kept = table.replace(".", "_")
                self.admin.execute(f"DROP TABLE IF EXISTS {kept}; CREATE TABLE {kept} AS TABLE {table}")

    def restore(self) -> None:
        """Bring ledger and target back as they were; as with any restore, sessions do not outlive it."""
        self.admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name LIKE 'pgonce %' AND datname = current_database()"
        )
        with self.admin.transaction():
            self.admin.execute(f"TRUNCATE {', '.join(self._kept)} CASCADE")
            for table in self._kept:
                overriding = "OVERRIDING SYSTEM VALUE" if table == "pgonce.writers" else ""
                self.admin.execute(f"INSERT INTO {table} {overriding} SELECT * FROM {table.replace('.', '_')}")
        self.drop_staging_tables()

    def rows(self, query: str, *arguments: Any) -> list[Any]:
        """What a query answers."""
        return self.admin.execute(query, arguments or None).fetchall()


def hooked(work: Work, hook: Callable[[Connection], None]) -> Work:
    """The same work, with something at its end, inside the transaction."""

    def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
        published = work.publish(connection, batch, stored)
        hook(connection)
        return published

    return replace(work, publish=publish)


@contextmanager
def site_at(
    url: str, proxy: Proxy, table: str = "events", columns: str = "source text, position bigint, label text"
) -> Iterator[Site]:
    """A database with a ledger and a table, and a line to it that can be cut."""
    ensure_ledger(url)
    with psycopg.connect(url, autocommit=True, application_name="observer") as admin:
        admin.execute(f"CREATE TABLE {table} ({columns})")
        yield Site(url, proxy, admin, table)
    for one in (url, proxy.url):
        engine_for(one).dispose()
