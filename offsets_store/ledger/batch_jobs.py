"""
Record batch jobs, and claim their keys.

Runs in the commit of a batch job. Invariant: every function takes a connection whose transaction the caller owns, at
READ COMMITTED. After one job has claimed a key, another job with that key waits for it; a key that was published stays.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, bindparam, func, text, update
from sqlalchemy.dialects import postgresql

from ..postgres.connect import driver_connection
from ..postgres.one_trip import ask
from ..postgres.text import QUALIFIED_NAME
from .compiled import Compiled, given, of_columns, send_once
from .feeders import OF_TABLE
from .migrations import refuse_too_new
from .published import Published, Targets
from .tables import batch_job_skips, batch_jobs


@dataclass(frozen=True)
class Job:
    """
    One run of a batch job: the key that its rows count once for, and a random id that no other run has.

    ``content_hash`` is None if the rows were not hashed, and ``rows`` if they were not counted.
    """

    batch_key: str
    attempt: UUID
    content_hash: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class RecordedJob:
    """
    What was published under a key, the attempt that published it, and its process (host and number).

    ``called`` is the name that the table with its rows has now, None if that table is gone or unknown. ``oid`` is that
    of the table that has the asking job's name for it now, None if there is none; ``has_rows`` tells whether that is
    the table with the rows, or one of which it is a partition.
    """

    sink_name: str
    attempt: UUID
    rows: int
    content_hash: str | None
    committed_at: datetime
    application: str | None
    targets: Targets | None
    called: str | None
    oid: int | None
    has_rows: bool


# No index begins with the batch key, so the primary key is scanned: 10 ms among 100,000 keys.
_OF_TABLE = OF_TABLE.format(named_after=":named_after")
# INSERT, never SELECT and then INSERT: two jobs could both read "absent". The primary key makes the second one wait
# until the first one's transaction is over. (If the table is renamed before the job locks it, the job tries again.)
_CLAIM = text(f"""
INSERT INTO pgonce.batch_jobs (sink_name, batch_key, attempt)
SELECT CAST(:sink AS text), CAST(:key AS text), CAST(:attempt AS uuid)
WHERE NOT EXISTS (SELECT FROM pgonce.batch_jobs AS j WHERE j.batch_key = CAST(:key AS text) AND {_OF_TABLE})
ON CONFLICT DO NOTHING
RETURNING (SELECT max(least_reader_version) FROM pgonce.schema_version) AS least_reader
""")
# A lock is written to the log: so COMMIT waits until synchronous standbys have what was found.
_FIND = text(f"""
SELECT j.sink_name, j.attempt, j.rows, j.content_hash, j.committed_at, j.application, j.targets,
    (SELECT {QUALIFIED_NAME} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.oid IN (SELECT CAST(t.value AS oid) FROM jsonb_each_text(j.targets) AS t) LIMIT 1),
    CAST(CAST(to_regclass(CAST(:table AS text)) AS oid) AS bigint),
    EXISTS (SELECT FROM jsonb_each_text(j.targets) AS t
            WHERE CAST(t.value AS oid) = CAST(to_regclass(CAST(:table AS text)) AS oid)
            OR EXISTS (SELECT FROM pg_partition_ancestors(CAST(CAST(t.value AS oid) AS regclass)) AS a
                       WHERE a.relid = to_regclass(CAST(:table AS text))))
FROM pgonce.batch_jobs AS j
WHERE j.batch_key = CAST(:key AS text) AND (j.sink_name = CAST(:sink AS text) OR {_OF_TABLE})
ORDER BY {_OF_TABLE} DESC NULLS LAST LIMIT 1 FOR NO KEY UPDATE OF j
""")
_RECORD = Compiled(
    update(batch_jobs)
    .where(batch_jobs.c.sink_name == bindparam("sink"), batch_jobs.c.batch_key == bindparam("key"))
    .values(
        committed_at=func.clock_timestamp(),
        **given("rows", "transport", "content_hash", "targets", "counts", "application"),
    )
)


def claim_in_tx(connection: Connection, sink_name: str, table: str | None, job: Job) -> RecordedJob | None:
    """
    Claim the job's key for this transaction: None if it is ours now, else what was published under it.

    It waits for another transaction that has claimed the key, and then either has it or sees what was published.

    :param table: the qualified name of the table that the job writes to; None if it is not known yet.
    :raises LedgerError: PGONCE_TOO_OLD.
    """
    asked = {"sink": sink_name, "key": job.batch_key, "named_after": table if table == sink_name else None}
    # More than once only if a person deletes the record between the two statements.
    while (claimed := connection.execute(_CLAIM, {**asked, "attempt": job.attempt}).first()) is None:
        found = connection.execute(_FIND, {**asked, "table": table}).one_or_none()
        if found is not None:
            return RecordedJob(*found)
    # Another job may have upgraded the ledger since this process first looked at it.
    refuse_too_new(claimed.least_reader)
    return None


def record_job_in_tx(connection: Connection, sink_name: str, job: Job, published: Published) -> None:
    """Record what was published under the key that this transaction has claimed."""
    recorded = {
        "rows": published.rows,
        "transport": published.transport,
        "content_hash": job.content_hash,
        "targets": published.targets,
        "counts": published.counts,
        "application": f"{socket.gethostname()} pid {os.getpid()}",
    }
    ask(driver_connection(connection), _RECORD, {"sink": sink_name, "key": job.batch_key, **of_columns(recorded)})


def record_skip_in_tx(connection: Connection, sink_name: str, job: Job) -> None:
    """Record that this attempt was skipped; once, however often its commit is tried."""
    skip = postgresql.insert(batch_job_skips).values(sink_name=sink_name, batch_key=job.batch_key, attempt=job.attempt)
    send_once(connection, skip.on_conflict_do_nothing())
