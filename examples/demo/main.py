"""
Kill a streaming query again and again, and count its rows: what `make demo` runs.

Starts a Postgres (and with --kafka a broker), lets orders come in, starts the job (job.py), SIGKILLs it in the middle
of its work, starts it again, and at the end compares every order that was sent with what is in the table.

Exit status: 0 exactly once; 1 a row was lost or doubled, or too few kills hit; 2 something is missing on this machine
or failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from driver import Driver, Workplace
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, spark_connector_jars
from maven import java
from orders import Customers, Files, Source, Topic
from outcome import LEAST_KILLS, judge
from screen import Screen
from watch import Standing, Watch

_PATIENCE_SECONDS = 600.0
# Between COMMIT and Spark's own note of the batch there are some ten milliseconds.
_HUNTING_SECONDS = 0.002
_WAITING_SECONDS = 0.02
_SHOW_EVERY_SECONDS = 0.1
# A slow machine would read for minutes what came in while its drivers started.
_MOST_ORDERS_WAITING = 5_000
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Demo:
    """The course of events: :meth:`kill_in_the_middle` some times, then :meth:`finish`."""

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

    def kill_in_the_middle(self, *, after_commit: bool) -> None:
        """
        Start the job, let it publish some batches, and SIGKILL it.

        :param after_commit: kill as soon as a batch is visible in Postgres, before Spark has noted it, so that Spark
            hands the batch over again; otherwise kill at any moment.
        """
        before = self._watch.standing()
        driver = self._start()
        self._wait(driver, lambda: self._published_since(before), "it published a batch")
        self._doing = "runs"
        seen = self._last_batch_id()
        self._screen.say(f"Driver {self._starts} published batch {seen}.")
        doomed = seen + random.randint(3, 8)
        until = f"it published batch {doomed}"
        self._wait(driver, lambda: self._last_batch_id() >= doomed, until, poll_seconds=_HUNTING_SECONDS)
        if not after_commit:
            moment = time.monotonic() + random.uniform(0, 1)
            self._wait(driver, lambda: time.monotonic() >= moment, "its last second was over")
        hit = driver.exit_status is None
        driver.sigkill()
        self.kills += hit
        self._screen.say(f"SIGKILL to driver {self._starts}. {self._state_left()}", style="yellow")

    def finish(self) -> bool:
        """Start the job once more, until it has caught up; show the result, and tell whether it is exactly once."""
        orders = self._customers.sent
        driver = self._start("--until-caught-up")
        self._doing = "reads all that is left"
        self._wait(driver, lambda: driver.exit_status is not None, "it caught up", ordering=False)
        if driver.exit_status:
            raise DemoError(f"Driver {self._starts} failed. Its last words:\n{driver.last_words()}")
        found = self._watch.found(orders.orders)
        verdict = judge(orders, found, self.kills)
        self._screen.say("All orders are read. Comparing every order sent with every row there:")
        self._screen.result(
            {
                "batches": f"{self._watch.batches():,}",
                "rows expected": f"{orders.orders:,}",
                "rows there": f"{found.rows:,}",
                "distinct ids": f"{found.distinct_ids:,}",
                "checksum expected": f"{orders.checksum:x}",
                "checksum there": f"{found.checksum:x}",
                "replays skipped": str(self._watch.replays()),
                "end offsets": "\n".join(self._watch.end_offsets()),
                "kills": str(self.kills),
            },
            verdict,
        )
        return verdict.exactly_once

    def _start(self, *more: str) -> Driver:
        self._starts += 1
        self._doing = "is starting"
        self._screen.say(f"Starting driver {self._starts}{', to read all that is left' if more else ''}.")
        driver = Driver(self._workplace, ["--url", self._url, *self._source.job_arguments, *more])
        self._stack.callback(driver.sigkill)
        return driver

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
            if ordering and self._customers.sent.orders - self._rows_shown < _MOST_ORDERS_WAITING:
                self._customers.order_when_due()
            self._show()
            time.sleep(poll_seconds)

    def _show(self) -> None:
        if time.monotonic() - self._shown_at > _SHOW_EVERY_SECONDS:
            self._shown_at = time.monotonic()
            standing = self._watch.standing()
            batch = f", last batch {standing.last_batch_id}" if standing else ""
            self._rows_shown = standing.rows if standing else 0
            sent = self._customers.sent.orders
            self._screen.show(f"Driver {self._starts} {self._doing}{batch}", self._rows_shown, sent)

    def _published_since(self, before: Standing | None) -> bool:
        now = self._watch.standing()
        return now is not None and (before is None or now.run_id != before.run_id)

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


def run(screen: Screen, kills: int, *, kafka: bool) -> bool:
    """Set up, kill so many times, finish, clean up; tell whether every order arrived once."""
    with ExitStack() as stack:
        try:
            source, workplace = _set_up(screen, stack, kafka=kafka)
            screen.say("Starting an embedded Postgres.")
            postgres = stack.enter_context(EmbeddedPostgres())
            screen.say(f"Orders keep coming in, as {source.name}.")
            demo = Demo(screen, workplace, source, postgres.uri(), stack)
            for number in range(kills):
                demo.kill_in_the_middle(after_commit=number % 2 == 0)
            return demo.finish()
        finally:
            # A second Ctrl-C must not interrupt the cleaning up.
            for number in _ENDINGS:
                signal.signal(number, signal.SIG_IGN)


def _set_up(screen: Screen, stack: ExitStack, *, kafka: bool) -> tuple[Source, Workplace]:
    java()
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgonce-demo-")))
    if not kafka:
        return Files(directory / "orders"), Workplace(directory)
    screen.say("Starting a Kafka broker (the first time, Maven fetches its jars).")
    workplace = Workplace(directory, spark_connector_jars())
    return Topic(stack.enter_context(KafkaBroker()).bootstrap_servers), workplace


def _interrupted(number: int, _: object) -> None:
    # Whatever asks for the end: unwind the stack, which cleans up.
    raise KeyboardInterrupt(number)


def main() -> int:
    """Parse the command line and run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="read from a real Kafka broker instead of files")
    parser.add_argument("--kills", type=int, default=LEAST_KILLS, help="how often to kill the driver; three or more")
    given = parser.parse_args()
    if given.kills < LEAST_KILLS:
        parser.error(f"--kills must be at least {LEAST_KILLS}.")
    for number in _ENDINGS:
        signal.signal(number, _interrupted)
    try:
        with Screen() as screen:
            return 0 if run(screen, given.kills, kafka=given.kafka) else 1
    except (DemoError, MissingTool) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; everything that was started is stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
