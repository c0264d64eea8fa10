"""
Store Spark's progress in the ledger, compare the two, and warn if they disagree.

Runs on the driver (with Spark Connect, in the client): callbacks in Spark's thread, all that concerns Postgres in a
thread of its own. Invariants: a callback only puts the event into a queue; if Postgres fails or is slow, the stream
does not notice it. Nothing here waits for a commit: the writer's row is changed only if no session holds it, and no
batch id and no owner ever moves. Offsets are compared as parsed JSON, and what only one side knows is not a
disagreement.

Spark's events list the sources in the order of the plan, without their ids.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from sqlalchemy import Connection, delete, desc, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from .ledger.migrations import ensure_ledger
from .ledger.record import is_pruned_at
from .ledger.tables import batches, progress, writers
from .ledger.writers import records_in_tx, writers_in_tx
from .offsets import Offsets, parse_offset, same_json
from .postgres.bounds import server_settings
from .postgres.connect import checked_out, driver_connection, parse_url
from .postgres.postgres_url import PostgresUrl
from .postgres.search_path import OURS
from .postgres.translate import driver_error, ledger_error
from .verdict.facts import Recorded, Writer

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


@dataclass(frozen=True)
class Heard:
    """One progress event; offsets map a source's position in the plan (``"0"``, ``"1"``) to its parsed offset."""

    query_id: str
    run_id: str
    batch_id: int
    query_name: str | None
    progress_at: datetime
    num_input_rows: int
    start_offsets: Offsets
    end_offsets: Offsets
    latest_offsets: Offsets
    durations_ms: dict[str, int]


def parse_progress(progress: Any) -> Heard:
    """
    Read a ``pyspark`` StreamingQueryProgress, of a classic session or of Spark Connect.

    :raises Exception: of any kind, if Spark's form is not the known one.
    """
    sources = progress.sources
    return Heard(
        query_id=str(progress.id),
        run_id=str(progress.runId),
        batch_id=progress.batchId,
        query_name=progress.name,
        progress_at=datetime.fromisoformat(progress.timestamp),
        num_input_rows=progress.numInputRows,
        start_offsets=_offsets(sources, "startOffset"),
        end_offsets=_offsets(sources, "endOffset"),
        latest_offsets=_offsets(sources, "latestOffset"),
        durations_ms=dict(progress.durationMs),
    )


def _offsets(sources: Sequence[Mapping[str, Any]], which: str) -> Offsets:
    return {str(position): _offset(source, which) for position, source in enumerate(sources)}


def _offset(source: Mapping[str, Any], which: str) -> Any:
    # Connect gives decoded JSON, and PySpark 4.1 makes Python's repr of it; the dict in _jdict still has the JSON.
    decoded = getattr(source, "_jdict", None) or source
    offset = decoded.get(which)
    # A missing offset is "None" on a classic session (the text of a Java null), and null over Connect.
    if not isinstance(offset, str) or offset in ("None", "null"):
        return None if isinstance(offset, str) else offset
    return parse_offset(offset)


def disagreement(heard: Heard, sinks: Sequence[tuple[Writer, Recorded | None]]) -> str | None:
    """
    The text for what differs between the event and the ledger; None if nothing does.

    A query without any sink in the ledger writes elsewhere. A sink that has no record of the batch is at fault only if
    this run has published to it before, and its last batch is an earlier one.

    :param sinks: each writer of the query, with its record of the batch that the event is about.
    """
    found = []
    for writer, recorded in sinks:
        if recorded is None:
            if writer.run_id == heard.run_id and writer.last_batch_id < heard.batch_id:
                found.append(
                    f"Spark has finished batch {heard.batch_id}, but the last one in sink {writer.sink_name!r} is "
                    f"{writer.last_batch_id}"
                )
        elif (end := _recorded_end(recorded)) is not None and not _same_ends(end, heard.end_offsets):
            found.append(
                f"batch {heard.batch_id} ended at {heard.end_offsets} according to Spark, and at {end} as "
                f"recorded for sink {writer.sink_name!r}"
            )
    return "; ".join(found) or None


