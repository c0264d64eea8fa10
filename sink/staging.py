"""
Staging tables for rows that are too many for a commit message: which rows the commit reads, and when it drops a table.

Runs in the commit; tasks only name the table. Invariant: the staged rows are exactly those that the commit messages
promised, or there is no commit. A table is dropped only once its batch is decided or its run is over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.ledger import STAGING_SCHEMA
from pgonce.offsets_store.offsets import Offsets, places
from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS, enter_in_tx

from .encoding.encoded_types import ATTEMPT_COLUMN, EncodedColumn
from .errors import StagingError
from .options.position_columns import PositionColumns

_log = logging.getLogger("pgonce.staging")

# Inline rows of the same batch join the staged ones in the commit; marks count from 0.
INLINE_ATTEMPT = -1

# What the sweep drops: a role that may register a staging table could name any other table.
_NAME = re.compile(r"staged_[0-9a-f]{24}_[0-9]+", re.ASCII)

OF_JOB = "batchKey "
"""Stands before a batch job's key where a stream's staging table has the id of its query."""

# The next sweep finds what is still in use now.
_SWEEP_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class StagingTable:
    """
    The staging table of one batch; its name follows from the batch, so tasks need not agree on it.

    ``sink_name`` is what the options say (sinkName or table), or of a batch job what Postgres said when it was planned:
    tasks cannot look the table up. ``planned_by_ms`` is when the batch was planned, by the driver's clock; None if that
    was not noted.
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
    def qualified_name(self) -> str:
        """Its name with the schema; neither needs quotes."""
        return f"{STAGING_SCHEMA}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The same, quoted."""
        return sql.Identifier(STAGING_SCHEMA, self.name)


def column_definitions(columns: Iterable[EncodedColumn]) -> sql.Composable:
    """The columns of a table that takes the encoded bytes as they are."""
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in columns
    )


@dataclass(frozen=True)
class StagedRows:
    """
    The rows that the commit messages promised: mark to row count.

    Rows below the positions ``stored`` are left out; ``positions`` names the columns that hold a row's position.
    """

    table: StagingTable
    promised: tuple[tuple[int, int], ...]
    positions: PositionColumns | None = None
    stored: Offsets | None = None

    @property
    def identifier(self) -> sql.Identifier:
        """The table's qualified name, quoted."""
        return self.table.identifier

    @property
    def wanted(self) -> sql.Composable:
        """The condition that picks the promised rows, and the inline rows that joined them."""
        marks = [INLINE_ATTEMPT, *(mark for mark, _ in self.promised)]
        promised = sql.SQL("{} OPERATOR(pg_catalog.=) ANY ({}::bigint[])").format(
            sql.Identifier(ATTEMPT_COLUMN), sql.Literal(marks)
        )
        if self.positions is None or not self.stored:
            return promised
        return sql.SQL("{} AND NOT ({})").format(promised, self._stored_before(self.positions, self.stored))

    def _stored_before(self, columns: PositionColumns, stored: Offsets) -> sql.Composable:
        """The condition that picks rows below the stored positions; inline rows were sorted out before they came."""
        ends = {_key(topic, partition): position for (_, topic, partition), position in places(stored).items()}
        # One look-up for each row, however many partitions there are: with a comparison for each of 1,000 partitions,
        # a million rows would need a thousand million.
        return sql.SQL(
            "{mark} OPERATOR(pg_catalog.<>) {inline} AND COALESCE({offset} OPERATOR(pg_catalog.<) "
            "({ends}::pg_catalog.jsonb OPERATOR(pg_catalog.->>) ({partition}::pg_catalog.text "
            "OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) {topic}))::bigint, false)"
        ).format(
            mark=sql.Identifier(ATTEMPT_COLUMN),
            inline=sql.Literal(INLINE_ATTEMPT),
            topic=sql.Identifier(columns.topic),
            partition=sql.Identifier(columns.partition),
            offset=sql.Identifier(columns.offset),
            ends=sql.Literal(json.dumps(ends)),
        )

    def count_dropped(self, connection: psycopg.Connection) -> int:
        """How many promised rows are not wanted, because they were stored before."""
        if self.positions is None or not self.stored:
            return 0
        marks = sql.Literal([mark for mark, _ in self.promised])
        row = connection.execute(
            sql.SQL(
                "SELECT pg_catalog.count(*) FROM {} WHERE {} OPERATOR(pg_catalog.=) ANY ({}::bigint[]) AND ({})"
            ).format(
                self.identifier, sql.Identifier(ATTEMPT_COLUMN), marks, self._stored_before(self.positions, self.stored)
            )
        ).fetchone()
        return row[0] if row else 0


def _key(topic: str, partition: int) -> str:
    """One text for a partition of a topic: digits, a space, and all that follows is the topic."""
    return f"{partition} {topic}"


def refuse_missing_table(connection: psycopg.Connection, staged: StagedRows) -> None:
    """:raises StagingError: if the staging table was dropped."""
    exists = connection.execute("SELECT pg_catalog.to_regclass(%s)", [staged.table.qualified_name]).fetchone()
    if exists is None or exists[0] is None:
        mark, rows = staged.promised[0]
        raise _lost(mark, rows, 0)


