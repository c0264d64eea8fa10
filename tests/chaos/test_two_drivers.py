"""
Two drivers on one checkpoint: every row is there once, and the driver that stops says that another one was there.

Each driver is a process tree of its own with a query for each way in, so that every way meets its twin. Either both run
(the loser stops, by pgonce's word or by Spark's, and Spark may stop both), or one is frozen at a moment that the test
holds open, succeeded, and woken.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
import pytest
from chaos import contest_job
from chaos.another_driver import SPARKS_WORDS, another_driver
from chaos.contest_job import Contest
from chaos.driver_job import sink_of
from support.audit import left_behind, query_id, waiting_commits, what_is_wrong, wrong_rows
from support.fixtures.driver import Driver, wait_until, with_tests_on_path
from support.fixtures.proxy import Hold, Proxy
from support.fixtures.spark import spark_settings
from support.inbox import Inbox, create_events
from support.patience import PATIENCE_SECONDS
from support.ways_in import WAYS, Sink, WayIn

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# CI runs the most telling cases; PGONCE_CHAOS=long runs all.
LONG = os.environ.get("PGONCE_CHAOS") == "long"
LOCK_TIMEOUT = 2


@dataclass
class Rival:
    """One of the two drivers."""

    contest: Contest
    driver: Driver

    @property
    def endings(self) -> dict[str, str]:
        """Way to how its query ended, of those that have."""
        return {way.name: text for way in WAYS if (text := self.contest.ending(way)) is not None}

    def go(self) -> None:
        """Let it start its queries."""
        (self.contest.signs / "go").touch()

    def wait_until_ready(self) -> None:
        """Wait until it would start its queries."""
        self.driver.wait_for((self.contest.signs / "ready").exists, f"{self.contest.name} was ready")

    def stop(self) -> None:
        """Stop its queries in good order, and wait for its end."""
        (self.contest.signs / "stop").touch()
        assert self.driver.wait() == 0
        assert set(self.endings) == {way.name for way in WAYS}

    def freeze(self) -> None:
        """SIGSTOP everything of it; a process may be born while others are stopped."""
        while moving := [process for process in self.driver.processes() if not _is_stopped(process)]:
            for process in moving:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)
            time.sleep(0.02)

    def wake(self) -> None:
        """SIGCONT everything of it."""
        for process in self.driver.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return True


@dataclass(frozen=True)
class Bench:
    """What a test of this module works with."""

    directory: Path
    inbox: Inbox
    url: str
    proxy: Proxy
    observer: psycopg.Connection
    start_driver: Callable[..., Driver]
    rivals: list[Rival] = field(default_factory=list)
    late: list[Hold] = field(default_factory=list)

    def start(self, name: str, *, url: str | None = None, go: bool = True) -> Rival:
        """Start a driver, with a slot for each query and three retries for a task."""
        settings = spark_settings(self.directory / name, kafka=False) | {"spark.master": f"local[{len(WAYS)},4]"}
        contest = Contest(name, url or self.url, str(self.inbox.folder), str(self.directory), settings, LOCK_TIMEOUT)
        for way in WAYS:
            contest.signs_of(way).mkdir(parents=True)
        here = Path(contest_job.__file__)
        rival = Rival(contest, self.start_driver(here, contest.to_json(), env=with_tests_on_path()))
        self.rivals.append(rival)
        if go:
            rival.go()
        return rival

    def sink(self, way: WayIn) -> Sink:
        """The way's table and checkpoint."""
        return sink_of(way, self.url, self.directory)

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark holds this batch to be done, for every way in."""
        return all((Path(self.sink(way).checkpoint) / f"commits/{batch_id}").exists() for way in WAYS)

    def is_at_rest(self, way: WayIn) -> bool:
        """Whether Spark holds every batch of this way in to be done that it has planned."""
        folder = Path(self.sink(way).checkpoint)
        planned, done = ({path.name for path in (folder / log).glob("[0-9]*")} for log in ("offsets", "commits"))
        return planned == done

    def count(self, query: str) -> int:
        """What a query that counts answers."""
        found = self.observer.execute(query).fetchone()
        assert found
        return int(found[0])

    def sessions(self) -> dict[int, str]:
        """Process id to application name of the sessions in this database, without those of the test itself."""
        found = self.observer.execute(
            "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND application_name LIKE 'pgonce%'"
        )
        return dict(found.fetchall())

    def stuck_sessions(self) -> set[int]:
        """The sessions that hold a writer's row and wait for their client."""
        found = self.observer.execute(
            "SELECT DISTINCT pid FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE granted "
            "AND relation = 'pgonce.writers'::regclass AND mode = 'RowShareLock' AND wait_event = 'ClientRead' "
            "AND application_name LIKE 'pgonce %' AND state IN ('idle in transaction', 'active')"
        )
        return {pid for (pid,) in found.fetchall()}

    def owner(self, way: WayIn) -> str:
        """The run that published the way's last batch."""
        row = self.observer.execute(
            "SELECT run_id FROM pgonce.writers WHERE query_id = %s", [query_id(self.sink(way).checkpoint)]
        ).fetchone()
        assert row
        return str(row[0])

    def fewest_rows(self) -> int:
        """How many rows there are in the table that has the fewest."""
        return min(self.count(f"SELECT count(*) FROM {self.sink(way).table}") for way in WAYS)

    def what_is_wrong(self) -> list[str]:
        """Compare every way's table and ledger with what was put into the inbox."""
        return [
            f"{way.name}: {wrong}"
            for way in WAYS
            for wrong in what_is_wrong(self.observer, self.sink(way).table, self.sink(way).checkpoint, self.inbox.rows)
        ]

    def wrong_rows(self, way: WayIn) -> list[str]:
        """Compare the way's table with what was put into the inbox."""
        return wrong_rows(self.observer, self.sink(way).table, self.inbox.rows)

    def assert_nothing_is_left(self) -> None:
        """No process of the drivers lives, no session of theirs, and no staged table."""
        living = [rival.driver.processes for rival in self.rivals]
        assert wait_until(lambda: not any(of_one() for of_one in living), 60), [of_one() for of_one in living]
        assert wait_until(lambda: not self.sessions()), self.sessions()
        assert left_behind(self.observer) == []


