"""
Play a history of ``model/batches.pml`` with the real commit: each line that the model prints has its function here.

Runs in: pytest. Invariant: a line is played to its end before the next one, and what the code answers, or leaves in the
table, is what the model said; Spark is played (:mod:`support.ledger_model`), and all else is real.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection
from support.ledger_model import Folder, Plan, Source
from support.ledger_site import STRUCT, Site, Vanished, encoded, hooked, vanish
from support.rows import given_rows
from support.with_rooms import work_into

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.postgres import backoff
from pgonce.offsets_store.verdict.facts import Batch
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin, describe_batch
from pgonce.sink.options.destination import destination

_SOURCE = Source("s0", is_kafka=True, place="orders")
_SECONDS = 30.0
# One process plays all drivers here, and remembers what it has committed: it says so where the ledger is empty.
_SAID = {"LEDGER_GONE": "UNKNOWN"}


class _Try:
    """
    A commit in a thread, which stops at the end of its transaction and between two tries.

    ``events`` tells where it is: ``written``, ``between``, or what it has answered.
    """

    def __init__(self, site: Site, batch: Batch, plan: Plan) -> None:
        self.events: queue.Queue[str] = queue.Queue()
        self._site, self._batch, self._plan = site, batch, plan
        self._go_on = threading.Semaphore(0)
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin the first try."""
        self._thread.pgonce_try = self  # type: ignore[attr-defined]
        self._thread.start()

    def go_on(self) -> None:
        """Let it go on from where it has stopped."""
        self._go_on.release()

    def kill(self) -> None:
        """End it as the end of its process does."""
        self._is_killed = True
        self._go_on.release()
        self._thread.join(_SECONDS)

    def next(self) -> str:
        """Where it stops next."""
        return self.events.get(timeout=_SECONDS)

    def pause(self, seconds: float) -> None:
        """Stop between two tries."""
        if seconds:
            self._stop("between")
            if self._is_killed:
                raise Vanished

    def _stop(self, where: str) -> None:
        self.events.put(where)
        assert self._go_on.acquire(timeout=_SECONDS)

    def _at_the_end(self, connection: Connection) -> None:
        self._stop("written")
        if self._is_killed:
            vanish(connection)

    def _run(self) -> None:
        body = [encoded(_SOURCE, self._plan)]
        rows = given_rows(encoded_columns(STRUCT), len(self._plan.positions), lambda: body, None)
        work = hooked(work_into(None, destination("events", "append", (), None), rows), self._at_the_end)
        settings = CommitSettings(self._site.proxy.url, lock_timeout=0.2, retry_timeout=1000)
        try:
            self.events.put(commit_batch(settings, self._batch, work).name)
        except PgonceError as error:
            self.events.put(_SAID.get(error.code, error.code))
        except Vanished:
            self.events.put("VANISHED")
        except BaseException as error:
            self.events.put(repr(error))


@contextmanager
def tries_that_stop() -> Iterator[None]:
    """Let every pause between two tries be one for :class:`_Try`."""

    def pause(seconds: float) -> None:
        playing: _Try | None = getattr(threading.current_thread(), "pgonce_try", None)
        (playing.pause if playing else time.sleep)(seconds)

    with patch.object(backoff, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic)):
        yield


@dataclass
class _Driver:
    """A run: the batch at hand, and where it begins."""

    run_id: str
    folder: Folder
    number: int
    end: int = 0
    plan: Plan | None = None
    planned: Any = None
    batch: Batch | None = None
    trying: _Try | None = None


