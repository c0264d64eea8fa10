"""
Does the ledger have the attempt that another process says it has committed?

Runs in the commit worker, after another process has committed. Invariant: the question is asked by the attempt's token,
which no other attempt has, and only of what is committed. No lock is taken or waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ..postgres.connect import checked_out, driver_connection


@dataclass(frozen=True)
class RecordedAttempt:
    """
    What the ledger has of an attempt at a batch: that it published (or adopted) the batch, or that it skipped it.

    ``may_sweep`` tells that there are staging tables of this sink up to this batch.
    """

    published: bool
    skipped: bool
    may_sweep: bool


# One statement by itself, so one round trip; every name in it has its schema. If another writer has published since,
# the record that is meant may be of the generation before.
_ASK = """
SELECT
  EXISTS (
    SELECT FROM pgonce.writers AS w JOIN pgonce.batches AS b
      ON b.writer_id OPERATOR(pg_catalog.=) w.writer_id
      AND b.generation OPERATOR(pg_catalog.=) ANY (ARRAY[w.generation, w.generation OPERATOR(pg_catalog.-) 1])
      AND b.batch_id OPERATOR(pg_catalog.=) %(batch_id)s
    WHERE w.query_id OPERATOR(pg_catalog.=) %(query_id)s AND b.attempt OPERATOR(pg_catalog.=) %(attempt)s),
  EXISTS (
    SELECT FROM pgonce.writers AS w JOIN pgonce.replays AS r
      ON r.writer_id OPERATOR(pg_catalog.=) w.writer_id
      AND r.generation OPERATOR(pg_catalog.=) ANY (ARRAY[w.generation, w.generation OPERATOR(pg_catalog.-) 1])
      AND r.batch_id OPERATOR(pg_catalog.=) %(batch_id)s
    WHERE w.query_id OPERATOR(pg_catalog.=) %(query_id)s AND r.attempt OPERATOR(pg_catalog.=) %(attempt)s),
  EXISTS (
    SELECT FROM pgonce.staged_tables AS s
    WHERE s.query_id OPERATOR(pg_catalog.=) %(query_id)s AND s.sink_name OPERATOR(pg_catalog.=) %(label)s
      AND s.batch_id OPERATOR(pg_catalog.<=) %(batch_id)s)
"""


def recorded_attempt(url: str, query_id: str, label: str, batch_id: int, attempt: UUID) -> RecordedAttempt:
    """
    What the ledger has of ``attempt`` at this batch.

    :param label: the sink's name for its staging tables.
    :raises ConnectError: if Postgres cannot be reached.
    :raises psycopg.Error: what Postgres says.
    """
    asked = {"query_id": query_id, "label": label, "batch_id": batch_id, "attempt": attempt}
    with checked_out(url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        row = driver_connection(connection).execute(_ASK, asked).fetchone()
    assert row is not None  # noqa: S101 (it has no FROM)
    return RecordedAttempt(*row)
