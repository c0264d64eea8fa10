"""
A driver is shot at each moment of a batch, and another takes over: no row is lost or doubled.

Every moment is held open until the shot: by a file that tasks wait for, by a lock in Postgres, or by the proxy at
COMMIT. One driver runs a query for each of several ways in, and all of them are at the moment when it is killed; the
tests' own driver takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from support import queries_job
from support.audit import recorded, replays, what_is_wrong, wrong_rows
from support.fixtures.driver import Driver, with_tests_on_path
from support.fixtures.proxy import Proxy
from support.fixtures.spark import spark_settings
from support.gate import gate
from support.inbox import Inbox, create_events, events
from support.patience import PATIENCE_SECONDS
from support.queries_job import Job, sink_of, sinks_of
from support.ways_in import WAYS, Sink, WayIn

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@dataclass(frozen=True)
class Bench:
    """What a test of this module works with; the driver reaches Postgres through the proxy."""

    directory: Path
    ways: Sequence[WayIn]
    inbox: Inbox
    url: str
    proxy: Proxy
    observer: psycopg.Connection
    start_driver: Callable[..., Driver]

    @property
    def job(self) -> Job:
        """A query for each of the ways, on as many slots, with three retries for a task."""
        settings = spark_settings(self.directory, kafka=False) | {"spark.master": f"local[{len(self.ways)},4]"}
        sinks = sinks_of(self.ways, self.proxy.url, self.directory)
        trigger, signs = {"processingTime": "500 milliseconds"}, str(self.directory / "signs")
        return Job(signs, str(self.inbox.folder), sinks, settings, trigger, tasks_wait=True)

    def start(self) -> Driver:
        """Start the driver."""
        here, told = Path(queries_job.__file__), self.job.to_json()
        self.job.sign("go").touch()
        return self.start_driver(here, told, env=with_tests_on_path())

    def sink(self, way: WayIn) -> Sink:
        """The way's table and checkpoint, without the proxy."""
        return sink_of(way, self.url, self.directory)

    def checkpoint(self, way: WayIn) -> Path:
        """The way's checkpoint."""
        return Path(self.sink(way).checkpoint)

    def count(self, query: str) -> int:
        """What a query that counts answers."""
        found = self.observer.execute(query).fetchone()
        assert found
        return int(found[0])


@pytest.fixture
def bench_of(tmp_path, url, proxy, observer, start_driver):
    """Make a table for each of the ways, and an inbox with one batch of ten rows."""

    def make(ways: Sequence[WayIn]) -> Bench:
        inbox = Inbox(tmp_path / "inbox")
        inbox.add(10)
        for way in ways:
            create_events(url, sink_of(way, url, tmp_path).table, keyed=way.upserts)
        return Bench(tmp_path, ways, inbox, url, proxy, observer, start_driver)

    return make


@contextmanager
def before_the_tasks(bench: Bench) -> Iterator[Callable[[], bool]]:
    """The batch is planned, and no task has given a row away."""
    for way in bench.ways:
        bench.job.sign(f"{way.name}/wait").touch()
    yield lambda: all(bench.job.sign(f"{way.name}/waiting").exists() for way in bench.ways)


@contextmanager
def between_tasks_and_commit(bench: Bench) -> Iterator[Callable[[], bool]]:
    """The commit asks for its writer's row, which the test keeps locked."""
    asking = (
        "SELECT count(DISTINCT a.application_name) FROM pg_stat_activity AS a JOIN pg_locks AS l USING (pid) "
        "WHERE l.relation = 'pgonce.writers'::regclass AND NOT l.granted AND a.application_name LIKE 'pgonce %'"
    )
    with psycopg.connect(bench.url) as holder:
        holder.execute("LOCK TABLE pgonce.writers IN EXCLUSIVE MODE")
        yield lambda: bench.count(asking) == len(bench.ways)


@contextmanager
def inside_the_transaction(bench: Bench) -> Iterator[Callable[[], bool]]:
    """The rows are written, and nothing is sent that records the batch: a trigger on the target waits for the test."""
    with gate(bench.url, *(bench.sink(way).table for way in bench.ways)) as waiting:
        yield lambda: bench.count(waiting) == len(bench.ways)


@contextmanager
def at_the_record(bench: Bench) -> Iterator[Callable[[], bool]]:
    """Record and COMMIT have arrived, and a trigger on the ledger waits for the test: the server commits afterwards."""
    with gate(bench.url) as waiting:
        yield lambda: bench.count(waiting) == len(bench.ways)


