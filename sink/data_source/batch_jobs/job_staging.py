"""
Where are a batch job's rows staged, and which staging tables of batch jobs are of no use any more?

Runs in tasks and in the commit worker. Invariant: two runs never share a staging table, because each has a random id.
A table is dropped once its run is over, or its key is published, after which no run can use it. Age decides nothing.
"""

from __future__ import annotations

from uuid import UUID

import psycopg

from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS, enter_in_tx

from ...identity.origin import Origin
from ...staging.table import StagingTable, drop_staging_table

# Stands before the key where a stream's staging table has the id of its query.
_OF_KEY = "batchKey "


def job_origin(batch_key: str, run: UUID) -> Origin:
    """To which run of which job rows belong; a job has one batch, and no checkpoint."""
    return Origin(_OF_KEY + batch_key, str(run), 0, None)


def job_staging_table(batch_key: str, sink_label: str, run: UUID) -> StagingTable:
    """The staging table of one run of a job."""
    origin = job_origin(batch_key, run)
    return StagingTable(origin.query_id, sink_label, origin.run_id, origin.batch_id)


def give_up(connection: psycopg.Connection, batch_key: str, sink_label: str, run: UUID) -> None:
    """
    Drop what a run has staged that Spark has given up, and note that it is over.

    A task of it that is still being killed may stage rows a moment later. Because of the note, a later sweep knows that
    nobody needs them.

    :raises psycopg.Error: what Postgres says.
    """
    with connection.transaction():
        enter_in_tx(connection, LOCK_SECONDS)
        connection.execute(
            "INSERT INTO pgonce.batch_job_aborts (attempt, batch_key) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [run, batch_key],
        )
    drop_staging_table(connection, job_staging_table(batch_key, sink_label, run).name)


def sweep_jobs(connection: psycopg.Connection, sink_label: str, sink_name: str) -> None:
    """
    Drop staging tables of the sink that no run needs: those of published keys, and of runs that Spark has given up.

    A run that was killed has left its table behind, too. Nothing in Postgres tells such a run from one that still
    computes its rows. But once its key is published, by whichever run, all others can only be skipped.
    """
    with connection.transaction():
        enter_in_tx(connection, LOCK_SECONDS)
        rows = connection.execute(
            _NOT_NEEDED, {"sink": sink_name, "label": sink_label, "of_key": _OF_KEY, "key_from": len(_OF_KEY) + 1}
        ).fetchall()
    for (name,) in rows:
        drop_staging_table(connection, name)


_NOT_NEEDED = """
SELECT s.table_name FROM pgonce.staged_tables AS s
WHERE s.sink_name = %(label)s AND starts_with(s.query_id, %(of_key)s)
AND (EXISTS (SELECT FROM pgonce.batch_jobs AS j
             WHERE j.sink_name = %(sink)s AND j.batch_key = substr(s.query_id, %(key_from)s))
     OR EXISTS (SELECT FROM pgonce.batch_job_aborts AS a WHERE a.attempt = s.run_id::uuid))
"""
