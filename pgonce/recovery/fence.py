"""
Keep a running query out while its checkpoint or its place in the ledger is changed.

Runs on the driver before a start, and in the command ``pgonce``. Invariant: a writer is changed only where it is as it
was read, under the lock that a commit takes, and the change is noted in the same transaction.

It first looks for signs that the query runs, and reports each as a text. If it finds none, that is not a proof. Safety
comes from the fence, which is set before a file is changed: a run that is alive after all is refused at its next batch.
The fence also ends the session that a dead run has left behind, as a commit does, so such a session is not a sign of
life.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection, Row, extract, func, insert, select, text, update

from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import NOTHING_CHANGED, RunningQueryError
from pgonce.offsets_store.ledger.session import reading, writing
from pgonce.offsets_store.ledger.tables import interventions, positions, replays, writers
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.translate import driver_error
from pgonce.offsets_store.status.read_stored import task_positions

from .read_stopped_query import read_checkpoint, with_state
from .stopped_query import CheckpointFacts, SinkFacts

# A commit that is under way holds the row until it is done; then the query runs, and must be stopped first.
_LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class StoppedQuery:
    """
    A query that should not run, and what was ``read`` of it: its sinks, and its checkpoint if there is one.

    ``quiet_seconds`` says how long nothing may have been written, and ``wait_seconds`` how long to wait for that.
    """

    url: str
    query_id: str
    sinks: Sequence[SinkFacts]
    quiet_seconds: float
    wait_seconds: float
    read: tuple[CheckpointWriter, CheckpointFacts] | None = None

    @property
    def living(self) -> list[SinkFacts]:
        """The sinks that it still feeds."""
        return [sink for sink in self.sinks if sink.is_living]

    def has_changed(self) -> bool:
        """Whether the checkpoint is another one than was read."""
        if self.read is None:
            return False
        writer, checkpoint = self.read
        return with_state(writer.files, read_checkpoint(writer.files), self.sinks) != checkpoint


def take_over(stopped: StoppedQuery, kind: str, stands_at: int | None, details: dict[str, Any]) -> str:
    """
    Make sure that the query does not run, take its living sinks from the runs that own them, and note why.

    No run continues from what was read: each is refused at its next batch. The answer is the new owner's id.

    :raises RecoveryError: QUERY_RUNNING, also if a sink or the checkpoint has moved since it was read.
    """
    refuse_running(stopped)
    # Takes the place of the run's id, so that the run is refused.
    recovery = f"recovery-{uuid4()}"
    with holding(stopped.url, stopped.living) as connection:
        for sink in stopped.living:
            # The ledger drops positions of tasks of a run that is not the owner. For a query that has none, a role
            # needs no grant on their table.
            if task_positions(connection, [sink.writer_id]):
                of_tasks = update(positions).where(positions.c.writer_id == sink.writer_id)
                connection.execute(of_tasks.values(run_id=recovery, claim=None))
            connection.execute(update(writers).where(writers.c.writer_id == sink.writer_id).values(run_id=recovery))
            note(connection, sink.writer_id, kind, batch_id=stands_at, details={**details, "recovery": recovery})
    # After the fence: from here on no batch can be published, but one may have been planned until now.
    if stopped.has_changed():
        raise _moved(
            "the checkpoint",
            "No file was changed. But in the ledger, the query no longer belongs to its run, whose next batch is "
            "refused.",
        )
    return recovery


def note(connection: Connection, writer_id: int, kind: str, **values: Any) -> None:
    """Record what was done to a writer, by whom, and why."""
    connection.execute(insert(interventions).values(writer_id=writer_id, kind=kind, **values))


@contextmanager
def holding(url: str, sinks: Sequence[SinkFacts]) -> Iterator[Connection]:
    """
    A transaction on the ledger that holds the rows of the sinks, which are as they were read.

    :raises RecoveryError: QUERY_RUNNING, if another session has locked a row, or the row has moved.
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

    :raises RecoveryError: QUERY_RUNNING, if another session has locked it.
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
        raise RunningQueryError.usual(
            "QUERY_RUNNING",
            f"The query seems to run: the row of its sink {sink_name!r} in the ledger is locked; {watch.holders}.",
            "Stop the query everywhere, or end that session if it is not the query's, and try again.",
        ) from error


def _is_locked(error: sqlalchemy.exc.DBAPIError) -> bool:
    return isinstance(driver_error(error), psycopg.errors.LockNotAvailable)


def _moved(what: str, data: str = NOTHING_CHANGED) -> RunningQueryError:
    return RunningQueryError(
        "QUERY_RUNNING",
        f"The query seems to run, or another session is recovering it: {what} has moved since it was read.",
        data,
        "Stop the query everywhere and try again.",
    )


QUIET_SECONDS = 5.0
"""
How long nothing may have been written.

Spark writes a file for each batch (with asynchronous progress tracking, one a second by default), and the ledger gets a
row for each batch. So a query that has work is silent for this long only while a batch is running. A query without work
is silent for as long as it waits; it has no batch under way, and the fence refuses its next one.
"""

_POLL_SECONDS = 0.2


