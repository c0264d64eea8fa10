"""
Staging tables: where tasks put rows that are too many for a commit message.

``stage_rows`` runs in executors; the rest runs in the commit. Invariant: a staging table is registered in the
transaction that creates it, and dropped only once its batch is decided or its run is over.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.tables import SCHEMA
from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS, enter_in_tx
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.lock_watch import LockWatch

from ..encoding.copy_encoder import HEADER, TRAILER
from ..encoding.encoded_types import EncodedColumn
from ..errors import StagingError

_log = logging.getLogger("pgonce.staging")

# Marks the rows of one COPY of one task attempt: a speculative loser, an attempt that died, or a COPY whose answer was
# lost may have left rows too.
ATTEMPT_COLUMN = "pgonce_task_attempt"
# Inline rows of the same batch join the staged ones in the commit; marks count from 0.
INLINE_ATTEMPT = -1

# What the sweep drops: whoever may register a staging table could name any other table of the schema.
_NAME = re.compile(r"staged_[0-9a-f]{24}_[0-9]+", re.ASCII)

# The next sweep finds what is still in use now.
_SWEEP_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class StagingTable:
    """
    The staging table of one batch; its name follows from the batch, so tasks need not agree on it.

    ``sink_name`` is what the options say (sinkName or table): tasks cannot look the table up. ``planned_by_ms`` is when
    the batch was planned, by the driver's clock; None if nobody noted it.
    """

    query_id: str
    sink_name: str
    run_id: str
    batch_id: int
    planned_by_ms: int | None = None

    @property
    def name(self) -> str:
        """Unique for run, sink and batch: a run id is new at every start of a query."""
        of = hashlib.sha256(f"{self.query_id}/{self.run_id}/{self.sink_name}".encode()).hexdigest()[:24]
        # Postgres cuts names silently after 63 bytes; this one has at most 51.
        return f"staged_{of}_{self.batch_id}"

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        return sql.Identifier(SCHEMA, self.name)


def column_definitions(columns: Iterable[EncodedColumn]) -> sql.Composable:
    """The columns of a table that takes the encoded bytes as they are."""
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in columns
    )


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

    :raises psycopg.Error: what Postgres says; :mod:`~pgonce.sink.staging.stager` knows what may be tried again.
        If the connection was lost, the rows may be there.
    """
    ensure_ledger(url)
    watch = watch or LockWatch(url, LOCK_SECONDS, armed=True)
    with connect(url, autocommit=True) as connection:
        _create(connection, table, columns, watch)
        statement = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table.identifier)
        # In a transaction because of its settings: if the task's host vanishes, its session and its locks do not stay.
        with connection.transaction(), connection.cursor() as cursor:
            enter_in_tx(connection, watch.lock_timeout)
            _copy(cursor, statement, bodies)


def _copy(cursor: psycopg.Cursor, statement: sql.Composed, bodies: Iterable[bytes]) -> None:
    with cursor.copy(statement) as copy:
        copy.write(HEADER)
        for body in bodies:
            copy.write(body)
        copy.write(TRAILER)


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
        connection.execute(
            sql.SQL("CREATE UNLOGGED TABLE IF NOT EXISTS {} ({} bigint DEFAULT {}, {})").format(
                table.identifier,
                sql.Identifier(ATTEMPT_COLUMN),
                sql.Literal(INLINE_ATTEMPT),
                column_definitions(columns),
            )
        )
        # A task may outlive its run, and register the table long after the next run has begun: the time at which the
        # batch was planned tells the sweep which run came first. A clock that is ahead counts for nothing.
        connection.execute(
            "INSERT INTO pgonce.staged_tables (table_name, query_id, sink_name, run_id, batch_id, created_at) "
            "VALUES (%s, %s, %s, %s, %s, least(pg_catalog.now(), pg_catalog.to_timestamp(%s::float8 / 1000.0))) "
            "ON CONFLICT DO NOTHING",
            [table.name, table.query_id, table.sink_name, table.run_id, table.batch_id, table.planned_by_ms],
        )
        _exists(connection, table)


def _exists(connection: psycopg.Connection, table: StagingTable) -> bool:
    owner = connection.execute(
        "SELECT pg_catalog.pg_get_userbyid(c.relowner), current_user FROM pg_catalog.pg_class AS c "
        "WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)",
        [f"{SCHEMA}.{table.name}"],
    ).fetchone()
    # Roles that share a ledger can all create tables in its schema, and a trigger on one runs as the role that writes.
    if owner is not None and owner[0] != owner[1]:
        raise StagingError(
            "STAGING_FAILED",
            f"{SCHEMA}.{table.name} has the name of this batch's staging table, but belongs to role {owner[0]}.",
            "Nothing of this batch was written to the target.",
            "Find out who made that table, drop it, and start the query again; all processes of a query must connect "
            "as the same role.",
        )
    return owner is not None


def sweep(connection: psycopg.Connection, query_id: str, sink_name: str, run_id: str, last_batch_id: int) -> None:
    """
    Drop the writer's staging tables up to batch ``last_batch_id``, which ``run_id`` has published: the run's own, and
    those of batches that were planned before it became the owner, even where a task registers one afterwards. Others
    may belong to a successor, which fills them for the same ids.
    Age alone decides nothing, because a backfill may stage for hours.
    """
    with connection.transaction():
        enter_in_tx(connection, _SWEEP_LOCK_SECONDS)
        rows = connection.execute(
            "SELECT table_name FROM pgonce.staged_tables AS s "
            "WHERE query_id = %s AND sink_name = %s AND batch_id <= %s "
            "AND (run_id = %s OR created_at < (SELECT max(r.started_at) FROM pgonce.runs AS r "
            "JOIN pgonce.writers AS w USING (writer_id) WHERE w.query_id = s.query_id AND r.run_id = %s))",
            [query_id, sink_name, last_batch_id, run_id, run_id],
        ).fetchall()
    for (name,) in rows:
        drop_staging_table(connection, name)


def drop_staging_table(connection: psycopg.Connection, name: str) -> None:
    """
    Drop one staging table and its registration, unless somebody still writes to it.

    Of a name that no task registers, only the registration goes.
    """
    try:
        with connection.transaction():
            enter_in_tx(connection, _SWEEP_LOCK_SECONDS)
            if _NAME.fullmatch(name):
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
            connection.execute("DELETE FROM pgonce.staged_tables WHERE table_name = %s", [name])
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        _log.info("staging table %s is still written to; the next sweep drops it", name)
