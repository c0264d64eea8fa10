"""
Why does COMMIT not return?

Runs beside a COMMIT. Invariant: it only looks and logs. A COMMIT that is done within half a minute costs no connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ..errors import PgonceError
from ..postgres.bounds import enter_in_tx
from ..postgres.connect import connect

_log = logging.getLogger("pgonce")

SAID_EVERY_SECONDS = 30.0


@contextmanager
def saying_why_it_waits(url: str, backend_pid: int, what: str) -> Iterator[None]:
    """
    While the block waits for the COMMIT of ``backend_pid``, log every half minute what the server waits for.

    :param what: what is committed, for the log.
    """
    done = threading.Event()
    threading.Thread(
        target=_watch, args=(url, backend_pid, what, done), name="pgonce-commit-watch", daemon=True
    ).start()
    try:
        yield
    finally:
        done.set()


def _watch(url: str, backend_pid: int, what: str, done: threading.Event) -> None:
    began = time.monotonic()
    while not done.wait(SAID_EVERY_SECONDS):
        why = _reason(url, backend_pid)
        if not done.is_set():
            waited = time.monotonic() - began
            _log.warning("%s: COMMIT has been waiting for %.0f s: %s", what, waited, why)


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
