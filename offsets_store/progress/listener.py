"""
Store what Spark says of its queries in the ledger: progress, compared with what is recorded there; that runs are alive;
and what ended them.

Runs on the driver (with Spark Connect, in the client): callbacks in Spark's thread, all that concerns Postgres in a
thread of its own. Invariants: a callback only notes the event; if Postgres fails or is slow, the stream does not notice
it.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import re
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ..errors import Said, said_in
from ..ledger.failures import NOT_KEPT, Failed, keep_failure
from ..ledger.migrations import ensure_ledger
from ..postgres.connect import checked_out, parse_url
from ..postgres.postgres_url import PostgresUrl
from ..postgres.translate import driver_error, ledger_error
from .heard import parse_progress
from .heartbeats import BEAT_SECONDS, Heartbeats
from .stored_progress import store_progress_in_tx

_log = logging.getLogger("pgonce")

QUEUED_EVENTS = 1000
_WARN_EVERY_SECONDS = 60.0
# Long enough not to overwhelm a server that is starting, and so short that the queue does not fill up meanwhile.
_PAUSE_AFTER_FAILURE_SECONDS = 1.0
# A ledger without the tables for it is asked again after this time: an administrator may have run `pgonce init`.
_ASK_AGAIN_SECONDS = 600.0
# Spark tells of the end of a query a moment after awaitTermination has returned.
_LAST_EVENTS_SECONDS = 0.5
_AT_EXIT_SECONDS = 2.0


class OffsetsListener(StreamingQueryListener):
    """
    Stores every progress event of every query: ``spark.streams.addListener(OffsetsListener(url))``.

    It compares the offsets with those that the ledger has recorded; a disagreement is a warning in the log, and a text
    in ``pgonce.progress``. It fills the offsets in where ``offsetsFrom=listener`` left them open. ``stored`` and
    ``dropped`` count the progress events that were stored, and those that could not be.

    It also says which runs are alive (``pgonce.heartbeats``), and what ended those that failed (``pgonce.failures``).

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param password_from: ``module:function`` that returns the password for each new connection.
    :raises ConfigurationError: BAD_URL, or a source of passwords that cannot be read. Nothing else is ever raised:
        while the server is unavailable, a warning is logged once a minute.
    """

    def __init__(self, url: str = "", *, password_from: str | None = None) -> None:
        parse_url(url)
        self._url = PostgresUrl(url, password_from)
        self._events: queue.Queue[Any] = queue.Queue(QUEUED_EVENTS)
        # The thread that a SIGTERM interrupts may hold it.
        self._lock = threading.RLock()
        self._dropped = 0
        self._stored = 0
        self._warned_at: float | None = None
        self._heartbeats = Heartbeats()
        self._ended: deque[tuple[Failed, str, Said | None]] = deque(maxlen=QUEUED_EVENTS)
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._store_all, name="pgonce-listener", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    @property
    def dropped(self) -> int:
        """How many events could not be stored."""
        return self._dropped

    @property
    def stored(self) -> int:
        """How many events are in the ledger."""
        return self._stored

    @property
    def is_closed(self) -> bool:
        """Whether it stores nothing any more."""
        return self._closing.is_set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note that a run has started; Spark waits for this callback."""
        if not self._closing.is_set():
            self._heartbeats.start(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Queue the event."""
        if self._closing.is_set():
            self._drop("the listener is closed")
            return
        try:
            self._events.put_nowait(event.progress)
        except queue.Full:
            self._drop(f"{QUEUED_EVENTS} events already wait for Postgres")
        # An event of another form than the known one is counted when it is read.
        with suppress(AttributeError, TypeError):
            progress = event.progress
            has_rows = progress.numInputRows > 0
            self._heartbeats.progress(str(progress.id), str(progress.runId), progress.name, has_rows=has_rows)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that a run finds nothing to read."""
        if not self._closing.is_set():
            self._heartbeats.idle(str(event.id), str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note that a run has ended, and why."""
        if self._closing.is_set():
            return
        said = said_in(event.exception or "")
        code = code_of_end(event.exception, event.errorClassOnException)
        run = self._heartbeats.end(str(event.id), str(event.runId), code)
        if code is not None:
            failed = Failed("listener", run.query_id, run.query_name, run_id=run.run_id)
            self._ended.append((failed, code, said))

    def close(self, timeout: float = 10.0) -> bool:
        """Store what is queued, for at most ``timeout`` seconds; whether that was all. Later events are dropped."""
        atexit.unregister(self._close_at_exit)
        self._closing.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._abandoned.set()
        left = 0
        while self._next() is not None:
            left += 1
        if left:
            self._drop(f"they were still queued when the listener was closed after {timeout:g} s", left)
        return not left and not self._thread.is_alive()

    def _close_at_exit(self) -> None:
        deadline = time.monotonic() + _LAST_EVENTS_SECONDS
        while self._heartbeats.living() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.close_with_driver("EXIT")
        # An error that ended the program has been printed by now, with Spark's plan of the query behind the sentence.
        # (At a prompt, the last error did not end it.)
        printed = said_in(str(getattr(sys, "last_value", None) or ""))
        if printed is not None and not hasattr(sys, "ps1"):
            _log.error("[%s] %s Help: %s", printed.code, printed.sentences, printed.remedy)

    def close_with_driver(self, reason: str) -> None:
        """Say that the driver ends the runs that have not ended yet, and close."""
        for run in self._heartbeats.living():
            self._heartbeats.end(run.query_id, run.run_id, reason)
        self.close(_AT_EXIT_SECONDS)

    def _store_all(self) -> None:
        while not self._abandoned.is_set():
            progress = self._next(wait=not self._closing.is_set())
            if progress is not None:
                self._store(progress)
            is_last = progress is None and self._closing.is_set()
            if self._heartbeats.is_due(at_last=is_last):
                self._beat()
            self._keep_failures()
            if is_last:
                return

    def _next(self, *, wait: bool = False) -> Any:
        try:
            # The wait is bounded, so that close() is noticed.
            return self._events.get(block=wait, timeout=0.2)
        except queue.Empty:
            return None

    def _store(self, progress: Any) -> None:
        try:
            heard = parse_progress(progress)
            ensure_ledger(self._url)
            with checked_out(self._url) as connection, connection.begin():
                found = store_progress_in_tx(connection, heard)
        except Exception as error:  # noqa: BLE001 (nothing that happens here may end the thread)
            self._drop(_reason(error))
            self._closing.wait(_PAUSE_AFTER_FAILURE_SECONDS)
            return
        self._stored += 1
        if found:
            _log.warning("query %s (%s) and the ledger disagree: %s", heard.query_id, heard.query_name, found)

    def _beat(self) -> None:
        try:
            ensure_ledger(self._url)
            with checked_out(self._url) as connection, connection.begin():
                runs = self._heartbeats.store_in_tx(connection)
        except Exception as error:  # noqa: BLE001 (as above)
            missing = (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable)
            is_refused = isinstance(driver_error(error), missing)
            self._heartbeats.wait(_ASK_AGAIN_SECONDS if is_refused else BEAT_SECONDS)
            if self._may_warn():
                _log.warning("heartbeats are not stored: %s", _reason(error))
            return
        self._heartbeats.forget_ended(runs)

    def _keep_failures(self) -> None:
        while self._ended:
            failed, code, said = self._ended.popleft()
            if said is not None:
                # Spark has logged its own lines before; this is what a person looks for.
                name = failed.query_name or failed.query_id
                _log.error("query %s has ended: [%s] %s Help: %s", name, said.code, said.sentences, said.remedy)
            message, remedy = (_OURS, said.remedy) if said else (_NOT_OURS, None)
            keep_failure(self._url, failed, code, message, remedy=remedy, is_ours=said is not None)

    def _drop(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self._dropped += count
        if self._may_warn():
            _log.warning("progress events are not stored (%d so far): %s", self._dropped, reason)

    def _may_warn(self) -> bool:
        now = time.monotonic()
        with self._lock:
            quiet = self._warned_at is not None and now < self._warned_at + _WARN_EVERY_SECONDS
            if not quiet:
                self._warned_at = now
        return not quiet


_OURS = f"Spark said that the query ended with this error. {NOT_KEPT}"
_NOT_OURS = f"The query ended with an error of Spark, or of its own code. {NOT_KEPT}"
_CLASS = re.compile(r"[A-Za-z_$][\w.$]*")


def code_of_end(exception: str | None, error_class: str | None) -> str | None:
    """
    The code of what ended a query: ours, or the class of Spark's error, or that of the exception; None if it stopped.

    :param exception: the text of the exception, which Spark gives.
    """
    if exception is None:
        return None
    said = said_in(exception)
    if said is not None:
        return said.code
    named = _CLASS.match(exception)
    return error_class or (named[0] if named else "UNKNOWN_ERROR")


def _reason(error: Exception) -> str:
    cause = driver_error(error)
    if cause is not None:
        return str(ledger_error(cause, "storing a progress event"))
    # What is left is SQLAlchemy's own text; psycopg's has been translated above.
    return f"{type(error).__name__}: {error}"


# By session and connection string.
_watching: dict[tuple[str, str, str | None], OffsetsListener] = {}
_watching_lock = threading.Lock()


def _at_sigterm(signum: int, _: object) -> None:
    """Say what ends the runs, and let the signal end the driver as it would have done."""
    for listener in list(_watching.values()):
        listener.close_with_driver("SIGTERM")
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def watch(spark: SparkSession, url: str = "", *, password_from: str | None = None) -> OffsetsListener:
    """
    Have all queries of a session heard by an :class:`OffsetsListener`, so that the states of its queries are certain.

    It is added once to a session, classic or of Spark Connect, and returned again until it is closed. If the program
    does not handle SIGTERM itself, the ledger is told within two seconds that a SIGTERM ends the driver.

    :param url: where the ledger is; a libpq URI or key=value string, empty for libpq's environment.
    :param password_from: ``module:function`` that returns the password for each new connection.
    :raises ConfigurationError: as of :class:`OffsetsListener`.
    """
    key = _session_id(spark), url, password_from
    # Python allows it in the main thread alone.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _at_sigterm)
    with _watching_lock:
        listener = _watching.get(key)
        if listener is None or listener.is_closed:
            listener = OffsetsListener(url, password_from=password_from)
            try:
                spark.streams.addListener(listener)
            except BaseException:
                listener.close(0)
                raise
            _watching[key] = listener
        return listener


def _session_id(spark: SparkSession) -> str:
    classic: Any = getattr(spark, "_jsparkSession", None)
    return str(classic.sessionUUID() if classic is not None else spark.session_id)  # type: ignore[attr-defined]
