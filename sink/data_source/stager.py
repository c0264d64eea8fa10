"""
Stage the rows of one task attempt, while connections break.

Runs in a task, on an executor. Invariant: rows are promised only under a mark whose COPY was acknowledged; a COPY whose
answer was lost is repeated under another mark, and rows that the first one may have left are never used. A staging
table is registered in the transaction that creates it.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterable, Iterator, Sequence

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.ledger.migrations import ensure_ledger, forget_ledger
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.backoff import Tries
from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS, enter_in_tx
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.offsets_store.postgres.translate import is_ledger_gone, is_statement_pooling, ledger_error

from ..encoding.copy_encoder import CopyEncoder
from ..encoding.encoded_types import ATTEMPT_COLUMN, EncodedColumn, encoded_columns
from ..encoding.unfit_rows import UnfitRows
from ..errors import StagingError
from ..identity.from_checkpoint import Origin
from ..identity.planned_batch import staging_table
from ..options.sink_options import JobOptions, SinkOptions
from ..staging import INLINE_ATTEMPT, StagingTable, column_definitions
from ..writing.rows import copy_rows

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
    :param unfit: what keeps the rows that cannot be encoded, if they are to be put aside; they are not staged.
    """

    def __init__(
        self,
        url: str,
        table: StagingTable,
        struct_type: StructType,
        attempt_id: int,
        retry_timeout: float,
        lock_timeout: float = LOCK_SECONDS,
        unfit: UnfitRows | None = None,
    ) -> None:
        self._url = url
        self._table = table
        self._struct_type = struct_type
        self._retry_timeout = retry_timeout
        self._unfit = unfit or UnfitRows()
        self._watch = LockWatch(url, lock_timeout, armed=True)
        self._marks = itertools.count(attempt_id * _COPIES_AN_ATTEMPT)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> tuple[tuple[int, int], ...]:
        """
        Stage all rows, and return what to promise: mark and row count of each COPY that was acknowledged.

        :raises StagingError: if this executor lacks what staging needs, or lost connections for too long.
        :raises ConnectError: if Postgres was unavailable for too long.
        """
        return tuple(self._copied([first], batches) for first in batches)

    def _copied(self, held: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """One COPY of the batches held and of those that follow, tried as often as the time allows."""
        tries = Tries(
            self._retry_timeout,
            log=_log,
            trying=f"batch {self._table.batch_id} of query {self._table.query_id}: staging again",
            failed=self._failed,
        )
        while True:
            with tries:
                mark = next(self._marks)
                return mark, self._copy(mark, held, batches)

    def _copy(self, mark: int, held: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch]) -> int:
        encoder = CopyEncoder(self._struct_type, extra={ATTEMPT_COLUMN: mark})

        def bodies() -> Iterator[bytes]:
            size = 0
            for number, batch in enumerate(held):
                body, held[number] = self._unfit.encode_others(encoder, batch)
                size += len(body)
                yield body
            while size < COPY_BYTES and (batch := next(batches, None)) is not None:
                # Held before it is encoded, because Spark does not give it again; and without the rows that are put
                # aside, so that they are found once, however often this COPY is repeated.
                held.append(batch)
                body, held[-1] = self._unfit.encode_others(encoder, batch)
                size += len(body)
                yield body

        stage_rows(self._url, self._table, encoded_columns(self._struct_type), bodies(), self._watch)
        return encoder.rows

    def _failed(self, error: Exception) -> Exception:
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
                f"{self._table.qualified_name}; the lock is still held: {self._watch.holders} (the last try: "
                f"{scrub(' '.join(str(error).split()))}).",
                "Nothing of this batch was written to the target; Spark tries the task again.",
                "End that session or wait for it; lockTimeout and retryTimeout set how long a task waits.",
            )
        if error.sqlstate == _TOO_LARGE:
            # Not for lack of a route or a permission: the target would refuse these rows as well.
            return target_error(error)
        why = f"SQLSTATE {error.sqlstate}" if error.sqlstate else "the connection was lost"
        return StagingError(
            "STAGING_FAILED",
            f"A task could not stage its rows in {self._table.qualified_name}: "
            f"{scrub(' '.join(str(error).split()))} ({why}).",
            "Nothing of this batch was written to the target; Spark tries the task again.",
            "Executors need a route to Postgres, the credentials in url (or executorUrl), and CREATE on schema "
            "pgonce_staging (`pgonce init --role`). Without that, raise inlineBytes so that rows travel in the commit "
            "messages.",
        )


