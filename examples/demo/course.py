"""
The course of events: start the job, kill it in the middle of its work, and at the end compare.

Runs in the demo's own process. Invariant: a kill counts only if it hit a running job, and what is compared at the end
is everything that was sent with everything that is there.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from driver import JOB, Driver, Workplace
from orders import Customers, Source
from outcome import audited, judge
from screen import Screen
from watch import Standing, Watch

_PATIENCE_SECONDS = 600.0
# Between COMMIT and Spark's own note of the batch there are some ten milliseconds.
_HUNTING_SECONDS = 0.002
_WAITING_SECONDS = 0.02
_SHOW_EVERY_SECONDS = 0.1
# A slow machine would read for minutes what came in while its drivers started.
_MOST_ORDERS_WAITING = 5_000


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Course(ABC):
    """:meth:`kill_in_the_middle` some times, then :meth:`finish`."""

    job: Path = JOB

    def __init__(self, screen: Screen, workplace: Workplace, source: Source, url: str, stack: ExitStack) -> None:
        self._screen = screen
        self._workplace = workplace
        self._source = source
        self._url = url
        self._stack = stack
        self._customers = Customers(source)
        self._watch = Watch(url)
        stack.callback(self._watch.close)
        self._starts = 0
        self._doing = ""
        self._shown_at = 0.0
        self._rows_shown = 0
        self.kills = 0

    @abstractmethod
    def kill_in_the_middle(self) -> None:
        """Start the job, let it work, and SIGKILL it."""

    @abstractmethod
    def _read_all_that_is_left(self) -> None:
        """Start the job once more, and return when it has caught up and ended."""

    @abstractmethod
    def _standing(self) -> tuple[str, int]:
        """What the screen says of where the job is, and how many orders are there."""

    @abstractmethod
    def _results(self) -> Mapping[str, str]:
        """What the table of results has in addition."""

    def finish(self) -> bool:
        """Read all that is left, show the result, and tell whether it is exactly once."""
        self._read_all_that_is_left()
        self._screen.say("All orders are read. examples/audit.sql compares every order sent with every row there:")
        orders, findings = self._customers.sent, audited(self._url, self._customers.sent)
        verdict = judge(len(orders), findings, self.kills)
        self._screen.result(
            {
                "rows expected": f"{len(orders):,}",
                "rows there": f"{self._watch.rows():,}",
                "findings": "\n".join(f"{times:,} {finding}" for finding, times in findings.items()) or "none",
                **self._results(),
                "end offsets": "\n".join(self._watch.end_offsets()),
                "kills": str(self.kills),
            },
            verdict,
        )
        return verdict.exactly_once

    def _start(self, *more: str, last: bool = False) -> Driver:
        self._starts += 1
        self._doing = "is starting"
        self._screen.say(f"Starting driver {self._starts}{', to read all that is left' if last else ''}.")
        driver = Driver(self._workplace, self.job, ["--url", self._url, *self._source.job_arguments, *more])
        self._stack.callback(driver.sigkill)
        return driver

    def _kill(self, driver: Driver) -> None:
        hit = driver.exit_status is None
        driver.sigkill()
        self.kills += hit

    def _is_another_run(self, before: Standing | None) -> bool:
        now = self._watch.standing()
        return now is not None and (before is None or now.run_id != before.run_id)

    def _wait(
        self,
        driver: Driver,
        condition: Callable[[], bool],
        what: str,
        *,
        ordering: bool = True,
        poll_seconds: float = _WAITING_SECONDS,
    ) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if driver.exit_status is not None and not condition():
                raise DemoError(f"Driver {self._starts} ended before {what}. Its last words:\n{driver.last_words()}")
            if time.monotonic() > until:
                raise DemoError(f"Waited in vain for {_PATIENCE_SECONDS:.0f} s until {what}.\n{driver.last_words()}")
            if ordering and len(self._customers.sent) - self._rows_shown < _MOST_ORDERS_WAITING:
                self._customers.order_when_due()
            self._show()
            time.sleep(poll_seconds)

    def _show(self) -> None:
        if time.monotonic() - self._shown_at > _SHOW_EVERY_SECONDS:
            self._shown_at = time.monotonic()
            where, self._rows_shown = self._standing()
            sent = len(self._customers.sent)
            self._screen.show(f"Driver {self._starts} {self._doing}{where}", self._rows_shown, sent)


class MicroBatches(Course):
    """A job that publishes batch after batch."""

    def kill_in_the_middle(self) -> None:
        """
        Let the job publish some batches, and SIGKILL it.

        The first and every other driver is killed as soon as a batch is visible in Postgres, before Spark has noted it,
        so that Spark hands the batch over again; the others at any moment.
        """
        before = self._watch.standing()
        driver = self._start()
        self._wait(driver, lambda: self._is_another_run(before), "it published a batch")
        self._doing = "runs"
        seen = self._last_batch_id()
        self._screen.say(f"Driver {self._starts} published batch {seen}.")
        doomed = seen + random.randint(3, 8)
        until = f"it published batch {doomed}"
        self._wait(driver, lambda: self._last_batch_id() >= doomed, until, poll_seconds=_HUNTING_SECONDS)
        if self._starts % 2 == 0:
            moment = time.monotonic() + random.uniform(0, 1)
            self._wait(driver, lambda: time.monotonic() >= moment, "its last second was over")
        self._kill(driver)
        self._screen.say(f"SIGKILL to driver {self._starts}. {self._state_left()}", style="yellow")

    def _read_all_that_is_left(self) -> None:
        driver = self._start("--until-caught-up", last=True)
        self._doing = "reads all that is left"
        self._wait(driver, lambda: driver.exit_status is not None, "it caught up", ordering=False)
        if driver.exit_status:
            raise DemoError(f"Driver {self._starts} failed. Its last words:\n{driver.last_words()}")

    def _standing(self) -> tuple[str, int]:
        standing = self._watch.standing()
        return (f", last batch {standing.last_batch_id}", standing.rows) if standing else ("", 0)

    def _results(self) -> Mapping[str, str]:
        return {"batches": f"{self._watch.batches():,}", "replays skipped": str(self._watch.replays())}

    def _last_batch_id(self) -> int:
        standing = self._watch.standing()
        return standing.last_batch_id if standing else -1

    def _state_left(self) -> str:
        last = self._last_batch_id()
        if not (self._workplace.checkpoint / "commits" / str(last)).exists():
            return f"Batch {last} is in Postgres, but Spark has not noted it and will hand it over again."
        if (self._workplace.checkpoint / "offsets" / str(last + 1)).exists():
            return f"Batch {last} is in Postgres; batch {last + 1} was under way, and nothing of it is there."
        return f"Batch {last} is in Postgres, and Spark has noted it."