def check_staged_rows(connection: psycopg.Connection, staged: StagedRows) -> None:
    """
    Refuse staged rows that are not exactly those that were promised: a crash of Postgres empties unlogged tables.

    :raises StagingError: naming the first mark that differs.
    """
    count = sql.SQL("SELECT {0}, pg_catalog.count(*) FROM {1} GROUP BY {0}").format(
        sql.Identifier(ATTEMPT_COLUMN), staged.identifier
    )
    counted: dict[int, int] = dict(connection.execute(count).fetchall())
    for mark, rows in staged.promised:
        if counted.get(mark, 0) != rows:
            raise _lost(mark, rows, counted.get(mark, 0))


def _lost(mark: int, promised: int, found: int) -> StagingError:
    return StagingError.usual(
        "STAGED_ROWS_LOST",
        f"A task staged {promised} rows under mark {mark}, but {found} are there: Postgres crashed in between "
        "(unlogged tables empty themselves), the table was dropped, or executorUrl leads to another database than "
        "url does.",
        "Start the query, or the batch job, again.",
    )


def sweep(connection: psycopg.Connection, query_id: str, sink_name: str, run_id: str, last_batch_id: int) -> None:
    """
    Drop the writer's staging tables up to batch ``last_batch_id``, which ``run_id`` has published: the run's own, and
    those of batches that were planned before it became the owner, even if a task registers one afterwards. Others may
    belong to a successor, which fills them for the same ids. Age alone decides nothing, because a backfill may stage
    for hours.

    A run that has published into this sink may have called its table otherwise (``events``, ``public.events``).
    """
    with connection.transaction():
        enter_in_tx(connection, _SWEEP_LOCK_SECONDS)
        asked = {"query": query_id, "sink": sink_name, "run": run_id, "last": last_batch_id}
        rows = connection.execute(_OF_WRITER, asked).fetchall()
    for (name,) in rows:
        drop_staging_table(connection, name)


_OF_WRITER = """
WITH own AS (
    SELECT r.writer_id, r.started_at FROM pgonce.runs AS r JOIN pgonce.writers AS w USING (writer_id)
    WHERE w.query_id = %(query)s AND r.run_id = %(run)s
)
SELECT s.table_name FROM pgonce.staged_tables AS s
WHERE s.query_id = %(query)s AND s.batch_id <= %(last)s
AND (s.run_id = %(run)s OR s.created_at < (SELECT max(own.started_at) FROM own))
AND (s.sink_name = %(sink)s
     OR s.run_id IN (SELECT r.run_id FROM pgonce.runs AS r WHERE r.writer_id IN (SELECT own.writer_id FROM own)))
"""


def sweep_jobs(connection: psycopg.Connection, sink_name: str, run_id: str) -> None:
    """
    Drop the sink's staging tables of batch jobs that no run needs: those of published keys. That of the run itself,
    which is done, goes too, whatever the sink was called when it was planned. (If Postgres was unavailable then, and
    the run was killed, its table stays until it is dropped by hand.)

    A run that was killed has also left its table behind, and so has a task that staged rows while Spark gave its run
    up. Nothing in Postgres tells these from a run that still computes its rows. But once a run has published its key,
    all others can only be skipped.
    """
    with connection.transaction():
        enter_in_tx(connection, LOCK_SECONDS)
        rows = connection.execute(
            _NO_RUN_NEEDS, {"sink": sink_name, "run": run_id, "of_job": OF_JOB, "key_from": len(OF_JOB) + 1}
        ).fetchall()
    for (name,) in rows:
        drop_staging_table(connection, name)


def drop_staging_table(connection: psycopg.Connection, name: str) -> None:
    """
    Drop one staging table and its registration, unless a task still writes to it.

    If the name is not one that tasks register, only the registration is removed.
    """
    is_dropped = False
    try:
        with connection.transaction():
            enter_in_tx(connection, _SWEEP_LOCK_SECONDS)
            if _NAME.fullmatch(name):
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(STAGING_SCHEMA, name)))
            is_dropped = True
            connection.execute("DELETE FROM pgonce.staged_tables WHERE table_name = %s", [name])
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        _log.info("staging table %s is still written to; the next sweep drops it", name)
    except psycopg.errors.InsufficientPrivilege:
        if is_dropped:
            raise
        # One that ran under another role has made it. Others can be dropped all the same.
        _log.warning(
            "staging table %s.%s belongs to another role, and stays: drop it as its owner, or as a superuser, once its "
            "query has published a later batch",
            STAGING_SCHEMA,
            name,
        )


_NO_RUN_NEEDS = """
SELECT s.table_name FROM pgonce.staged_tables AS s
WHERE starts_with(s.query_id, %(of_job)s)
AND (s.run_id = %(run)s OR s.sink_name = %(sink)s
     AND EXISTS (SELECT FROM pgonce.batch_jobs AS j
                 WHERE j.sink_name = %(sink)s AND j.batch_key = substr(s.query_id, %(key_from)s)))
"""