def refuse_running(stopped: StoppedQuery) -> None:
    """
    Wait until nothing shows that the query runs.

    :raises RecoveryError: QUERY_RUNNING, with what shows it.
    """
    deadline = time.monotonic() + stopped.wait_seconds
    sessions = _Sessions(stopped.quiet_seconds)
    while True:
        signs = _signs_of_life(stopped, sessions)
        if not signs:
            return
        if time.monotonic() >= deadline:
            raise RunningQueryError.usual(
                "QUERY_RUNNING",
                f"Query {stopped.query_id} seems to run: {'; '.join(signs)}.",
                f"Stop the query everywhere, wait {stopped.quiet_seconds:g} seconds (--wait does that), and try again. "
                "If a dead host has left a session, pgonce ends it when it has waited for its client for that time.",
            )
        time.sleep(_POLL_SECONDS)


def _signs_of_life(stopped: StoppedQuery, sessions: _Sessions) -> list[str]:
    """The texts for the signs that the query runs; empty if there is no sign."""
    living, quiet = stopped.living, stopped.quiet_seconds
    signs = ["it is active in this process"] if _is_active_here(stopped.query_id) else []
    with reading(stopped.url) as connection:
        signs += sessions.alive(connection, living) + _young_rows(connection, living, quiet)
    if stopped.read is not None:
        signs += _young_files(*stopped.read, quiet)
    return signs


def _is_active_here(query_id: str) -> bool:
    # Only if Spark is loaded already: this must neither start it nor need it to be installed.
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    if session is None:
        return False
    if hasattr(session, "_jsparkSession"):
        # Of all sessions of this driver, because a session lists only the queries that it has started.
        active = session._jsparkSession.sharedState().activeStreamingQueries().keySet().toArray()
        return any(key.toString() == query_id for key in active)
    return any(query.id == query_id for query in session.streams.active)


@dataclass
class _Sessions:
    """The sessions that the query's runs commit in, looked at repeatedly to see which of them are alive."""

    quiet_seconds: float
    _seen: dict[str, float] = field(default_factory=dict)

    def alive(self, connection: Connection, sinks: Sequence[SinkFacts]) -> list[str]:
        """
        The texts for the sessions that are alive: all but those that have waited for their client for
        ``quiet_seconds``.

        Postgres tells since when a transaction has been idle. For a COPY it tells how many bytes have come, so two
        looks at it are compared.
        """
        now = time.monotonic()
        found = connection.execute(_SESSIONS, {"runs": [f"pgonce {sink.run_id}" for sink in sinks]}).all()
        self._seen = {row.now_at: self._seen.get(row.now_at, now) for row in found}
        return [
            f"its run commits in session {row.pid} ({row.application_name}, {row.does})"
            for row in found
            if not row.waits_for_client
            or max(float(row.idle_seconds), now - self._seen[row.now_at]) < self.quiet_seconds
        ]


# Of another role's session only the name is shown, so nothing tells whether it waits for its client.
_SESSIONS = text("""
SELECT a.pid, a.application_name,
       coalesce(a.wait_event = 'ClientRead', false) AS waits_for_client,
       CASE WHEN a.state LIKE 'idle%'
            THEN extract(epoch FROM clock_timestamp() - a.state_change) ELSE 0 END AS idle_seconds,
       concat_ws(' ', a.pid, a.backend_start, a.state_change, p.bytes_processed) AS now_at,
       CASE WHEN a.state IS NULL THEN 'what it does is not shown to this role, which needs pg_read_all_stats'
            WHEN a.wait_event = 'ClientRead' THEN format('%s, waits for its client', a.state)
            ELSE a.state END AS does
FROM pg_stat_activity AS a LEFT JOIN pg_stat_progress_copy AS p ON p.pid = a.pid
WHERE a.application_name = ANY(:runs)
""")


def _young_rows(connection: Connection, sinks: Sequence[SinkFacts], quiet_seconds: float) -> list[str]:
    ids = [sink.writer_id for sink in sinks]
    published = select(func.max(writers.c.updated_at)).where(writers.c.writer_id.in_(ids)).scalar_subquery()
    skipped = select(func.max(replays.c.skipped_at)).where(replays.c.writer_id.in_(ids)).scalar_subquery()
    age = extract("epoch", func.clock_timestamp() - func.greatest(published, skipped))
    seconds = connection.execute(select(age)).scalar_one()
    if seconds is None or float(seconds) >= quiet_seconds:
        return []
    return [f"the ledger heard of it {float(seconds):.1f} s ago"]


def _young_files(writer: CheckpointWriter, checkpoint: CheckpointFacts, quiet_seconds: float) -> list[str]:
    newest = [("offsets", checkpoint.newest), ("commits", checkpoint.newest_commit)]
    entries = [f"{folder}/{number}" for folder, number in newest if number is not None]
    signs = []
    for name in [*entries, *sorted(checkpoint.unfinished)]:
        written = writer.written_at(name)
        if written is not None and (datetime.now(timezone.utc) - written).total_seconds() < quiet_seconds:
            signs.append(f"{name} was written at {written:%H:%M:%S.%f}, less than {quiet_seconds:g} s ago")
    return signs
