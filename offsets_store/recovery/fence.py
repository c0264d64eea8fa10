"""
What keeps a running query out, while its checkpoint or its place in the ledger is changed?

Runs on the driver before a start, and in the command ``pgonce``. Invariant: a writer is changed only where it is as it
was read, under the lock that a commit takes, and the change is noted in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection, Row, func, insert, select, update

from ..checkpoint.writer import CheckpointWriter
from ..errors import RecoveryError
from ..ledger.session import writing
from ..ledger.tables import batches, interventions, writers
from ..postgres.lock_watch import LockWatch
from ..postgres.translate import driver_error
from .read_stopped_query import read_checkpoint, with_state
from .refused_recovery import NOTHING_CHANGED, no_checkpoint
from .still_running import refuse_running
from .stopped_query import CheckpointFacts, SinkFacts

RECOVERY = "recovery-"
"""Begins the run id that a recovery gives to a writer, so that the run before it is refused."""

# A commit that is under way holds the row until it is done; then the query runs, and must be stopped first.
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class StoppedQuery:
    """A query that should not run, and what was read of it."""

    url: str
    writer: CheckpointWriter
    checkpoint: CheckpointFacts
    sinks: Sequence[SinkFacts]
    quiet_seconds: float
    wait_seconds: float


def take_over(stopped: StoppedQuery, kind: str, stands_at: int | None, details: dict[str, Any]) -> str:
    """
    Make sure that the query does not run, and that nobody continues from what was read; the new owner's id.

    :raises RecoveryError: RECOVERY_RUNNING.
    """
    query_id = stopped.checkpoint.query_id
    if query_id is None:
        raise no_checkpoint(stopped.checkpoint)
    living = [sink for sink in stopped.sinks if sink.is_living]
    refuse_running(
        stopped.url,
        stopped.writer,
        stopped.checkpoint,
        living,
        query_id,
        quiet_seconds=stopped.quiet_seconds,
        wait_seconds=stopped.wait_seconds,
    )
    owner = fence(stopped.url, living, kind, stands_at, details)
    # After the fence: from here on no batch can be published, but one may have been planned until now.
    files = stopped.writer.files
    if with_state(files, read_checkpoint(files), stopped.sinks) != stopped.checkpoint:
        raise _moved(
            "the checkpoint",
            "No file was changed. The ledger has taken the query from its run, which is refused at its next batch.",
        )
    return owner


def fence(
    url: str,
    sinks: Sequence[SinkFacts],
    kind: str,
    stands_at: int | None,
    details: dict[str, Any],
    entry: str | None = None,
) -> str:
    """
    Take the sinks from the runs that own them, and note why; the new owner's id.

    :param entry: the text of ``offsets/`` to record with each sink's newest batch, where none is recorded.
    :raises RecoveryError: RECOVERY_RUNNING, where a sink has moved since it was read.
    """
    recovery = f"{RECOVERY}{uuid4()}"
    with holding(url, sinks) as connection:
        for sink in sinks:
            connection.execute(update(writers).where(writers.c.writer_id == sink.writer_id).values(run_id=recovery))
            note(connection, sink, kind, batch_id=stands_at, details={**details, "recovery": recovery})
            if entry is not None:
                _record_entry(connection, sink, entry)
    return recovery


def _record_entry(connection: Connection, sink: SinkFacts, entry: str) -> None:
    connection.execute(
        update(batches)
        .where(
            batches.c.writer_id == sink.writer_id,
            batches.c.generation == sink.generation,
            batches.c.batch_id == sink.last_batch_id,
            batches.c.offset_log.is_(None),
        )
        .values(offset_log=entry)
    )


def note(connection: Connection, sink: SinkFacts, kind: str, **values: Any) -> None:
    """Record what was done to a sink, and by whom."""
    connection.execute(insert(interventions).values(writer_id=sink.writer_id, kind=kind, **values))


@contextmanager
def holding(url: str, sinks: Sequence[SinkFacts]) -> Iterator[Connection]:
    """
    A transaction on the ledger that holds the rows of the sinks, which are as they were read.

    :raises RecoveryError: RECOVERY_RUNNING, where a row is locked by somebody else, or has moved.
    """
    with writing(url, _LOCK_SECONDS) as connection:
        # In the order of their keys: two recoveries at the same time must not each hold what the other needs.
        for sink in sorted(sinks, key=lambda sink: sink.writer_id):
            row = lock_writer_row(connection, sink.writer_id, sink.sink_name, url)
            as_read = (sink.run_id, sink.generation, sink.last_batch_id)
            if row is None or (row.run_id, row.generation, row.last_batch_id) != as_read:
                raise _moved(sink.sink_name)
        yield connection


def lock_writer_row(connection: Connection, writer_id: int, sink_name: str, url: str) -> Row[Any] | None:
    """
    Lock the writer's row as a commit does.

    If a first wait does not get it, the session that holds it is ended if it is pgonce's own and waits for its client.

    :raises RecoveryError: RECOVERY_RUNNING, where it is locked by somebody else.
    """
    wanted = select(writers).where(writers.c.writer_id == writer_id).with_for_update()
    try:
        with connection.begin_nested():
            return connection.execute(wanted).one_or_none()
    except sqlalchemy.exc.DBAPIError as error:
        if not _is_locked(error):
            raise
    watch = LockWatch(url, _LOCK_SECONDS, armed=True)
    pid = connection.execute(select(func.pg_backend_pid())).scalar_one()
    try:
        with watch.looking(pid, may_end=True):
            return connection.execute(wanted).one_or_none()
    except sqlalchemy.exc.DBAPIError as error:
        if not _is_locked(error):
            raise
        raise RecoveryError(
            "RECOVERY_RUNNING",
            f"The query seems to run: the row of its sink {sink_name!r} in the ledger is locked; {watch.holders}.",
            NOTHING_CHANGED,
            "Stop the query everywhere, or end that session if it is not the query's, and try again.",
        ) from error


def _is_locked(error: sqlalchemy.exc.DBAPIError) -> bool:
    return isinstance(driver_error(error), psycopg.errors.LockNotAvailable)


def _moved(what: str, data: str = NOTHING_CHANGED) -> RecoveryError:
    """Something has changed between the reading and the writing."""
    return RecoveryError(
        "RECOVERY_RUNNING",
        f"The query seems to run, or somebody else is recovering it: {what} has moved since it was read.",
        data,
        "Stop the query everywhere and try again.",
    )
