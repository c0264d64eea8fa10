"""
Keep in ``pgonce.heartbeats`` which runs of queries are alive, and since when they find nothing to read.

Runs on the driver: what Spark says is noted in Spark's thread, without any I/O, and stored in the listener's thread.
Invariant: it is one short transaction for all runs of a listener, every :data:`BEAT_SECONDS`, and one more when runs
have started or ended. A run whose driver was killed falls silent; one that has ended, with its driver or before it, has
``ended_at``.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from .stored_progress import begin_in_tx

BEAT_SECONDS = 15.0
# Of queries that are started in a loop, this many ends are said in one transaction.
_TOGETHER_SECONDS = 1.0
KEPT_RUNS = 20
_MOST_RUNS = 1000


@dataclass(frozen=True)
class Run:
    """One run of a query, as far as a listener has heard it. Times are those of a clock that never goes back."""

    query_id: str
    run_id: str
    query_name: str | None
    started_at: float
    idle_since: float | None = None
    ended_at: float | None = None
    ended_by: str | None = None


class Heartbeats:
    """The runs that one listener hears."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The thread that a SIGTERM interrupts may hold it.
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}
        self._has_news = False
        self._said_at: float | None = None
        self._waits_until: float | None = None
        self._listener = f"{socket.gethostname()}, process {os.getpid()}"

    def start(self, query_id: str, run_id: str, query_name: str | None) -> None:
        """A run has started."""
        with self._lock:
            self._heard(query_id, run_id, query_name)

    def progress(self, query_id: str, run_id: str, query_name: str | None, *, has_rows: bool) -> None:
        """A run has finished a batch."""
        with self._lock:
            run = self._heard(query_id, run_id, query_name)
            self._runs[run_id] = replace(run, query_name=query_name, idle_since=None if has_rows else run.idle_since)

    def idle(self, query_id: str, run_id: str) -> None:
        """A run finds nothing to read."""
        with self._lock:
            run = self._heard(query_id, run_id, None)
            if run.idle_since is None:
                self._runs[run_id] = replace(run, idle_since=self._clock())

    def end(self, query_id: str, run_id: str, ended_by: str | None) -> Run:
        """A run has ended, with the code or the class of an error if there was one."""
        with self._lock:
            run = replace(self._heard(query_id, run_id, None), ended_at=self._clock(), ended_by=ended_by)
            self._runs[run_id] = run
            self._has_news = True
            # While Postgres is unavailable, ends would pile up.
            if len(self._runs) > _MOST_RUNS:
                oldest = next((each for each in self._runs.values() if each.ended_at is not None), run)
                del self._runs[oldest.run_id]
            return run

    def living(self) -> list[Run]:
        """The runs that have not ended yet."""
        with self._lock:
            return [run for run in self._runs.values() if run.ended_at is None]

    def _heard(self, query_id: str, run_id: str, query_name: str | None) -> Run:
        if run_id not in self._runs:
            self._runs[run_id] = Run(query_id, run_id, query_name, self._clock())
            self._has_news = True
        return self._runs[run_id]

    def is_due(self, *, at_last: bool = False) -> bool:
        """Whether something is to be said now; ``at_last`` if nothing can be said later."""
        with self._lock:
            if not self._runs or (self._waits_until is not None and self._clock() < self._waits_until):
                return False
            silent = None if self._said_at is None else self._clock() - self._said_at
            if silent is None or silent >= BEAT_SECONDS:
                return True
            return self._has_news and (at_last or silent >= _TOGETHER_SECONDS)

    def wait(self, seconds: float) -> None:
        """Say nothing for so long: what was to be said could not be stored."""
        with self._lock:
            self._waits_until = self._clock() + seconds
            self._has_news = True

    def store_in_tx(self, connection: Connection) -> list[Run]:
        """Say that the runs are alive, or have ended; return them, for :meth:`forget_ended` after the commit."""
        with self._lock:
            runs, now, is_first = list(self._runs.values()), self._clock(), self._said_at is None
            self._said_at, self._has_news = now, False
        begin_in_tx(connection)
        connection.exec_driver_sql(
            _BEAT,
            {
                "query_ids": [run.query_id for run in runs],
                "run_ids": [run.run_id for run in runs],
                "names": [run.query_name for run in runs],
                "started": [now - run.started_at for run in runs],
                "idle": [None if run.idle_since is None else now - run.idle_since for run in runs],
                "ended": [None if run.ended_at is None else now - run.ended_at for run in runs],
                "ended_by": [run.ended_by for run in runs],
                "listener": self._listener,
                "kept": KEPT_RUNS,
                "sweeps": is_first,
            },
        )
        return runs

    def forget_ended(self, runs: list[Run]) -> None:
        """Forget those of these runs that have ended: it is in the ledger."""
        with self._lock:
            for run in runs:
                if run.ended_at is not None and self._runs.get(run.run_id) == run:
                    del self._runs[run.run_id]


# Times are told as seconds ago, because the driver's clock may be another than the server's.
_BEAT = """
WITH heard AS (
    SELECT query_id, run_id, query_name, ended_by,
           statement_timestamp() - make_interval(secs => started) AS started_at,
           statement_timestamp() - make_interval(secs => idle) AS idle_since,
           statement_timestamp() - make_interval(secs => ended) AS ended_at
    FROM unnest(%(query_ids)s::text[], %(run_ids)s::text[], %(names)s::text[], %(started)s::float8[],
                %(idle)s::float8[], %(ended)s::float8[], %(ended_by)s::text[])
        AS r (query_id, run_id, query_name, started, idle, ended, ended_by)
), older AS (
    SELECT h.query_id, h.run_id, row_number() OVER (PARTITION BY h.query_id ORDER BY h.started_at DESC) AS place
    FROM pgonce.heartbeats AS h
    WHERE h.query_id IN (SELECT query_id FROM heard) AND h.run_id NOT IN (SELECT run_id FROM heard)
), pruned AS (
    DELETE FROM pgonce.heartbeats AS h USING older AS o
    WHERE h.query_id = o.query_id AND h.run_id = o.run_id AND o.place >= %(kept)s
), swept AS (
    -- A query without a checkpoint has a new id at each start, and writes elsewhere.
    DELETE FROM pgonce.heartbeats AS h
    WHERE %(sweeps)s AND h.heard_at < statement_timestamp() - interval '7 days'
        AND NOT EXISTS (SELECT FROM pgonce.writers AS w WHERE w.query_id = h.query_id)
        AND h.query_id NOT IN (SELECT query_id FROM heard)
)
INSERT INTO pgonce.heartbeats AS h
    (query_id, run_id, query_name, listener, started_at, heard_at, idle_since, ended_at, ended_by)
SELECT query_id, run_id, query_name, %(listener)s, started_at, statement_timestamp(), idle_since, ended_at, ended_by
FROM heard
ORDER BY query_id, run_id
ON CONFLICT (query_id, run_id) DO UPDATE SET
    query_name = coalesce(excluded.query_name, h.query_name), listener = excluded.listener,
    heard_at = excluded.heard_at, idle_since = excluded.idle_since, ended_at = excluded.ended_at,
    ended_by = excluded.ended_by
"""
