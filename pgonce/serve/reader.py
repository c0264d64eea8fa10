"""
Look at the ledger every few seconds, and keep what was seen for all who ask.

Runs in ``pgonce serve``, in a thread of its own. Invariants: what is asked of Postgres does not depend on how many
browsers look on; what was seen last stays while Postgres is unavailable, with the time since when it could not be
read; no error ends the thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from starlette.concurrency import run_in_threadpool

from pgonce.offsets_store.errors import UNCHANGED, ConnectError, PgonceError, without_its_words
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.status.details import QueryDetails, read_details
from pgonce.offsets_store.status.states import Finding, MeasuredLag, QueryState

from .look import Key, Known, Look, look
from .tally import Counts, Tally

MOST_BATCHES = 120
MOST_LETTERS = 100
_KEPT_PAGES = 64
_PAGES_AT_A_TIME = 2
_SOON_SECONDS = 3.0
# It rests for this many times as long as a look took, so that a slow server is looked at less often.
_REST = 4


@dataclass(frozen=True)
class Trouble:
    """Why the ledger cannot be read, and since when."""

    since: datetime
    code: str
    text: str


@dataclass(frozen=True)
class Snapshot:
    """What was seen last. ``revision`` grows with each try; ``at`` is None until the ledger was read once."""

    revision: int = 0
    at: datetime | None = None
    states: Sequence[QueryState] = ()
    findings: Sequence[Finding] = ()
    rows_by_minute: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    lag_by_minute: Mapping[Key, tuple[int | None, ...]] = field(default_factory=dict)
    counts: Counts = field(default_factory=lambda: Counts({}, {}, {}, {}, {}))
    looks: int = 0
    look_seconds: float = 0.0
    trouble: Trouble | None = None

    @property
    def critical(self) -> int:
        """How many of the findings are critical."""
        return sum(one.severity == "critical" for one in self.findings)

    def state_of(self, query_id: str, sink: str | None) -> QueryState | None:
        """The state of a query and sink; of its first sink if none is named."""
        own = [state for state in self.states if state.query_id == query_id]
        return next((state for state in own if sink is None or state.sink_name == sink), None)


class Reader:
    """
    Looks at the ledger every ``every`` seconds, from :meth:`start` to :meth:`stop`.

    :param measured: gives the lag that was measured at the brokers, if any was.
    """

    def __init__(self, url: str, every: float, measured: Callable[[], Sequence[MeasuredLag]] = tuple) -> None:
        self.url = url
        self.every = every
        self._measured = measured
        self._snapshot = Snapshot()
        self._known: Known | None = None
        self._tally = Tally()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgonce-reader", daemon=True)
        self._pages: OrderedDict[tuple[str, str | None, str | None], tuple[float, QueryDetails]] = OrderedDict()
        self._reading_pages = asyncio.Semaphore(_PAGES_AT_A_TIME)

    @property
    def snapshot(self) -> Snapshot:
        """What was seen last; it never changes, the next look makes another one."""
        return self._snapshot

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A look that is under way may go on for a moment."""
        self._stopping.set()
        self._thread.join(timeout=2)

    async def query(self, query_id: str, sink: str | None, code: str | None) -> QueryDetails:
        """
        Read one query, or give what was read of it less than ``every`` seconds ago.

        :raises PgonceError: if the ledger cannot be read; CONNECTIONS_IN_USE, if others take long to be read.
        """
        asked = (query_id, sink, code)
        try:
            # Those who wait here have no thread, and no session.
            await asyncio.wait_for(self._reading_pages.acquire(), _SOON_SECONDS)
        except asyncio.TimeoutError:
            raise ConnectError(
                "CONNECTIONS_IN_USE",
                f"Postgres has not answered for other queries' pages for {_SOON_SECONDS:g} seconds.",
                UNCHANGED,
                "Ask again soon. If this goes on, see what Postgres's sessions wait for: pgonce status.",
            ) from None
        try:
            kept = self._pages.get(asked)
            if kept is None or time.monotonic() - kept[0] > self.every:
                found = await run_in_threadpool(
                    read_details,
                    self.url, query_id, sink, MOST_BATCHES, letters=MOST_LETTERS, with_rows=True, code=code,
                )  # fmt: skip
                kept = self._pages[asked] = (time.monotonic(), found)
                while len(self._pages) > _KEPT_PAGES:
                    self._pages.popitem(last=False)
        finally:
            self._reading_pages.release()
        return kept[1]

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self.refresh()
            took = time.monotonic() - began
            self._stopping.wait(max(self.every - took, _REST * took))

    def refresh(self) -> None:
        """Look once; what goes wrong becomes the snapshot's trouble."""
        began = time.monotonic()
        try:
            found = look(self.url, self._known, self._measured())
            self._known = found.known
            self._tally.add(found)
            self._snapshot = self._seen(found, time.monotonic() - began)
        except PgonceError as error:
            self._fail(error.code, scrub(f"{error.what} {error.remedy}"))
        except Exception as error:  # noqa: BLE001 (nothing that happens here may end the thread)
            self._fail("UNEXPECTED", without_its_words(error).splitlines()[0])

    def _seen(self, found: Look, seconds: float) -> Snapshot:
        before = self._snapshot
        return Snapshot(
            before.revision + 1,
            found.at,
            tuple(found.states),
            tuple(found.findings),
            self._tally.rows_by_minute(found.at),
            self._tally.lag_by_minute(found.at),
            self._tally.counts(),
            before.looks + 1,
            seconds,
        )

    def _fail(self, code: str, text: str) -> None:
        before = self._snapshot
        since = before.trouble.since if before.trouble else datetime.now(timezone.utc)
        self._snapshot = dataclasses.replace(before, revision=before.revision + 1, trouble=Trouble(since, code, text))
