"""
Read the ledger again and again, in a thread of its own, over one connection that is kept.

Runs in ``pgonce watch``. Invariant: a look is one transaction that cannot write, with two statements that read; a
connection that failed is closed, and the next look makes another. The course of the last hour is read once a minute, in
place of the findings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import require_ledger
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import driver_connection, lone
from pgonce.offsets_store.postgres.translate import driver_error, ledger_error
from pgonce.offsets_store.status.details import QueryDetails, query_details
from pgonce.offsets_store.status.states import Finding, QueryState, activity, findings, query_states

from .view import Key

# The course of the last hour is read this seldom, because it reads the records of all batches in it.
ACTIVITY_SECONDS = 60.0
_LOCK_SECONDS = 2.0
# A look that takes longer costs the server more than it tells a person.
_BOUND = b"SET LOCAL statement_timeout = '10s'"
_CONNECT_SECONDS = "5"
# After a look, at least so many times as long as it took: a slow server is not asked all the time.
_REST = 4


@dataclass(frozen=True)
class Picture:
    """
    What the ledger said at ``taken_at``.

    ``known`` has all of the query that is open, which ``known_of`` names; meanwhile the others are as they were in the
    look before it was opened. ``findings`` and ``activity`` may be of a look before this one.
    """

    taken_at: datetime
    queries: tuple[QueryState, ...] = ()
    findings: tuple[Finding, ...] = ()
    activity: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    known_of: Key | None = None
    known: QueryDetails | None = None


class Reader:
    """
    One connection, and what was read over it.

    :param url: as every command takes it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = ExitStack()
        self._connection: Connection | None = None
        self._last = Picture(datetime.now(timezone.utc))
        self._activity_at: float | None = None
        # Never twice in a row, however long the pauses are: the rest has to be read too.
        self._is_begun, self._was_activity = False, False

    def look(self, opened: Key | None = None) -> Picture:
        """
        A new picture; with ``opened``, all of that query in place of the findings.

        :raises PgonceError: if Postgres cannot be reached, or the ledger cannot be read.
        """
        try:
            self._last = self._look(opened)
        except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
            self.close()
            cause = driver_error(error)
            if cause is None:
                raise
            raise ledger_error(cause, "reading the ledger") from error
        except BaseException:
            self.close()
            raise
        return self._last

    def _look(self, opened: Key | None) -> Picture:
        is_new = self._connection is None
        if self._connection is None:
            made = self._open.enter_context(lone(self._url, connect_timeout=_CONNECT_SECONDS))
            self._connection = made.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        connection = self._connection
        with connection.begin():
            driver = driver_connection(connection)
            enter_in_tx(driver, _LOCK_SECONDS)
            driver.execute(_BOUND)
            if is_new:
                require_ledger(driver, whole=True)
            now = datetime.now(timezone.utc)
            last, seconds = self._last, time.monotonic()
            picture = replace(last, taken_at=now, queries=_read_states(connection, last, opened))
            is_due = self._is_begun and not self._was_activity and self._is_old(seconds)
            self._is_begun, self._was_activity = True, False
            if opened is not None and (last.known_of != opened or not is_due):
                return replace(picture, known_of=opened, known=query_details(connection, *opened))
            if is_due:
                self._activity_at, self._was_activity = seconds, True
                course: dict[Key, tuple[int, ...]] = {
                    (one.query_id, one.sink_name): one.rows for one in activity(connection)
                }
                return replace(picture, activity=course)
            found = findings(connection, picture.queries)
            return replace(picture, findings=tuple(found), known_of=None, known=None)

    def _is_old(self, seconds: float) -> bool:
        return self._activity_at is None or seconds - self._activity_at >= ACTIVITY_SECONDS

    def close(self) -> None:
        """Close the connection; the next look makes another."""
        self._connection = None
        left, self._open = self._open, ExitStack()
        # What a broken connection says when it is closed is of no interest any more.
        with suppress(psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
            left.close()


def _read_states(connection: Connection, last: Picture, opened: Key | None) -> tuple[QueryState, ...]:
    """What all queries do; while one is open, only that is read, and the others stay as they were."""
    if opened is None:
        return tuple(query_states(connection))
    others = (one for one in last.queries if one.query_id != opened[0])
    return (*others, *query_states(connection, [opened[0]]))


@dataclass(frozen=True)
class Outage:
    """Why there is no newer picture: what went wrong, and since when it has."""

    since: datetime
    why: str


class Poller:
    """
    The thread that looks every so many seconds, or at once if it is asked to.

    :param deliver: gets each picture, or why there is none; it is called in the thread.
    """

    def __init__(self, reader: Reader, every: float, deliver: Callable[[Picture | Outage], object]) -> None:
        self._reader, self._every, self._deliver = reader, every, deliver
        self._changed = threading.Condition()
        self._opened: Key | None = None
        self._is_asked, self._is_stopped = False, False
        self._failing_since: datetime | None = None
        # A daemon: a person who leaves does not wait for a server that does not answer.
        self._thread = threading.Thread(target=self._run, name="pgonce watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look_now(self, opened: Key | None) -> None:
        """Look at once; from now on at all of this query too, or at the findings if it is None."""
        with self._changed:
            self._opened, self._is_asked = opened, True
            self._changed.notify()

    def stop(self, seconds: float = 1.0) -> None:
        """End the thread, and wait for it for this long."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped:
                    break
                opened, self._is_asked = self._opened, False
            begun = time.monotonic()
            self._deliver(self._look(opened))
            pause = max(self._every, _REST * (time.monotonic() - begun))
            with self._changed:
                self._changed.wait_for(lambda: self._is_asked or self._is_stopped, timeout=pause)
        self._reader.close()

    def _look(self, opened: Key | None) -> Picture | Outage:
        try:
            picture = self._reader.look(opened)
        except PgonceError as error:
            why = error.what
        # The thread goes on, whatever was wrong with one look.
        except Exception as error:  # noqa: BLE001
            why = scrub(f"{type(error).__name__}: {error}")
        else:
            self._failing_since = None
            return picture
        self._failing_since = self._failing_since or datetime.now(timezone.utc)
        return Outage(self._failing_since, why)
