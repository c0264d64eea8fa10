"""
Say in the log what a COMMIT waits for, if Postgres does not answer it soon.

Runs beside the commit, in threads of its own. Invariant: it only looks, over a connection of its own, and only at a
COMMIT that has been waiting for :data:`WAIT_LOGGED_EVERY_SECONDS`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from ..errors import PgonceError
from ..postgres.bounds import enter_in_tx
from ..postgres.connect import connect

_log = logging.getLogger("pgonce")

WAIT_LOGGED_EVERY_SECONDS = 30.0


@contextmanager
def saying_why_it_waits(url: str, backend_pid: int, what: str) -> Iterator[None]:
    """
    While the block waits for the COMMIT of ``backend_pid``, log every half minute what the server waits for.

    :param what: what is committed, for the log.
    """
    commit = _Commit(url, backend_pid, what)
    _watch.add(commit)
    try:
        yield
    finally:
        _watch.remove(commit)


@dataclass(eq=False)
class _Commit:
    url: str = field(repr=False)
    backend_pid: int
    what: str
    began: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def looked_at(self) -> float:
        """When it is looked at, unless it is done by then."""
        return self.began + WAIT_LOGGED_EVERY_SECONDS

    def say(self) -> None:
        """Log what it waits for, again and again, until it is done."""
        while not self.done.is_set():
            why = _reason(self.url, self.backend_pid)
            if not self.done.is_set():
                waited = time.monotonic() - self.began
                _log.warning("%s: COMMIT has been waiting for %.0f s: %s", self.what, waited, why)
            self.done.wait(WAIT_LOGGED_EVERY_SECONDS)


class _Watch:
    """
    All commits of this process whose answers are awaited.

    One thread sleeps until the first of them would be looked at, and ends when there is none. (A thread for each commit
    took a twentieth of a small one's time.)
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Know of no commits: those of a process that was forked are its parent's."""
        self._lock = threading.Lock()
        self._waiting: set[_Commit] = set()
        self._is_running = False

    def add(self, commit: _Commit) -> None:
        """Its COMMIT is about to be sent."""
        with self._lock:
            self._waiting.add(commit)
            if not self._is_running:
                try:
                    threading.Thread(target=self._run, name="pgonce-commit-watch", daemon=True).start()
                except RuntimeError as error:
                    # It only writes to the log, and the next commit tries again.
                    _log.info("long commits are not reported now: %s", error)
                else:
                    self._is_running = True

    def remove(self, commit: _Commit) -> None:
        """Its COMMIT is answered, or never will be."""
        commit.done.set()
        with self._lock:
            self._waiting.discard(commit)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                now = time.monotonic()
                late = [commit for commit in self._waiting if commit.looked_at <= now]
                self._waiting.difference_update(late)
                seconds = min((commit.looked_at for commit in self._waiting), default=now) - now
            for commit in late:
                # One each, because the server may be slow to answer for one of them.
                threading.Thread(target=commit.say, name="pgonce-commit-watch", daemon=True).start()
            time.sleep(seconds)


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.begin)


def _reason(url: str, backend_pid: int) -> str:
    try:
        with connect(url) as observer:
            enter_in_tx(observer)
            found = observer.execute(_WAITS_FOR, [backend_pid]).fetchone()
    except (psycopg.Error, PgonceError) as error:
        return f"Postgres could not be asked why: {' '.join(str(error).split())}"
    if found is None:
        return f"its session (pid {backend_pid}) is gone"
    waits_for, standbys = found
    if waits_for == "IPC/SyncRep":
        return (
            f"too few synchronous standbys have confirmed it (pid {backend_pid} waits for {waits_for}; "
            f"synchronous_standby_names = {standbys!r})"
        )
    return f"pid {backend_pid} waits for {waits_for}" if waits_for else f"pid {backend_pid} is at work"


_WAITS_FOR = """
SELECT wait_event_type || '/' || wait_event, current_setting('synchronous_standby_names')
FROM pg_stat_activity WHERE pid = %s
"""
