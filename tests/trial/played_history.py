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
from typing import Any, ClassVar
from unittest.mock import patch
from uuid import UUID

import pytest
from sqlalchemy import Connection
from support.ledger_model import Folder, Plan, Source
from support.ledger_site import STRUCT, Site, Vanished, encoded, hooked, vanish
from support.rows import given_rows
from support.with_rooms import work_into

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit import one_try
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.postgres import backoff
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin, describe_batch
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.rows import Rows

SOURCE = Source("s0", topic="orders")
_SECONDS = 30.0
_PUBLISHED = {"NEW", "OVERLAP"}
# A process that has committed for a query says so where the ledger does not know it.
_SAID = {"LEDGER_GONE": "UNKNOWN"}


class _Try:
    """
    A commit in a thread, which stops at the end of its transaction and between two tries.

    ``events`` tells where it is: ``written``, ``between``, or what it has answered.
    """

    def __init__(self, site: Site, batch: PlannedBatch, rows: Rows, done: dict[Any, Any]) -> None:
        self.events: queue.Queue[str] = queue.Queue()
        self.done = done
        self._site, self._batch, self._rows = site, batch, rows
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
        work = hooked(work_into(None, destination("events", "append", (), None), self._rows), self._at_the_end)
        settings = CommitSettings(self._site.proxy.url, lock_timeout=0.2, retry_timeout=1000)
        try:
            self.events.put(commit_batch(settings, self._batch, work).name)
        except PgonceError as error:
            self.events.put(_SAID.get(error.code, error.code))
        except Vanished:
            self.events.put("VANISHED")
        except BaseException as error:
            self.events.put(repr(error))


