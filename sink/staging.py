"""
Staging tables: where tasks put rows that are too many for a commit message.

``create`` and ``fill`` run in executors; the rest runs in the commit. Invariant: a staging table is registered in the
transaction that creates it, and dropped only once its batch is decided or its run is over.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from offsets_store.connect import connect
from offsets_store.errors import NOTHING
from offsets_store.migrations import ensure_ledger
from offsets_store.postgres_errors import scrub
from offsets_store.tables import SCHEMA
from sink.copy_encoder import HEADER, TRAILER
from sink.errors import StagingError
from sink.type_mapping import EncodedColumn

_log = logging.getLogger("pgonce.staging")

# Marks the rows of one task attempt: a speculative loser, or an attempt that died, may have left rows too.
ATTEMPT_COLUMN = "pgonce_task_attempt"
# Inline rows of the same batch join the staged ones in the commit; task attempts count from 0.
INLINE_ATTEMPT = -1


@dataclass(frozen=True)
class StagingTable:
    """
    The staging table of one batch; its name follows from the batch, so tasks need not agree on it.

    ``sink_name`` is what the options say (sinkName or table): tasks cannot look the table up.
    """

    query_id: str
    sink_name: str
    run_id: str
    batch_id: int

    @property
    def name(self) -> str:
        """Unique for run, sink and batch: a run id is new at every start of a query."""
        of = hashlib.sha256(f"{self.query_id}/{self.run_id}/{self.sink_name}".encode()).hexdigest()[:24]
        # Postgres cuts names after 63 bytes without a word; this has 51 at most.
        return f"staged_{of}_{self.batch_id}"

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        return sql.Identifier(SCHEMA, self.name)


@dataclass(frozen=True)
class StagedRows:
    """The rows that the commit messages promised: task attempt id to row count."""

    table: StagingTable
    promised: tuple[tuple[int, int], ...]

    @property
    def identifier(self) -> sql.Identifier:
        """The table's qualified name, quoted."""
        return self.table.identifier

    @property
    def wanted(self) -> sql.Composable:
        """The condition that picks the promised attempts' rows, and the inline rows that joined them."""
        attempts = [INLINE_ATTEMPT, *(attempt for attempt, _ in self.promised)]
        return sql.SQL("{} = ANY ({}::bigint[])").format(sql.Identifier(ATTEMPT_COLUMN), sql.Literal(attempts))


def column_definitions(columns: Iterable[EncodedColumn]) -> sql.Composable:
    """The columns of a table that takes the encoded bytes as they are."""
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in columns
    )


def stage_rows(url: str, table: StagingTable, columns: Sequence[EncodedColumn], bodies: Iterable[bytes]) -> None:
    """
    Copy a task attempt's rows into the batch's staging table, creating it where this is the first task.

    ``bodies`` must begin each row with the task attempt (:data:`ATTEMPT_COLUMN`).

    :raises StagingError: where this executor lacks what staging needs.
    """
    try:
        ensure_ledger(url)
        with connect(url, autocommit=True) as connection:
            _create(connection, table, columns)
            statement = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table.identifier)
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(HEADER)
                for body in bodies:
                    copy.write(body)
                copy.write(TRAILER)
    except psycopg.Error as error:
        raise StagingError(
            "STAGING_FAILED",
            f"A task could not stage its rows in {SCHEMA}.{table.name}: {scrub(' '.join(str(error).split()))} "
            f"({f'SQLSTATE {error.sqlstate}' if error.sqlstate else 'the connection was lost'}).",
            "Nothing of this batch was written to the target; Spark tries the task again.",
            "Executors need a route to Postgres, the credentials in url, and CREATE on schema pgonce (`pgonce init "
            "--role`). Without that, raise inlineBytes so that rows travel in the commit messages.",
        ) from None


def _create(connection: psycopg.Connection, table: StagingTable, columns: Sequence[EncodedColumn]) -> None:
    found = connection.execute("SELECT to_regclass(%s)", [f"{SCHEMA}.{table.name}"]).fetchone()
    if found and found[0] is not None:
        return
    with connection.transaction():
        # Tasks start together: all but the first wait here, and then find the table.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [table.name])
        connection.execute(
            sql.SQL("CREATE UNLOGGED TABLE IF NOT EXISTS {} ({} bigint DEFAULT {}, {})").format(
                table.identifier,
                sql.Identifier(ATTEMPT_COLUMN),
                sql.Literal(INLINE_ATTEMPT),
                column_definitions(columns),
            )
        )
        connection.execute(
            "INSERT INTO pgonce.staged_tables (table_name, query_id, sink_name, run_id, batch_id) "
            "VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [table.name, table.query_id, table.sink_name, table.run_id, table.batch_id],
        )


def check_staged_rows(connection: psycopg.Connection, staged: StagedRows) -> None:
    """
    Refuse staged rows that are not exactly those that were promised: a crash of Postgres empties unlogged tables.

    :raises StagingError: naming the first task attempt that differs.
    """
    counted: dict[int, int] = {}
    exists = connection.execute("SELECT to_regclass(%s)", [f"{SCHEMA}.{staged.table.name}"]).fetchone()
    if exists and exists[0] is not None:
        counted = dict(
            connection.execute(
                sql.SQL("SELECT {0}, count(*) FROM {1} GROUP BY {0}").format(
                    sql.Identifier(ATTEMPT_COLUMN), staged.identifier
                )
            ).fetchall()
        )
    for attempt, rows in staged.promised:
        if counted.get(attempt, 0) != rows:
            raise StagingError(
                "STAGED_ROWS_LOST",
                f"Task attempt {attempt} staged {rows} rows, but {counted.get(attempt, 0)} are there: Postgres "
                "crashed in "
                "between (unlogged tables empty themselves), or somebody dropped the table.",
                NOTHING,
                "Start the query again: Spark runs the batch again from its source.",
            )


def sweep(connection: psycopg.Connection, query_id: str, sink_name: str, last_batch_id: int) -> None:
    """
    Drop the writer's staging tables up to batch ``last_batch_id``, which is published: they are decided, whichever run
    filled them. Only the ledger decides, never age, for a backfill may stage for hours.
    """
    rows = connection.execute(
        "SELECT table_name FROM pgonce.staged_tables WHERE query_id = %s AND sink_name = %s AND batch_id <= %s",
        [query_id, sink_name, last_batch_id],
    ).fetchall()
    for (name,) in rows:
        drop_staging_table(connection, name)


def drop_staging_table(connection: psycopg.Connection, name: str) -> None:
    """Drop one staging table and its registration, unless somebody still writes to it."""
    try:
        with connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', '1s', true)")
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
            connection.execute("DELETE FROM pgonce.staged_tables WHERE table_name = %s", [name])
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        _log.info("staging table %s is still written to; the next sweep drops it", name)