def stager_of(
    options: SinkOptions | JobOptions, origin: Origin, struct_type: StructType, attempt_id: int, unfit: UnfitRows
) -> Stager:
    """What stages the rows of one attempt of a task of the batch ``origin``."""
    return Stager(
        options.staging_url,
        staging_table(options, origin),
        struct_type,
        attempt_id,
        options.commit.retry_timeout,
        options.commit.lock_timeout,
        unfit,
    )


def _without_a_way_to_postgres(error: ConnectError) -> ConnectError:
    """Say which host cannot reach Postgres, and what to do if the driver can and an executor cannot."""
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


def stage_rows(
    url: str,
    table: StagingTable,
    columns: Sequence[EncodedColumn],
    bodies: Iterable[bytes],
    watch: LockWatch | None = None,
) -> None:
    """
    Copy rows into the batch's staging table, all of them or none; create the table if they are the first.

    ``bodies`` must begin each row with its mark (:data:`ATTEMPT_COLUMN`). ``watch`` says how long to wait for a lock,
    and finds out who holds it.

    :raises psycopg.Error: what Postgres says. If the connection was lost, the rows may be there.
    """
    ensure_ledger(url)
    watch = watch or LockWatch(url, LOCK_SECONDS, armed=True)
    with connect(url, autocommit=True) as connection:
        _create(connection, table, columns, watch)
        # In a transaction because of its settings: if the task's host vanishes, its session and its locks do not stay.
        with connection.transaction():
            enter_in_tx(connection, watch.lock_timeout)
            names = [ATTEMPT_COLUMN, *(column.name for column in columns)]
            copy_rows(connection, table.identifier, names, bodies)


def _create(
    connection: psycopg.Connection, table: StagingTable, columns: Sequence[EncodedColumn], watch: LockWatch
) -> None:
    if _exists(connection, table):
        return
    with connection.transaction():
        pid = enter_in_tx(connection, watch.lock_timeout)
        # Tasks start together: all but the first wait here, and then find the table.
        with watch.looking(pid, may_end=False):
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [table.name])
        # A task may outlive its run, and register the table long after the next run has begun: the time at which the
        # batch was planned tells the sweep which run came first. A clock that is ahead counts for nothing.
        connection.execute(
            "INSERT INTO pgonce.staged_tables (table_name, query_id, sink_name, run_id, batch_id, created_at) "
            "VALUES (%s, %s, %s, %s, %s, least(pg_catalog.now(), pg_catalog.to_timestamp(%s::float8 / 1000.0))) "
            "ON CONFLICT DO NOTHING",
            [table.name, table.query_id, table.sink_name, table.run_id, table.batch_id, table.planned_by_ms],
        )
        connection.execute(
            sql.SQL("CREATE UNLOGGED TABLE IF NOT EXISTS {} ({} bigint DEFAULT {}, {})").format(
                table.identifier,
                sql.Identifier(ATTEMPT_COLUMN),
                sql.Literal(INLINE_ATTEMPT),
                column_definitions(columns),
            )
        )
        _exists(connection, table)


def _exists(connection: psycopg.Connection, table: StagingTable) -> bool:
    owner = connection.execute(
        "SELECT pg_catalog.pg_get_userbyid(c.relowner), current_user FROM pg_catalog.pg_class AS c "
        "WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)",
        [table.qualified_name],
    ).fetchone()
    # Roles that share a ledger can all create tables here, and a trigger on one runs as the role that writes.
    if owner is not None and owner[0] != owner[1]:
        raise StagingError(
            "STAGING_FAILED",
            f"{table.qualified_name} has the name of this batch's staging table, but belongs to role {owner[0]}.",
            "Nothing of this batch was written to the target.",
            "Find out who made that table, drop it, and start the query again; all processes of a query must connect "
            "as the same role.",
        )
    return owner is not None