@pytest.fixture
def bench(tmp_path, url, proxy, observer, start_driver):
    """A table for each way in, and an inbox with one batch of ten rows."""
    inbox = Inbox(tmp_path / "inbox")
    inbox.add(10)
    for way in WAYS:
        create_events(url, sink_of(way, url, tmp_path).table, keyed=way.upserts)
    return Bench(tmp_path, inbox, url, proxy, observer, start_driver)


def started_together(bench: Bench) -> tuple[Rival, Rival]:
    """Both at the same moment, on a checkpoint that does not exist yet."""
    one, other = bench.start("one", go=False), bench.start("other", go=False)
    one.wait_until_ready()
    other.wait_until_ready()
    one.go()
    other.go()
    return one, other


def second_joins(bench: Bench) -> tuple[Rival, Rival]:
    """The second when the first is running."""
    one, other = bench.start("one"), bench.start("other", go=False)
    one.driver.wait_for(lambda: bench.is_committed(0), "the first batch")
    other.wait_until_ready()
    other.go()
    return one, other


def restarted_together(bench: Bench) -> tuple[Rival, Rival]:
    """Both at the same moment, after a driver was killed when its second batch was planned."""
    first = bench.start("first")
    first.driver.wait_for(lambda: bench.is_committed(0), "the first batch")
    for way in WAYS:
        (first.contest.signs_of(way) / "wait").touch()
    bench.inbox.add(20)
    first.driver.wait_for(lambda: _all_wait(first), "the second batch")
    first.driver.sigkill()
    return started_together(bench)


