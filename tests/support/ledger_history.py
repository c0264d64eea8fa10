"""Batches in the ledger without Spark: the very functions that the commit uses, and no rows."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import insert
from support.batches import make_batch

from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger import record
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.lock import lock_writer_in_tx
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published, WrittenTables
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.ledger.tables import failures, progress
from pgonce.offsets_store.verdict.facts import Batch

QUERY = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
RUN = "aaaaaaaa-1111-4111-8111-111111111111"
# When events were heard in each database, which is one of each test.
_heard: dict[str, datetime] = {}
# Where a query over a topic t ends.
KAFKA = {"0": {"t": {"0": 10, "1": 20}}}


def publish(
    url: str,
    batch_id: int,
    end: Any,
    *,
    rows: int = 10,
    transport: str = "inline",
    counts: dict[str, int] | None = None,
    tables: dict[str, int] | None = None,
    **identity: Any,
) -> Batch:
    """Record one batch as a commit does; `identity` overrides the batch's fields."""
    ensure_ledger(url)
    fields = {
        "query_id": QUERY,
        "sink_name": "public.orders",
        "run_id": RUN,
        "query_name": "orders",
        "checkpoint_location": "/checkpoints/orders",
        "start": None,
        "offset_log": None,
        "previous_offset_log": None,
        **identity,
    }
    batch = make_batch(batch_id, end=end, **fields)
    with writing(url) as connection:
        locked = lock_writer_in_tx(connection, batch, None)
        published = Published(rows, transport, counts=counts, tables=tables)
        record.record_batch_in_tx(
            connection, locked, batch, published, WrittenTables(), stored=None, retain_batches=100
        )
    return batch


def replay(url: str, batch: Batch) -> None:
    """Record that a batch was skipped."""
    with writing(url) as connection:
        record.record_replay_in_tx(connection, lock_writer_in_tx(connection, batch, None), batch)


def take_over(url: str, batch: Batch, replaces: str) -> None:
    """Record that the batch's query took the place of another."""
    with writing(url) as connection:
        locked = lock_writer_in_tx(connection, batch, replaces)
        record.replace_writer_in_tx(connection, locked, batch, replaces)


def heard_at(url: str) -> datetime:
    """When events of this database were heard: not long ago, because what is old says nothing about the lag of now."""
    return _heard.setdefault(url, datetime.now(timezone.utc).replace(microsecond=0) - timedelta(seconds=30))


def hear(
    url: str,
    latest: Any,
    *,
    query_id: str = QUERY,
    batch_id: int = 0,
    seconds: float = 0,
    disagreement: str | None = None,
) -> None:
    """Store a progress row as the listener does."""
    row = {
        "query_id": query_id,
        "run_id": RUN,
        "batch_id": batch_id,
        "progress_at": heard_at(url) + timedelta(seconds=seconds),
        "num_input_rows": 1,
        "latest_offsets": latest,
        "disagreement": disagreement,
    }
    with writing(url) as connection:
        connection.execute(insert(progress).values(row))


def fail(
    url: str,
    code: str = "NOT_NULL_VIOLATION",
    message: str = "Postgres refused the batch.",
    *,
    seconds: float = 0,
    **fields: Any,
) -> None:
    """A failure of ``seconds`` ago, as the commit of batch 4 notes it; ``fields`` overrides its fields."""
    at = datetime.now(timezone.utc) - timedelta(seconds=seconds)
    known = {"query_id": QUERY, "sink_name": "public.orders", "run_id": RUN, "batch_id": 4, "seen_by": "commit"}
    row = {**known, "code": code, "message": message, "first_at": at, "last_at": at, **fields}
    with writing(url) as connection:
        connection.execute(insert(failures).values(row))


def publish_job(url: str, key: str) -> Job:
    """Publish, or skip, a batch job of 7 rows with this key."""
    job = Job(key, uuid.uuid4())
    work = Work(lambda _: "public.orders", lambda *_: Published(7, "inline", targets={"public.orders": 1}))
    commit_job(CommitSettings(url, lock_timeout=2, retry_timeout=0), job, work)
    return job