class _Remembered(dict[Any, Any]):
    """What the process of each driver has committed, because all of them are in one process here."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self._own.get(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own[key] = value

    @property
    def _own(self) -> dict[Any, Any]:
        playing: _Try | None = getattr(threading.current_thread(), "pgonce_try", None)
        return playing.done if playing else {}


@contextmanager
def tries_that_stop() -> Iterator[None]:
    """Let every pause between two tries be one for :class:`_Try`, and each driver have its own memory."""

    def pause(seconds: float) -> None:
        playing: _Try | None = getattr(threading.current_thread(), "pgonce_try", None)
        (playing.pause if playing else time.sleep)(seconds)

    stops = patch.object(backoff, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    with stops, patch.object(one_try, "_done", _Remembered()):
        yield


@dataclass
class Driver:
    """A run: the batch at hand, and where it begins."""

    run_id: str
    folder: Folder
    number: int
    end: int = 0
    plan: Plan | None = None
    planned: Any = None
    batch: PlannedBatch | None = None
    trying: _Try | None = None
    verdict: str = ""
    unwritten: dict[int, Plan] = field(default_factory=dict)
    """Batches whose entries Spark has still to write, or never writes."""
    done: dict[Any, Any] = field(default_factory=dict)
    """What its process remembers of its commits."""


@dataclass
class Played:
    """What the table has to hold after the lines that were played so far, and what its replica holds."""

    site: Site
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    replica: list[tuple[Any, ...]] = field(default_factory=list)
    columns: ClassVar[str]
    """Those of the table by which rows are compared."""

    def play(self, line: str) -> None:
        """One line, and what must be true after it."""
        words = line.split()
        # `in use 1`, `lost checkpoint`
        name = "_".join(word for word in words if word.isalpha() and word.islower())
        getattr(self, name)(*(word for word in words if not (word.isalpha() and word.islower())))
        assert self.site.rows(f"SELECT {self.columns} FROM {self.site.table} ORDER BY 1") == sorted(self.rows), line

    def replicate(self) -> None:
        self.site.back_up()
        self.replica = [*self.rows]

    def fail_over(self) -> None:
        self.site.restore()
        self.rows = [*self.replica]


@dataclass
class PlayedHistory(Played):
    """
    A history of drivers, and the checkpoint that they share.

    :param asks_the_query: whether batches are described as in ``foreachBatch``.
    """

    asks_the_query: bool = field(kw_only=True)
    folder: Folder | None = None
    kept: Folder | None = None
    drivers: dict[str, Driver] = field(default_factory=dict)
    columns = "position, label"
    _queries: Iterator[int] = field(default_factory=count)

    def close(self) -> None:
        """Kill what is still running."""
        for driver in list(self.drivers):
            self.kill(driver)

    # What drivers do

    def start(self, at: str, run: str) -> None:
        if self.folder is None:
            self.folder = Folder(str(UUID(int=next(self._queries))), SOURCE, "/checkpoints/orders", None)
        folder = self.folder
        driver = self.drivers[at] = Driver(f"run {run}", folder, folder.newest + 1)
        newest = folder.plans.get(folder.newest)
        if newest is None:
            return
        driver.end = newest.end
        if folder.newest not in folder.committed:
            # It begins where the entry before it ends now, whoever has written that, and whichever number it has.
            ends = {number: plan.end for number, plan in folder.plans.items() if number < folder.newest}
            driver.number, driver.plan = folder.newest, replace(newest, start=ends[max(ends)] if ends else 0)

    def plan(self, at: str, number: str, start: str, end: str) -> None:
        driver = self.drivers[at]
        assert (driver.number, driver.end) == (int(number), int(start))
        driver.plan, driver.end = driver.folder.planned(int(number), int(start), int(end)), int(end)
        driver.unwritten[driver.number] = driver.plan

    def write(self, at: str, number: str) -> None:
        driver = self.drivers[at]
        driver.folder.plans[int(number)] = driver.unwritten.pop(int(number))

    def write_commit(self, at: str, number: str) -> None:
        self.drivers[at].folder.committed.add(int(number))

    def look(self, at: str) -> None:
        driver = self.drivers[at]
        driver.planned = Checkpoint(driver.folder).newest_offset_entry()

    def describe(self, at: str) -> None:
        driver = self.drivers[at]
        driver.batch, driver.trying = self.described(driver), None

    def in_use(self, at: str) -> None:
        with pytest.raises(PgonceError, match=r"\[CHECKPOINT_IN_USE\]"):
            self.described(self.drivers[at])

    def described(self, driver: Driver) -> PlannedBatch:
        """The batch, as the code describes it."""
        assert driver.plan
        origin = Origin(driver.folder.query_id, driver.run_id, driver.number, driver.planned)
        asked: tuple[Any, ...] = ()
        if self.asks_the_query:
            begins_at = {"0": SOURCE.offsets(driver.number - 1, driver.plan.start)} if driver.number else None
            asked = parse_offset_log(driver.plan.text, "the plan"), begins_at
        return describe_batch(Checkpoint(driver.folder), origin, None, *asked)

    def begin(self, at: str, verdict: str) -> None:
        driver = self.drivers[at]
        assert driver.batch
        assert driver.plan
        if driver.trying is None:
            driver.trying = _Try(self.site, driver.batch, self.rows_of(driver.plan), driver.done)
            driver.trying.start()
        else:
            # The session that was ended is noticed now; after that, or after a lost answer, a pause is over.
            driver.trying.go_on()
        answer = driver.trying.next()
        while answer == "between":
            driver.trying.go_on()
            answer = driver.trying.next()
        driver.verdict = verdict
        assert answer == ("written" if verdict in _PUBLISHED else verdict), at

    def rows_of(self, plan: Plan) -> Rows:
        """What its tasks have for the commit."""
        body = [encoded(SOURCE, plan)]
        return given_rows(encoded_columns(STRUCT), len(plan.positions), lambda: body)

    def committed(self, at: str) -> None:
        driver = self.drivers[at]
        assert driver.trying
        driver.trying.go_on()
        assert driver.trying.next() == driver.verdict
        self.stored(driver)

    def unanswered(self, at: str) -> None:
        driver = self.drivers[at]
        assert driver.trying
        self.site.proxy.cut_after_commit(touching="pgonce.writers")
        driver.trying.go_on()
        assert driver.trying.next() == "between"
        self.stored(driver)

    def stored(self, driver: Driver) -> None:
        """Its rows are in the table now."""
        assert driver.plan
        self.rows += [(position, driver.plan.label) for position in driver.plan.positions]

    def broken(self, at: str) -> None:
        assert self.drivers[at].trying

    def note(self, at: str) -> None:
        driver = self.drivers[at]
        driver.number += 1
        driver.plan = driver.planned = driver.batch = driver.trying = None

    def kill(self, at: str) -> None:
        driver = self.drivers.pop(at)
        if driver.trying:
            driver.trying.kill()

    # What happens to the checkpoint

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