@dataclass
class PlayedHistory:
    """
    The lines that were played so far, and what the table has to hold after them.

    :param asks_the_query: whether batches are described as in ``foreachBatch``.
    """

    site: Site
    asks_the_query: bool
    folder: Folder | None = None
    kept: Folder | None = None
    drivers: dict[str, _Driver] = field(default_factory=dict)
    rows: list[tuple[int, str]] = field(default_factory=list)
    replica: list[tuple[int, str]] = field(default_factory=list)
    _queries: Iterator[int] = field(default_factory=count)

    def play(self, line: str) -> None:
        """One line, and what must be true after it."""
        words = line.split()
        # `in use 1`, `lost checkpoint`
        name = "_".join(word for word in words if word.isalpha() and word.islower())
        getattr(self, name)(*(word for word in words if not (word.isalpha() and word.islower())))
        found = self.site.rows("SELECT position, label FROM events ORDER BY position")
        assert found == sorted(self.rows), line

    def close(self) -> None:
        """Kill what is still running."""
        for driver in list(self.drivers):
            self.kill(driver)

    # What drivers do

    def start(self, at: str, run: str) -> None:
        if self.folder is None:
            self.folder = Folder(f"q{next(self._queries)}", _SOURCE, "/checkpoints/orders", None)
        folder = self.folder
        driver = self.drivers[at] = _Driver(f"run {run}", folder, folder.newest + 1)
        newest = folder.plans.get(folder.newest)
        if newest is None:
            return
        if folder.newest in folder.committed:
            driver.end = newest.end
        elif folder.newest == 0 or folder.newest - 1 in folder.plans:
            # It begins where the entry before it ends now, whoever has written that.
            begins_at = folder.plans[folder.newest - 1].end if folder.newest else 0
            driver.number, driver.end, driver.plan = folder.newest, newest.end, replace(newest, start=begins_at)

    def plan(self, at: str, number: str, start: str, end: str) -> None:
        driver = self.drivers[at]
        assert (driver.number, driver.end) == (int(number), int(start))
        driver.plan, driver.end = driver.folder.plan(int(number), int(start), int(end)), int(end)

    def look(self, at: str) -> None:
        driver = self.drivers[at]
        driver.planned = Checkpoint(driver.folder).newest_offset_entry()

    def describe(self, at: str) -> None:
        driver = self.drivers[at]
        driver.batch, driver.trying = self._described(driver), None

    def in_use(self, at: str) -> None:
        try:
            self._described(self.drivers[at])
        except PgonceError as error:
            assert error.code == "CHECKPOINT_IN_USE"  # noqa: PT017 (what the model says)
        else:
            raise AssertionError(at)

    def _described(self, driver: _Driver) -> Batch:
        assert driver.plan
        origin = Origin(driver.folder.query_id, driver.run_id, driver.number, driver.planned)
        asked: tuple[Any, ...] = ()
        if self.asks_the_query:
            begins_at = {"0": _SOURCE.offsets(driver.number - 1, driver.plan.start)} if driver.number else None
            asked = parse_offset_log(driver.plan.text, "the plan"), begins_at
        return describe_batch(Checkpoint(driver.folder), origin, None, *asked)

    def begin(self, at: str, verdict: str) -> None:
        driver = self.drivers[at]
        assert driver.batch
        assert driver.plan
        if driver.trying is None:
            driver.trying = _Try(self.site, driver.batch, driver.plan)
            driver.trying.start()
        else:
            # The session that was ended is noticed now; after that, or after a lost answer, a pause is over.
            driver.trying.go_on()
        answer = driver.trying.next()
        while answer == "between":
            driver.trying.go_on()
            answer = driver.trying.next()
        assert answer == ("written" if verdict == "NEW" else verdict), at

    def committed(self, at: str) -> None:
        driver = self.drivers[at]
        assert driver.trying
        driver.trying.go_on()
        assert driver.trying.next() == "NEW"
        self._stored(driver)

    def unanswered(self, at: str) -> None:
        driver = self.drivers[at]
        assert driver.trying
        self.site.proxy.cut_after_commit(touching="pgonce.writers")
        driver.trying.go_on()
        assert driver.trying.next() == "between"
        self._stored(driver)

    def _stored(self, driver: _Driver) -> None:
        assert driver.plan
        self.rows += [(position, driver.plan.label) for position in driver.plan.positions]

    def broken(self, at: str) -> None:
        assert self.drivers[at].trying

    def note(self, at: str) -> None:
        driver = self.drivers[at]
        driver.folder.committed.add(driver.number)
        driver.number += 1
        driver.plan = driver.planned = driver.batch = driver.trying = None

    def kill(self, at: str) -> None:
        driver = self.drivers.pop(at)
        if driver.trying:
            driver.trying.kill()

    # What happens to the checkpoint and the database

    def keep(self) -> None:
        assert self.folder
        self.kept = self.folder.copied(self.folder.shown)

    def older_checkpoint(self) -> None:
        assert self.kept
        self.folder = self.kept.copied(self.kept.shown)

    def lost_checkpoint(self) -> None:
        self.folder = None

    def elsewhere(self, number: str, start: str, end: str) -> None:
        self.older_checkpoint()
        assert self.folder
        if int(end):
            self.folder.plan(int(number), int(start), int(end))
            self.folder.committed.add(int(number))

    def replicate(self) -> None:
        self.site.back_up()
        self.replica = [*self.rows]

    def fail_over(self) -> None:
        self.site.restore()
        self.rows = [*self.replica]