@contextmanager
def before_commit(bench: Bench) -> Iterator[Callable[[], bool]]:
    """All is written and recorded, and COMMIT, which was sent with the record, never reaches the server."""
    # As the statement that writes the rows names the table; a task that stages does not name it so.
    holds = [bench.proxy.hold_before_commit(touching=f'"{bench.sink(way).table}"') for way in bench.ways]
    yield lambda: all(hold.reached.is_set() for hold in holds)
    for hold in holds:
        hold.cut()


@contextmanager
def after_commit(bench: Bench) -> Iterator[Callable[[], bool]]:
    """The server has committed, and its answer never reaches the driver, let alone ``commits/1``."""
    holds = [bench.proxy.hold_after_commit(touching=f'"{bench.sink(way).table}"') for way in bench.ways]
    yield lambda: all(hold.reached.is_set() for hold in holds)
    for hold in holds:
        hold.cut()


@contextmanager
def after_the_batch(bench: Bench) -> Iterator[Callable[[], bool]]:
    """Spark has noted the batch as done."""
    yield lambda: all((bench.checkpoint(way) / "commits/1").exists() for way in bench.ways)


@dataclass(frozen=True)
class Moment:
    """
    When to shoot: ``hold`` brings every query there; the rest is what proves that it was there.

    ``is_replayed`` says whether the batch is, or will be, committed although Spark does not know it.
    """

    hold: Callable[[Bench], AbstractContextManager[Callable[[], bool]]]
    in_ledger: bool = False
    in_checkpoint: bool = False
    is_replayed: bool = False


MOMENTS = (
    Moment(before_the_tasks),
    Moment(between_tasks_and_commit),
    Moment(inside_the_transaction),
    Moment(before_commit),
    Moment(at_the_record, is_replayed=True),
    Moment(after_commit, in_ledger=True, is_replayed=True),
    Moment(after_the_batch, in_ledger=True, in_checkpoint=True),
)


at_each_moment = pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.hold.__name__)


@at_each_moment
def test_killed_driver_is_succeeded(moment, bench_of, spark):
    """Whenever a driver is killed, its successor goes on so that every row is there once."""
    kill_and_take_over(moment, bench_of(WAYS), spark)


@pytest.mark.parametrize("hold", [inside_the_transaction, pytest.param(after_commit, marks=pytest.mark.thorough)])
def test_killed_driver_is_succeeded_in_short(hold, bench_of, spark):
    """The same inside the transaction, and after COMMIT, for two ways in."""
    (moment,) = [moment for moment in MOMENTS if moment.hold is hold]
    kill_and_take_over(moment, bench_of(WAYS[:1] + WAYS[3:4]), spark)


def kill_and_take_over(moment: Moment, bench: Bench, spark: SparkSession) -> None:
    """Kill a driver at the moment, and let the tests' own driver take over."""
    observer, ways = bench.observer, bench.ways
    driver = bench.start()
    driver.wait_for(lambda: all((bench.checkpoint(way) / "commits/0").exists() for way in ways), "the first batch")
    first = list(bench.inbox.rows)
    with moment.hold(bench) as is_reached:
        bench.inbox.add(20)
        driver.wait_for(is_reached, moment.hold.__name__)
        driver.sigkill()
        for way in ways:
            assert_was_at(moment, bench, way, before=first)
    bench.inbox.add(30)
    streams = [way.append(events(spark, bench.inbox.folder), bench.sink(way)) for way in ways]
    for query in [stream.trigger(availableNow=True).start() for stream in streams]:
        assert query.awaitTermination(PATIENCE_SECONDS)
    for way in ways:
        sink = bench.sink(way)
        assert what_is_wrong(observer, sink.table, sink.checkpoint, bench.inbox.rows) == [], way.name
        assert replays(observer, sink.checkpoint) == [1] * moment.is_replayed


def assert_was_at(moment: Moment, bench: Bench, way: WayIn, before: list[tuple]) -> None:
    """Prove that the shot hit: what the checkpoint and the ledger know of batch 1, and what readers see of it."""
    sink = bench.sink(way)
    assert (bench.checkpoint(way) / "offsets/1").exists()
    assert (bench.checkpoint(way) / "commits/1").exists() == moment.in_checkpoint, way.name
    assert [batch.batch_id for batch in recorded(bench.observer, sink.checkpoint)] == [0, 1][: 1 + moment.in_ledger]
    visible = bench.inbox.rows if moment.in_ledger else before
    assert wrong_rows(bench.observer, sink.table, visible) == [], way.name
