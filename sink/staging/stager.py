"""
How does a task stage its rows while connections break?

Runs in a task, on an executor. Invariant: rows are promised only under a mark whose COPY was acknowledged; a COPY whose
answer was lost is repeated under another mark, and rows that the first one may have left are never used.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator

import psycopg
import pyarrow as pa
from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.ledger.migrations import forget_ledger
from pgonce.offsets_store.ledger.tables import SCHEMA
from pgonce.offsets_store.postgres.backoff import patiently
from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.offsets_store.postgres.translate import is_ledger_gone, is_statement_pooling, ledger_error, scrub

from ..encoding.copy_encoder import CopyEncoder
from ..encoding.encoded_types import encoded_columns
from ..encoding.sieve import Sieve
from ..errors import StagingError
from .table import ATTEMPT_COLUMN, StagingTable, stage_rows

_log = logging.getLogger("pgonce.staging")

# Spark gives a task its rows once, so those of a COPY are held until it is acknowledged: this much, encoded. A
# partition of 350,000 rows of 88 bytes is one COPY, and a connection costs a tenth of copying that.
COPY_BYTES = 32 * 1024 * 1024
_TOO_LARGE = psycopg.errors.ProgramLimitExceeded.sqlstate
# A mark combines the task attempt's id and the number of the COPY: enough for 32 TiB a task, and ids up to 2 ** 43.
_COPIES_AN_ATTEMPT = 1 << 20


class Stager:
    """
    Stages the rows of one task attempt in the batch's staging table, COPY by COPY.

    :param attempt_id: Spark's task attempt id, which is unique in a run.
    :param retry_timeout: for how many seconds a COPY may be started again after temporary errors.
    :param lock_timeout: seconds that each wait for a lock may take.
    :param sieve: what keeps the rows that cannot be encoded, if they are to be put aside; they are not staged.
    """

    def __init__(
        self,
        url: str,
        table: StagingTable,
        struct_type: StructType,
        attempt_id: int,
        retry_timeout: float,
        lock_timeout: float = LOCK_SECONDS,
        sieve: Sieve | None = None,
    ) -> None:
        self._url = url
        self._table = table
        self._struct_type = struct_type
        self._retry_timeout = retry_timeout
        self._sieve = sieve or Sieve(struct_type)
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
            for number, batch in enumerate(held):
                body, held[number] = self._sieve.encode(encoder, batch)
                size += len(body)
                yield body
            while size < COPY_BYTES and (batch := next(batches, None)) is not None:
                # Held before it is encoded, because Spark does not give it again; and without the rows that are put
                # aside, so that they are found once, however often this COPY is repeated.
                held.append(batch)
                body, held[-1] = self._sieve.encode(encoder, batch)
                size += len(body)
                yield body

        stage_rows(self._url, self._table, encoded_columns(self._struct_type), bodies(), self._watch)
        return encoder.rows

    def _failed(self, error: Exception, _: bool) -> Exception:
        if isinstance(error, ConnectError):
            return _without_a_way_to_postgres(error)
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
        if error.sqlstate == _TOO_LARGE:
            # Not for lack of a route or a privilege: the target would refuse these rows, too.
            return target_error(error)
        why = f"SQLSTATE {error.sqlstate}" if error.sqlstate else "the connection was lost"
        return StagingError(
            "STAGING_FAILED",
            f"A task could not stage its rows in {SCHEMA}.{self._table.name}: "
            f"{scrub(' '.join(str(error).split()))} ({why}).",
            "Nothing of this batch was written to the target; Spark tries the task again.",
            "Executors need a route to Postgres, the credentials in url (or executorUrl), and CREATE on schema pgonce "
            "(`pgonce init --role`). Without that, raise inlineBytes so that rows travel in the commit messages.",
        )


def _without_a_way_to_postgres(error: ConnectError) -> ConnectError:
    """Say which host lacks a way, and what to do where the driver has one and an executor has none."""
    where = (
        f"A task on host {socket.gethostname()} has more rows than inlineBytes lets it send to the driver, and cannot "
        "stage them from there"
    )
    remedy = (
        f"{error.remedy} Executors stage rows over connections of their own: set executorUrl if they reach Postgres at "
        "another address than the driver, or with another login. If they cannot reach it at all, raise inlineBytes so "
        "that rows travel in the commit messages, or set receiver so that they go to the driver."
    )
    code = error.code
    return ConnectError(code, f"{where}: {error.what}", error.data, remedy)
