"""
Two drivers start together on one checkpoint: every row is there once, and who stops says that another was there.

Each driver is a process tree of its own with a query for each way in, so that every way meets its twin. The loser
stops, by pgonce's word or by Spark's, and Spark may stop both. The laboratory freezes a driver, lets another one
succeed it, and wakes it (``chaos.faults.Freeze``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from support import queries_job
from support.audit import left_behind, what_is_wrong, wrong_rows
from support.fixtures.driver import Driver, wait_until, with_tests_on_path
from support.fixtures.spark import spark_settings
from support.inbox import Inbox, create_events
from support.patience import PATIENCE_SECONDS
from support.queries_job import Job, sink_of, sinks_of
from support.supervised_query import SPARKS_WORDS, another_driver
from support.ways_in import WAYS, Sink, WayIn

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOCK_TIMEOUT = 2


@dataclass
class Rival:
    """One of the two drivers."""

    job: Job
    driver: Driver

    @property
    def endings(self) -> dict[str, str]:
        """Way to how its query ended, of those that have."""
        return {way.name: text for way in WAYS if (text := self.job.ending(way.name)) is not None}

    def go(self) -> None:
        """Let it start its queries."""
        self.job.sign("go").touch()

    def wait_until_ready(self) -> None:
        """Wait until it would start its queries."""
        self.driver.wait_for(self.job.sign("ready").exists, "it was ready")

    def stop(self) -> None:
        """Stop its queries in good order, and wait for its end."""
        self.job.sign("stop").touch()
        assert self.driver.wait() == 0
        assert set(self.endings) == {way.name for way in WAYS}


@dataclass(frozen=True)
class Bench:
    """What the test works with."""

    directory: Path
    inbox: Inbox
    url: str
    observer: psycopg.Connection
    start_driver: Callable[..., Driver]
    rivals: list[Rival] = field(default_factory=list)

    def start(self, name: str) -> Rival:
        """Start a driver, with a slot for each query and three retries for a task; it waits for its ``go``."""
        settings = spark_settings(self.directory / name, kafka=False) | {"spark.master": f"local[{len(WAYS)},4]"}
        sinks = sinks_of(WAYS, self.url, self.directory, lock_timeout=LOCK_TIMEOUT)
        signs, trigger = str(self.directory / "signs" / name), {"processingTime": "200 milliseconds"}
        job = Job(signs, str(self.inbox.folder), sinks, settings, trigger)
        here = Path(queries_job.__file__)
        rival = Rival(job, self.start_driver(here, job.to_json(), env=with_tests_on_path()))
        self.rivals.append(rival)
        return rival

    def sink(self, way: WayIn) -> Sink:
        """The way's table and checkpoint."""
        return sink_of(way, self.url, self.directory)

    def is_done(self, way: WayIn) -> bool:
        """Whether all rows are in the way's table, and Spark holds every batch to be done that it has planned."""
        folder = Path(self.sink(way).checkpoint)
        planned, done = ({path.name for path in (folder / log).glob("[0-9]*")} for log in ("offsets", "commits"))
        return planned == done and not wrong_rows(self.observer, self.sink(way).table, self.inbox.rows)

    def fewest_rows(self) -> int:
        """How many rows there are in the table that has the fewest."""
        counts = [f"SELECT count(*) AS n FROM {self.sink(way).table}" for way in WAYS]
        (fewest,) = self.observer.execute(f"SELECT min(n) FROM ({' UNION ALL '.join(counts)}) AS t".encode()).fetchone()
        return fewest

    def assert_nothing_is_left(self) -> None:
        """No process of the drivers lives, no session of theirs, and no staged table."""
        sessions = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'pgonce%'"
        living = [rival.driver.processes for rival in self.rivals]
        assert wait_until(lambda: not any(of_one() for of_one in living), 60), [of_one() for of_one in living]
        ours = f"{sessions} AND datname = current_database()".encode()
        assert wait_until(lambda: not self.observer.execute(ours).fetchall()), self.observer.execute(ours).fetchall()
        assert left_behind(self.observer) == []


@pytest.fixture
def bench(tmp_path, url, observer, start_driver):
    """A table for each way in, and an inbox with one batch of ten rows."""
    inbox = Inbox(tmp_path / "inbox")
    inbox.add(10)
    for way in WAYS:
        create_events(url, sink_of(way, url, tmp_path).table, keyed=way.upserts)
    return Bench(tmp_path, inbox, url, observer, start_driver)


def test_one_of_two_drivers_goes_on(bench):
    """Of two drivers on one checkpoint, one goes on unless Spark stops both; no row suffers, and the next goes on."""
    one, other = rivals = bench.start("one"), bench.start("other")
    for rival in rivals:
        rival.wait_until_ready()
    for rival in rivals:
        rival.go()

    def endings(way: WayIn) -> list[str]:
        return [text for rival in rivals if (text := rival.endings.get(way.name)) is not None]

    def each_has_lost_one() -> bool:
        # Only as fast as they are read: files that wait do not make the drivers meet, and are work for later.
        # Spark keeps the offsets of 100 batches, and all are compared in the end.
        if len(bench.inbox.rows) < min(600, bench.fewest_rows() + 30):
            bench.inbox.add(10)
        time.sleep(0.4)
        return all(endings(way) for way in WAYS)

    one.driver.wait_for(each_has_lost_one, "one of each two queries ended")
    bench.inbox.add(10)
    # Not by the batches: one that was planned while another driver ran may have taken two files.
    assert wait_until(lambda: all(len(endings(way)) == 2 or bench.is_done(way) for way in WAYS), PATIENCE_SECONDS)
    for way in WAYS:
        reasons = [another_driver(text) for text in endings(way)]
        print(f"{way.name}: {reasons}")
        assert None not in reasons, endings(way)
        # Spark may stop both: each driver writes down one thing that the other needs, a batch or a file's place in it.
        assert len(reasons) == 1 or any(reason in SPARKS_WORDS for reason in reasons), endings(way)
    one.stop()
    other.stop()

    following = bench.start("following")
    following.go()
    bench.inbox.add(10)
    following.driver.wait_for(lambda: all(map(bench.is_done, WAYS)), "the next driver went on")
    following.stop()
    for way in WAYS:
        sink = bench.sink(way)
        assert what_is_wrong(bench.observer, sink.table, sink.checkpoint, bench.inbox.rows) == [], way.name
    bench.assert_nothing_is_left()