def _all_wait(rival: Rival) -> bool:
    return all((rival.contest.signs_of(way) / "waiting").exists() for way in WAYS)


ORDERS = (started_together, second_joins, restarted_together)


@pytest.mark.parametrize("order", ORDERS if LONG else ORDERS[:1], ids=lambda order: order.__name__)
def test_one_of_two_drivers_goes_on(order, bench):
    """Of two drivers on one checkpoint, one goes on unless Spark stops both; no row suffers, and the next goes on."""
    one, other = order(bench)

    def endings(way: WayIn) -> list[str]:
        return [text for rival in (one, other) if (text := rival.endings.get(way.name)) is not None]

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
    assert wait_until(
        lambda: all(len(endings(way)) == 2 or (bench.is_at_rest(way) and not bench.wrong_rows(way)) for way in WAYS),
        PATIENCE_SECONDS,
    )
    for way in WAYS:
        reasons = [another_driver(text) for text in endings(way)]
        print(f"{order.__name__} {way.name}: {reasons}")
        assert None not in reasons, endings(way)
        # Spark may stop both: each driver writes down one thing that the other needs, a batch or a file's place in it.
        assert len(reasons) == 1 or any(reason in SPARKS_WORDS for reason in reasons), endings(way)
    one.stop()
    other.stop()

    following = bench.start("following")
    bench.inbox.add(10)
    following.driver.wait_for(
        lambda: all(bench.is_at_rest(way) and not bench.wrong_rows(way) for way in WAYS), "the next driver went on"
    )
    following.stop()
    assert bench.what_is_wrong() == []
    bench.assert_nothing_is_left()


@contextmanager
def before_the_tasks(bench: Bench, frozen: Rival, way: WayIn) -> Iterator[Callable[[], bool]]:
    """The batch is planned, and no task has given a row away."""
    signs = frozen.contest.signs_of(way)
    (signs / "wait").touch()
    yield (signs / "waiting").exists
    (signs / "wait").unlink()


@contextmanager
def while_staging(bench: Bench, frozen: Rival, way: WayIn) -> Iterator[Callable[[], bool]]:
    """A task's COPY into the staging table is open; where nothing is staged, as before the tasks."""
    if way.name != "staged":
        with before_the_tasks(bench, frozen, way) as is_reached:
            yield is_reached
        return
    bench.late.append(bench.proxy.hold_in_copy(touching='"pgonce"."staged_'))
    yield bench.late[-1].reached.is_set


