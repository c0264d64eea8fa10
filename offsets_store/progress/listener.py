"""
Store Spark's progress in the ledger, and warn if the two disagree.

Runs on the driver (with Spark Connect, in the client): callbacks in Spark's thread, all that concerns Postgres in a
thread of its own. Invariant: a callback only puts the event into a queue; if Postgres fails or is slow, the stream does
not notice it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ..ledger.migrations import ensure_ledger
from ..postgres.connect import checked_out, parse_url
from ..postgres.postgres_url import PostgresUrl
from ..postgres.translate import driver_error, ledger_error
from .event import parse_progress, store_progress_in_tx

_log = logging.getLogger("pgonce")

QUEUED_EVENTS = 1000
_WARN_EVERY_SECONDS = 60.0
# Long enough not to overwhelm a server that is starting, and so short that the queue does not fill up meanwhile.
_PAUSE_AFTER_FAILURE_SECONDS = 1.0


class OffsetsListener(StreamingQueryListener):
    """
    Stores every progress event of every query: ``spark.streams.addListener(OffsetsListener(url))``.

    It compares the offsets with those that the ledger has recorded; a disagreement is a warning in the log, and a text
    in ``pgonce.progress``. It fills the offsets in where ``offsetsFrom=listener`` left them open. ``stored`` and
    ``dropped`` count the events that were stored, and those that could not be.

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param password_from: ``module:function`` that returns the password for each new connection.
    :raises ConfigurationError: BAD_URL, or a source of passwords that cannot be read. Nothing else is ever raised:
        while the server is unavailable, a warning is logged once a minute.
    """

    def __init__(self, url: str = "", *, password_from: str | None = None) -> None:
        parse_url(url)
        self._url = PostgresUrl(url, password_from)
        self._events: queue.Queue[Any] = queue.Queue(QUEUED_EVENTS)
        self._lock = threading.Lock()
        self._dropped = 0
        self._stored = 0
        self._warned_at: float | None = None
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._store_all, name="pgonce-listener", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many events could not be stored."""
        return self._dropped

    @property
    def stored(self) -> int:
        """How many events are in the ledger."""
        return self._stored

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing, because Spark waits for this callback."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Queue the event."""
        if self._closing.is_set():
            self._drop("the listener is closed")
            return
        try:
            self._events.put_nowait(event.progress)
        except queue.Full:
            self._drop(f"{QUEUED_EVENTS} events already wait for Postgres")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: no batch ran."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the ledger knows where the query stopped."""

    def close(self, timeout: float = 10.0) -> bool:
        """Store what is queued, for at most ``timeout`` seconds; whether that was all. Later events are dropped."""
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

    def _store_all(self) -> None:
        while not self._abandoned.is_set():
            progress = self._next(wait=not self._closing.is_set())
            if progress is not None:
                self._store(progress)
            elif self._closing.is_set():
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

    def _drop(self, reason: str, count: int = 1) -> None:
        now = time.monotonic()
        with self._lock:
            self._dropped += count
            quiet = self._warned_at is not None and now < self._warned_at + _WARN_EVERY_SECONDS
            if not quiet:
                self._warned_at = now
        if not quiet:
            _log.warning("progress events are not stored (%d so far): %s", self._dropped, reason)


def _reason(error: Exception) -> str:
    cause = driver_error(error)
    if cause is not None:
        return str(ledger_error(cause, "storing a progress event"))
    # What is left is SQLAlchemy's own text; psycopg's has been translated above.
    return f"{type(error).__name__}: {error}"
