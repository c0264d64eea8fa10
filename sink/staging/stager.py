"""
How does a task stage its rows while connections break?

Runs in a task, on an executor. Invariant: rows are promised only under a mark whose COPY was acknowledged; a COPY whose
answer was lost is repeated under another mark, and rows that the first one may have left are never used.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import psycopg
import pyarrow as pa
from pyspark.sql.types import StructType

from pgonce.offsets_store.ledger.migrations import forget_ledger
from pgonce.offsets_store.ledger.tables import SCHEMA
from pgonce.offsets_store.postgres.backoff import patiently
from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.translate import (
    is_ledger_gone,
    is_statement_pooling,
    ledger_error,
    scrub,
)
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.errors import StagingError
from pgonce.sink.staging.table import ATTEMPT_COLUMN, StagingTable, stage_rows

_log = logging.getLogger("pgonce.staging")

# Spark gives a task its rows once, so those of a COPY are held until it is acknowledged: this much, encoded. A
# partition of 350,000 rows of 88 bytes is one COPY, and a connection costs a tenth of copying that.
COPY_BYTES = 32 * 1024 * 1024
# A mark combines the task attempt's id and the number of the COPY: enough for 32 TiB a task, and ids up to 2 ** 43.
_COPIES_AN_ATTEMPT = 1 << 20


class Stager:
    """
    Stages the rows of one task attempt in the batch's staging table, COPY by COPY.

    :param attempt_id: Spark's task attempt id, which is unique in a run.
    :param retry_timeout: for how many seconds a COPY may be started again after temporary errors.
    :param lock_timeout: seconds that each wait for a lock may take.
    """

    def __init__(
        self,
        url: str,
        table: StagingTable,
        struct_type: StructType,
        attempt_id: int,
        retry_timeout: float,
        lock_timeout: float = LOCK_SECONDS,
    ) -> None:
        self._url = url
        self._table = table
        self._struct_type = struct_type
        self._retry_timeout = retry_timeout
        self._watch = LockWatch(url, lock_timeout, armed=True)
        self._marks = itertools.count(attempt_id * _COPIES_AN_ATTEMPT)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> tuple[tuple[int, int], ...]:
        """
        Stage all rows, and return what to promise: mark and row count of each COPY that was acknowledged.

        :raises StagingError: if this executor lacks what staging needs, or lost connections for too long.
        :raises ConnectError: if Postgres stayed away for too long.
        """
        return tuple(self._copied([first], batches) for first in batches)

    def _copied(self, held: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """One COPY of the batches held and of those that follow, tried as often as the time allows."""

        def once() -> tuple[int, int]:
            mark = next(self._marks)
            return mark, self._copy(mark, held, batches)

        return patiently(
            once,
            self._retry_timeout,
            log=_log,
            trying=f"batch {self._table.batch_id} of query {self._table.query_id}: staging again",
            failed=self._failed,
        )

    def _copy(self, mark: int, held: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch]) -> int:
        encoder = CopyEncoder(self._struct_type, extra={ATTEMPT_COLUMN: mark})

        def bodies() -> Iterator[bytes]:
            size = 0
            for batch in held:
                body = encoder.encode(batch)
                size += len(body)
                yield body
            while size < COPY_BYTES and (batch := next(batches, None)) is not None:
                # Held before it is encoded, because Spark does not give it again.
                held.append(batch)
                body = encoder.encode(batch)
                size += len(body)
                yield body

        stage_rows(self._url, self._table, encoded_columns(self._struct_type), bodies(), self._watch)
        return encoder.rows

    def _failed(self, error: Exception, _: bool) -> Exception:
        if not isinstance(error, psycopg.Error):
            return error
        if is_ledger_gone(error):
            forget_ledger(self._url)
        if is_ledger_gone(error) or is_statement_pooling(error):
            return ledger_error(error, "staging rows")
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return StagingError(
                "STAGING_FAILED",
                f"A task waited {self._retry_timeout:g} s for a lock before it could stage its rows in "
                f"{SCHEMA}.{self._table.name}; the lock is still held: {self._watch.holders} (the last try: "
                f"{scrub(' '.join(str(error).split()))}).",
                "Nothing of this batch was written to the target; Spark tries the task again.",
                "End that session or wait for it; lockTimeout and retryTimeout set how long a task waits.",
            )
        why = f"SQLSTATE {error.sqlstate}" if error.sqlstate else "the connection was lost"
        return StagingError(
            "STAGING_FAILED",
            f"A task could not stage its rows in {SCHEMA}.{self._table.name}: "
            f"{scrub(' '.join(str(error).split()))} ({why}).",
            "Nothing of this batch was written to the target; Spark tries the task again.",
            "Executors need a route to Postgres, the credentials in url, and CREATE on schema pgonce (`pgonce init "
            "--role`). Without that, raise inlineBytes so that rows travel in the commit messages.",
        )
