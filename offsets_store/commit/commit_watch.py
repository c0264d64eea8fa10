"""
Say in the log what a COMMIT waits for, if Postgres does not answer it soon.

Runs beside the commits of a process, in one thread. Invariant: it only looks, over a connection of its own, and only at
a COMMIT that has been waiting for :data:`WAIT_LOGGED_EVERY_SECONDS`.
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
_LOOK_EVERY_SECONDS = 1.0


@dataclass(eq=False)
class _Commit:
    url: str = field(repr=False)
    backend_pid: int
    what: str
    began: float = field(default_factory=time.monotonic)
    said_at: float = 0.0
    """How many seconds it had waited when the log said so last."""


# Those of this process whose answers are awaited.
_waiting: set[_Commit] = set()
_begin = threading.Lock()
_is_looking = False


def _begin_anew() -> None:
    # Commits and threads of a process that was forked are its parent's, and so is who holds the lock.
    global _begin, _is_looking
    _waiting.clear()
    _begin, _is_looking = threading.Lock(), False


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def saying_why_it_waits(url: str, backend_pid: int, what: str) -> Iterator[None]:
    """
    While the block waits for the COMMIT of ``backend_pid``, log every half minute what the server waits for.

    :param what: what is committed, for the log.
    """
    _begin_looking()
    commit = _Commit(url, backend_pid, what)
    _waiting.add(commit)
    try:
        yield
    finally:
        _waiting.discard(commit)


def _begin_looking() -> None:
    # One thread for all: a thread for each commit took a twentieth of a small one's time.
    global _is_looking  # noqa: PLW0603
    with _begin:
        if not _is_looking:
            try:
                threading.Thread(target=_look, name="pgonce-commit-watch", daemon=True).start()
                _is_looking = True
            except RuntimeError as error:
                # It only writes to the log, and the next commit tries again.
                _log.info("long commits are not reported now: %s", error)


def _look() -> None:
    while True:
        time.sleep(_LOOK_EVERY_SECONDS)
        # A copy, because others begin and end meanwhile.
        for commit in tuple(_waiting):
            if time.monotonic() - commit.began < commit.said_at + WAIT_LOGGED_EVERY_SECONDS:
                continue
            why = _reason(commit.url, commit.backend_pid)
            if commit in _waiting:
                commit.said_at = time.monotonic() - commit.began
                _log.warning("%s: COMMIT has been waiting for %.0f s: %s", commit.what, commit.said_at, why)


def _reason(url: str, backend_pid: int) -> str:
    try:
        with connect(url) as observer:
            enter_in_tx(observer)
            found = observer.execute(_WAITS_FOR, [backend_pid]).fetchone()
    except (psycopg.Error, PgonceError) as error:
        return f"Postgres could not be asked why: {' '.join(str(error).split())}"
    except Exception as error:  # noqa: BLE001 (nothing that happens here may end the thread)
        return f"Postgres could not be asked why: {type(error).__name__}"
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
