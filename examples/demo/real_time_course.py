"""
The course of events in real time: orders come a few at a time, and are timed until they are visible.

Runs in the demo's own process. Invariant: an order is timed from when it was placed to the commit of the transaction
that wrote its row, and every order counts that came and was written while a driver ran and had caught up. The longest
wait is that of all orders.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timezone

from course import Course
from driver import REAL_TIME_JOB, Driver, Workplace
from orders import Customers, Source
from screen import Screen

_EVERY_SECONDS = 0.02
_AT_ONCE = (1, 6)
_RUNS_SECONDS = (6.0, 9.0)


class RealTime(Course):
    """A job whose rows are visible milliseconds after their orders."""

    job = REAL_TIME_JOB

    def __init__(self, screen: Screen, workplace: Workplace, source: Source, url: str, stack: ExitStack) -> None:
        super().__init__(screen, workplace, source, url, stack)
        self._customers = Customers(source, every_seconds=_EVERY_SECONDS, at_once=_AT_ONCE)
        self._stretches: list[tuple[datetime, datetime]] = []

    def kill_in_the_middle(self) -> None:
        """Let the job catch up and go on for some seconds, and SIGKILL it at any moment."""
        driver = self._start_and_catch_up()
        self._doing = "runs"
        self._screen.say(f"Driver {self._starts} has caught up. Orders that come now are timed.")
        begun, moment = datetime.now(timezone.utc), time.monotonic() + random.uniform(*_RUNS_SECONDS)
        self._wait(driver, lambda: time.monotonic() >= moment, "its time was over")
        self._stretches.append((begun, datetime.now(timezone.utc)))
        self._kill(driver)
        latency = self._watch.latency(self._stretches[-1:])
        self._screen.say(
            f"{latency.orders:,} orders were visible after {latency.p50:.1f} ms (p50), {latency.p99:.1f} ms (p99), "
            f"{latency.greatest:.1f} ms (greatest)."
        )
        self._screen.say(f"SIGKILL to driver {self._starts}. {self._state_left()}", style="yellow")

    def _read_all_that_is_left(self) -> None:
        driver = self._start_and_catch_up(last=True)
        # Such a query has no end of its own, and the table must not change while it is compared.
        driver.sigkill()

    def _standing(self) -> tuple[str, int]:
        return "", self._watch.messages_read()

    def _results(self) -> Mapping[str, str]:
        latency = self._watch.latency(self._stretches)
        return {
            "orders timed": f"{latency.orders:,}",
            "visible after, p50": f"{latency.p50:.1f} ms",
            "p99": f"{latency.p99:.1f} ms",
            "greatest": f"{latency.greatest:.1f} ms",
            "longest wait, over a kill": f"{self._watch.longest_wait_seconds():.1f} s",
        }

    def _start_and_catch_up(self, *, last: bool = False) -> Driver:
        before = self._watch.standing()
        driver = self._start(last=last)

        def caught_up() -> bool:
            return self._is_another_run(before) and self._watch.messages_read() >= len(self._customers.sent)

        self._wait(driver, caught_up, "it caught up", ordering=not last)
        return driver

    def _state_left(self) -> str:
        *_, newest = sorted((self._workplace.checkpoint / "pgonce-real-time").iterdir())
        noted = "has noted some of its orders" if any(newest.glob("commits/[0-9]*")) else "has noted none of its orders"
        return f"Spark {noted}; the next driver goes on at the positions in Postgres."
