"""
What the tests of the commit have in common: committed rows, batch jobs, and settings.

Runs in: pytest. Invariant: nothing here waits.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
from pyspark.sql import types as t
from sqlalchemy import Connection
from support.batches import make_batch
from support.sent_rows import arrow_rows
from support.typed_rows import struct_of, typed_rows
from support.with_rooms import work_into, write_batch_in_tx

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch, Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagingTable
from pgonce.sink.writing.rows import Rows

TABLE = "CREATE TABLE events (id bigint, name text)"
COLUMNS = {"id": t.LongType(), "name": t.StringType()}
STRUCT = struct_of(COLUMNS)


def rows(*ids: int) -> Rows:
    """Rows with these ids, as tasks would send them."""
    return typed_rows(COLUMNS, [(number, f"n{number}") for number in ids])


def appending(*of: int) -> Work:
    """The work that writes rows with these ids into ``events``."""

    def publish(connection: Connection, _: Batch, __: Any) -> Published:
        write_batch_in_tx(driver_connection(connection), destination("events", "append", (), None), rows(*of))
        return Published(len(of), "test")

    return Work(lambda _: "public.events", publish)


def stage_one(url: str, batch_id: int = 1, retry_timeout: float = 5, lock_timeout: float = 10) -> list[tuple[int, int]]:
    """Stage a row, as a task of the query ``q1`` does; what it may promise."""
    # PySpark 3.5, on which `make matrix` runs, has no data sources written in Python.
    from pgonce.sink.data_source.stager import Stager

    table = StagingTable("q1", "events", "run 1", batch_id)
    rows_of_task = iter([arrow_rows(STRUCT, [(1, "one")])])
    return Stager(url, table, STRUCT, 1, retry_timeout, lock_timeout).stage(rows_of_task)


def job(key: str = "monday", content_hash: str | None = None) -> Job:
    """A run of the batch job with this key."""
    return Job(key, uuid.uuid4(), content_hash)


def writing(
    *of: int, table: str = "events", sink_name: str | None = None, then: Callable[[], object] = lambda: None, **how: Any
) -> Work[None]:
    """The work of a batch job that writes rows with these ids, and then does something more before COMMIT."""
    work = work_into(sink_name, destination(table, **how), rows(*of))

    def publish(connection: Connection, *given: None) -> Published:
        published = work.publish(connection, *given)
        then()
        return published

    return replace(work, publish=publish)


def commit_rows(
    url: str,
    query: str,
    batch_id: int,
    *of: int,
    table: str = "events",
    sink_name: str | None = None,
    run: str = "run",
    remedies: Remedies | None = None,
    pin_table: bool = False,
    **facts: Any,
) -> Verdict:
    """Commit a batch of a query that appends rows with these ids; ``facts`` are fields of the batch."""
    how = settings(url, lock_timeout=10, retry_timeout=0, remedies=remedies or Remedies(), pin_table=pin_table)
    batch = make_batch(batch_id, f"{run} of {query}", query_id=query, **facts)
    return commit_batch(how, batch, work_into(sink_name, destination(table), rows(*of)))


def verdict_or_code(how: CommitSettings, batch: PlannedBatch, work: Work) -> str:
    """Commit a batch: the name of the verdict, or the code of the error."""
    try:
        return commit_batch(how, batch, work).name
    except PgonceError as error:
        return error.code


def ids(admin: psycopg.Connection, table: str = "events") -> list[int]:
    """All ids of the target, in order."""
    return [row[0] for row in admin.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall()]


def settings(url: str, **changes: Any) -> CommitSettings:
    """Settings that give up soon."""
    return CommitSettings(url=url, **{"lock_timeout": 0.3, "retry_timeout": 5, **changes})