def _recorded_end(recorded: Recorded) -> Offsets | None:
    # If only the rows told it, it is a lower bound.
    told_by_rows = recorded.positions is not None and recorded.offset_log is None
    return None if told_by_rows else recorded.end


def _same_ends(recorded: Offsets, told: Offsets) -> bool:
    if recorded.keys() == told.keys():
        return same_json(recorded, told)
    # With named sources, the event has the same offsets in another order and without the names.
    left = list(told.values())
    for offset in recorded.values():
        match = next((index for index, other in enumerate(left) if same_json(offset, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


KEPT_A_QUERY = 1000


def store_progress_in_tx(connection: Connection, heard: Heard) -> str | None:
    """
    Store one event, and fill in offsets that are unknown otherwise; return the text for what disagrees with the ledger.
    """
    # With two listeners on one query, or another session's lock on these tables, transactions must not pile up.
    limits = (("lock_timeout", "2000"), ("statement_timeout", "10000"))
    settings = (*OURS.items(), *limits, *server_settings(driver_connection(connection)).items())
    connection.execute(select(*(func.pg_catalog.set_config(name, value, True) for name, value in settings)))
    found = disagreement(heard, _sinks_in_tx(connection, heard))
    row: dict[str, Any] = {**dataclasses.asdict(heard), "disagreement": found}
    connection.execute(
        insert(progress)
        .values(row)
        .on_conflict_do_update(
            index_elements=["query_id", "run_id", "batch_id"],
            set_={**row, "received_at": func.clock_timestamp()},
        )
    )
    if is_pruned_at(heard.batch_id):
        _prune_in_tx(connection, heard.query_id)
    if found is None:
        # Last, because it is the only thing that a commit could have to wait for.
        _fill_in_tx(connection, heard)
    return found


def _sinks_in_tx(connection: Connection, heard: Heard) -> list[tuple[Writer, Recorded | None]]:
    """Each writer of the query, with its record of the event's batch."""
    found = []
    for writer in writers_in_tx(connection, writers.c.query_id == heard.query_id):
        records = records_in_tx(connection, writer, batches.c.batch_id == heard.batch_id)
        found.append((writer, records.get(heard.batch_id)))
    return found


def _fill_in_tx(connection: Connection, heard: Heard) -> None:
    """
    Give a batch that is judged by ids alone the offsets of the event, if this run has published it.

    If the next commit holds the writer's row, the row stays as it is: readers look at the batch's record too.
    """
    connection.execute(
        update(batches)
        .where(
            batches.c.writer_id == writers.c.writer_id,
            batches.c.generation == writers.c.generation,
            writers.c.query_id == heard.query_id,
            writers.c.guarantee == "ids",
            batches.c.batch_id == heard.batch_id,
            batches.c.run_id == heard.run_id,
            batches.c.end_offsets.is_(None),
        )
        .values(start_offsets=heard.start_offsets, end_offsets=heard.end_offsets)
    )
    free = (
        select(writers.c.writer_id)
        .where(
            writers.c.query_id == heard.query_id,
            writers.c.guarantee == "ids",
            writers.c.last_batch_id == heard.batch_id,
            writers.c.run_id == heard.run_id,
            writers.c.end_offsets.is_(None),
        )
        .with_for_update(skip_locked=True)
    )
    connection.execute(update(writers).where(writers.c.writer_id.in_(free)).values(end_offsets=heard.end_offsets))


def _prune_in_tx(connection: Connection, query_id: str) -> None:
    key = tuple_(progress.c.run_id, progress.c.batch_id)
    old = (
        select(progress.c.run_id, progress.c.batch_id)
        .where(progress.c.query_id == query_id)
        .order_by(desc(progress.c.progress_at), desc(progress.c.batch_id))
        .offset(KEPT_A_QUERY)
    )
    connection.execute(delete(progress).where(progress.c.query_id == query_id, key.in_(old)))
