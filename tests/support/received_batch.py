"""
What do the tests of the receiver have in common: whose batches are received, and into which table?

Runs in: pytest. Invariant: batch 0 was published without rows, for a writer's first batch is not begun early.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from support.committed_rows import TABLE
from support.ledger_history import QUERY, RUN, publish
from support.stopped_query import entry

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.sink.identity.origin import OffsetLogEntry, Origin

# The transaction begins with the first body.
OPTIONS = {"table": "events", "inlineBytes": "0", "lockTimeout": "1", "retryTimeout": "10"}


@contextmanager
def target(url: str) -> Iterator[psycopg.Connection]:
    """A connection that may do anything, with the target table made and batch 0 published, which had no rows."""
    publish(url, 0, parse_offset_log(entry(0)).offsets, sink_name="public.events", offset_log=entry(0))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


def origin(batch_id: int = 1, run_id: str = RUN) -> Origin:
    """Where the rows of a batch come from."""
    planned = OffsetLogEntry(batch_id, hashlib.sha256(entry(batch_id).encode()).hexdigest())
    return Origin(QUERY, run_id, batch_id, planned)