@contextmanager
def between_tasks_and_commit(bench: Bench, frozen: Rival, way: WayIn) -> Iterator[Callable[[], bool]]:
    """The commit asks for its writer's row, in vain: once frozen, it holds nothing any more."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity AS a JOIN pgonce.writers AS w "
        "ON a.application_name = 'pgonce ' || w.run_id "
        f"WHERE a.wait_event_type = 'Lock' AND w.sink_name LIKE '%{bench.sink(way).table}'"
    )
    with psycopg.connect(bench.url) as holder:
        held = holder.execute(
            "SELECT FROM pgonce.writers WHERE sink_name LIKE %s FOR UPDATE", [f"%{bench.sink(way).table}"]
        )
        assert held.rowcount == 1
        yield lambda: bench.count(waiting) == 1


@contextmanager
def in_the_transaction(bench: Bench, frozen: Rival, way: WayIn) -> Iterator[Callable[[], bool]]:
    """The rows are written, and a trigger on the target waits for the test: a frozen driver does not ask for more."""
    table = bench.sink(way).table
    waiting = (
        "SELECT count(DISTINCT pid) FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE wait_event = 'PgSleep' "
        f"AND mode = 'RowExclusiveLock' AND relation = '{table}'::regclass"
    )
    with psycopg.connect(bench.url, autocommit=True) as admin:
        admin.execute("CREATE TABLE gate_is_open ()")
        # Not by a lock, which the commit would not wait for for long.
        admin.execute(
            "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
            "WHILE NOT EXISTS (SELECT FROM public.gate_is_open) LOOP PERFORM pg_sleep(0.05); END LOOP; "
            "RETURN NULL; END'"
        )
        admin.execute(f"CREATE TRIGGER gate AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION wait_at_gate()")
        yield lambda: bench.count(waiting) == 1
        admin.execute("INSERT INTO gate_is_open DEFAULT VALUES")


@contextmanager
def before_commit(bench: Bench, frozen: Rival, way: WayIn) -> Iterator[Callable[[], bool]]:
    """All is written and recorded, and COMMIT is on its way; it arrives when the test lets it."""
    bench.late.append(bench.proxy.hold_before_commit(touching=f'"{bench.sink(way).table}"'))
    yield bench.late[-1].reached.is_set


WAKINGS = ("while_the_successor_runs", "after_the_successor_stopped")
MOMENTS = (before_the_tasks, while_staging, between_tasks_and_commit, in_the_transaction, before_commit)


def _holds_the_writer(way: WayIn, moment: object) -> bool:
    # A function's transaction is open before its tasks run.
    return moment in (in_the_transaction, before_commit) or (
        way.name == "function" and moment is not between_tasks_and_commit
    )


@pytest.mark.parametrize("woken", WAKINGS if LONG else WAKINGS[:1])
@pytest.mark.parametrize("shift", range(len(MOMENTS)) if LONG else [0])
def test_frozen_driver_is_succeeded(shift, woken, bench):
    """A driver is frozen, each query at another moment; another takes over, and the first one, woken, does no harm."""
    frozen = bench.start("frozen", url=bench.proxy.url)
    frozen.driver.wait_for(lambda: bench.is_committed(0), "the first batch")
    with ExitStack() as moments:
        reached = {}
        chosen = [(way, MOMENTS[(place + shift) % len(MOMENTS)]) for place, way in enumerate(WAYS)]
        for way, moment in chosen:
            reached[f"{way.name} {moment.__name__}"] = moments.enter_context(moment(bench, frozen, way))
        bench.inbox.add(20)
        for name, is_reached in reached.items():
            frozen.driver.wait_for(is_reached, name)
        frozen.freeze()
        assert wait_until(lambda: not waiting_commits(bench.observer), LOCK_TIMEOUT + 5)
    holding = sum(_holds_the_writer(way, moment) for way, moment in chosen)
    assert wait_until(lambda: len(bench.stuck_sessions()) == holding), bench.stuck_sessions()
    stuck, before = bench.stuck_sessions(), bench.sessions()
    runs_before = {way.name: bench.owner(way) for way in WAYS}

    bench.inbox.add(30)
    successor = bench.start("successor")
    successor.driver.wait_for(lambda: bench.is_committed(2), "the successor went on")
    assert set(before) - set(bench.sessions()) == stuck
    assert [wrong for way in WAYS for wrong in bench.wrong_rows(way)] == []
    if woken == "after_the_successor_stopped":
        successor.stop()

    frozen.wake()
    for hold in bench.late:
        hold.release()
    frozen.driver.wait_for(lambda: len(frozen.endings) == len(WAYS), "all queries of the woken driver ended")
    for way in WAYS:
        ending = frozen.endings[way.name]
        assert "[FENCED]" in ending, f"{way.name}: {ending}"
        assert runs_before[way.name] != bench.owner(way)
        assert bench.owner(way) in ending
    assert left_behind(bench.observer) == []
    frozen.stop()

    if woken == "while_the_successor_runs":
        bench.inbox.add(10)
        successor.driver.wait_for(lambda: bench.is_committed(3), "the successor goes on")
        successor.stop()
    assert bench.what_is_wrong() == []
    bench.assert_nothing_is_left()
