"""
What the tests of the receiver have in common: batches, and the rows that tasks send.

Runs in: pytest. Invariant: a row is a body of its own, so that a line can be cut between two of them.
"""

from __future__ import annotations

import hashlib

import psycopg
import pyarrow as pa
from support.committed_rows import STRUCT
from support.fixtures.driver import wait_until
from support.ledger_history import QUERY, RUN
from support.stopped_query import entry

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.promise import Promise
from pgonce.sink.data_source.receiver.client import Receiver
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.positions import EncodedRows

# The transaction begins with the first body.
OPTIONS = {"table": "events", "inlineBytes": "0", "lockTimeout": "1", "retryTimeout": "10"}
# Promised of partition 0: two rows of attempt 1.
SENT = Promise("received", {0: (1, 2)})


def origin(batch_id: int = 1, run_id: str = RUN) -> Origin:
    """Where the rows of a batch come from."""
    planned = OffsetLogEntry(batch_id, hashlib.sha256(entry(batch_id).encode()).hexdigest())
    return Origin(QUERY, run_id, batch_id, planned)


def name_of(one: int) -> str:
    """The name in the row with this id: words that stand nowhere else."""
    return f"the name of row {one}"


def body(one: int) -> tuple[EncodedRows, pa.RecordBatch]:
    """A row with this id: encoded, and as it is."""
    row = pa.record_batch({"id": pa.array([one], pa.int64()), "name": pa.array([name_of(one)], pa.string())})
    return EncodedRows(CopyEncoder(STRUCT).encode(row), 1), row


def send(receiver: Receiver, *ids: int, partition_id: int = 0, attempt_id: int = 1, batch_id: int = 1) -> int | None:
    """A task attempt that sends these rows; how many are kept, if any."""
    return receiver.call().send_rows(origin(batch_id), partition_id, attempt_id, map(body, ids)).rows or None


def parcels(receiver: Receiver) -> list[Parcel]:
    """What the task of :data:`SENT` tells the commit."""
    return [Parcel(origin(), 0, 2, received=(1, 2), offer=offered(receiver))]


def copies(target: psycopg.Connection, past: int = -1) -> list[tuple[str]]:
    """The ids of the run's transactions that are in a COPY which has got more bytes than these."""
    return target.execute(
        "SELECT backend_xid::text FROM pg_stat_activity AS a JOIN pg_stat_progress_copy USING (pid) "
        "WHERE a.datname = current_database() AND application_name = %s AND bytes_processed > %s",
        [application_name(RUN), past],
    ).fetchall()


def in_copy(target: psycopg.Connection, past: int = -1) -> list[tuple[str]]:
    """Wait for such a transaction; its id."""
    assert wait_until(lambda: copies(target, past))
    return copies(target, past)
