"""
Find out which session keeps a transaction waiting, and end it if its client is gone.

Runs in a thread while a commit or a recovery waits that has already waited once without getting its lock, and while a
transaction waits for locks that others of ours hold only for a moment. Invariant: it ends only sessions of pgonce that
hold this writer's row and wait for their client. That client is frozen, dead, or a slow driver of the same query, and
to abort its uncommitted transaction is always safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from ..errors import PgonceError
from .bounds import enter_in_tx
from .connect import connect

_log = logging.getLogger("pgonce")

_LONGEST_BEFORE_LOOKING_SECONDS = 0.5


class HeldByOthersError(psycopg.errors.LockNotAvailable):
    """A lock was not granted, and it is already known who holds it: ``holders`` is the text for that."""

    def __init__(self, text: str, holders: str) -> None:
        super().__init__(text)
        self.holders = holders


@dataclass
class LockWatch:
    """
    ``armed`` after the first lock timeout (in seconds); ``holders`` is the text for the sessions that hold the lock,
    and ``has_own`` tells whether one of them is of the run that waits.
    """

    url: str = field(repr=False)
    lock_timeout: float
    armed: bool = False
    holders: str = "its holder was not seen"
    has_own: bool = False

    @contextmanager
    def looking(self, waiting_pid: int, *, may_end: bool) -> Iterator[None]:
        """
        See who blocks the server's process ``waiting_pid``, if the block inside takes longer than it should.

        ``may_end`` if it waits for the writer's row, which only another driver of the same writer holds. (New writers
        of one sink take turns under a lock, which another query may hold while it is busy with its first batch.)
        """
        if not self.armed:
            yield
            return
        seconds = min(_LONGEST_BEFORE_LOOKING_SECONDS, self.lock_timeout / 2)
        is_over = threading.Event()
        timer = threading.Timer(seconds, self._look, [waiting_pid, may_end, is_over])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            is_over.set()
            timer.cancel()

    def _look(self, waiting_pid: int, may_end: bool, is_over: threading.Event) -> None:
        try:
            with connect(self.url) as observer:
                enter_in_tx(observer)
                found = observer.execute(_HOLDERS, {"waiting": waiting_pid}).fetchall()
                if found:
                    self.holders, self.has_own = "; ".join(row[1] for row in found), any(row[3] for row in found)
                    _log.warning("waiting for a lock held by: %s", self.holders)
                for pid, who, is_stuck, _ in found:
                    # A look may be late, and the session may wait for something else by then.
                    if may_end and is_stuck and not is_over.is_set():
                        _log.warning(
                            "ending the session of another run of this query, which waits for its client: %s", who
                        )
                        observer.execute("SELECT pg_terminate_backend(%s)", [pid])
        except (psycopg.Error, PgonceError) as error:
            # This is only for information: the bound of the commit itself decides.
            _log.info("could not find out who holds the lock: %s", error)


WHO = (
    "concat('pid ', a.pid, ', application ', quote_literal(a.application_name), ', user ', a.usename, "
    "CASE WHEN a.state IS NULL THEN ', of which only a role with pg_read_all_stats sees more' "
    "ELSE concat(', ', a.state, ' since ', a.state_change, ', query: ', "
    "regexp_replace(split_part(split_part(left(a.query, 120), chr(39), 1), '$', 1), "
    "'(?<![a-zA-Z0-9_\"])[0-9]+', '?', 'g')) END)"
)
"""A session of ``pg_stat_activity AS a`` in SQL. Its query shows no texts and no numbers: they may be secrets."""

_HOLDERS = f"""
SELECT a.pid, {WHO},
       a.application_name LIKE 'pgonce %%' AND a.wait_event = 'ClientRead'
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_locks AS l
                       WHERE l.pid = %(waiting)s AND l.locktype = 'advisory' AND NOT l.granted),
       a.application_name = (SELECT w.application_name FROM pg_catalog.pg_stat_activity AS w WHERE w.pid = %(waiting)s)
FROM pg_catalog.pg_stat_activity AS a
WHERE a.pid = ANY (pg_catalog.pg_blocking_pids(%(waiting)s))
"""
