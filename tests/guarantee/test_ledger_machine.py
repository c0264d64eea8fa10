"""
Every history ends as the docs promise. Hypothesis writes histories; the real commit runs them on a real Postgres.

Runs in: pytest. Invariant: after every step the target holds what the model says, each source's rows are a prefix and
there once, the ledger's chain has no hole, and every verdict was the promised one.

Spark is played (:mod:`support.ledger_model`): its checkpoints are in memory, its runs are steps of the history. All
else is real: staging, reading the checkpoint, the commit with its retries, the line that breaks.
``PGONCE_MODEL_EXAMPLES=5000 pytest tests/guarantee/test_ledger_machine.py`` runs longer; CI runs 40 examples. A failure
prints the history as code; Hypothesis keeps it in ``.hypothesis`` and tries it first the next time.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import Connection
from support.fixtures.proxy import Proxy
from support.histories import live_through
from support.ledger_model import PUBLISHED, SKIPPED, Folder, HandIn, Plan, Source, World
from support.ledger_site import STRUCT, Site, Vanished, encoded, hooked, site_at, vanish
from support.rows import given_rows
from support.with_rooms import work_into

from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.verdict.facts import Batch, Remedies
from pgonce.recovery.forget import forget_query
from pgonce.sink.data_source.stager import stage_rows
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin, batch_by_id, describe_batch
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagedRows, StagingTable, drop_staging_table, sweep

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "40"))
STEPS = 30
TOPICS = ("orders", "more")
"""Of the first query, if it reads Kafka, and another one."""
CUTS = ("cut_before_commit", "cut_during_commit", "cut_after_commit")
LOSER = 99
DRIVERS = st.integers(0, 2)
ROWS = st.sampled_from([1, 2, 3, 0, 1, 2, 3, 0, -1])
TASKS = st.sampled_from([0, 0, 1, 2])
SELDOM = ("forget", "recreate", "move", "another", "another by name", "judge by ids", "load again")
DEEDS_OF_PEOPLE = st.sampled_from([*["copy", "elsewhere", "replace"] * 2, *SELDOM])


@dataclass
class Frozen:
    """A driver that stopped inside its transaction: its thread, and whether its session was ended since."""

    is_first_contact: bool
    stopped: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    answer: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None
    is_ended: bool = False
    is_killed: bool = False

    def hook(self, connection: Connection) -> None:
        """Stop here, rows written and nothing committed."""
        if self.woken.is_set():
            return
        self.stopped.set()
        self.woken.wait()
        if self.is_killed:
            vanish(connection)


@dataclass
class Driver:
    """
    A run of a query: what it has in memory.

    ``base`` is the batch it did last; ``plan`` the batch at hand, ``batch`` how the commit describes it.
    """

    run_id: str
    folder: Folder
    base: Plan | None = None
    plan: Plan | None = None
    origin: Origin | None = None
    batch: Batch | None = None
    hand_in: HandIn | None = None
    promised_rows: tuple[tuple[int, int], ...] = ()
    staging_is_lost: bool = False
    is_published: bool = False
    frozen: Frozen | None = None

    @property
    def number(self) -> int:
        """The batch at hand, or the next one."""
        return self.plan.batch_id if self.plan else self.base.batch_id + 1 if self.base else 0

    @property
    def staging_table(self) -> StagingTable:
        """Where its tasks stage this batch."""
        return StagingTable(self.folder.query_id, "events", self.run_id, self.number)


@dataclass(frozen=True)
class Deed:
    """Something that may be done next: how often (next to others), when, and with what."""

    weight: int
    when: Callable[[Any], Any]
    arguments: dict[str, st.SearchStrategy[Any]]


DEEDS: dict[str, Deed] = {}
Method = TypeVar("Method", bound=Callable[..., None])


def deed(weight: int, when: Callable[[Any], Any], **arguments: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """
    Make a method something that a history is made of.

    Not Hypothesis's own rules: it leaves whole rules out of most histories, and here every history needs commits.
    """

    def register(method: Method) -> Method:
        DEEDS[method.__name__] = Deed(weight, when, arguments)
        return method

    return register


class LedgerMachine(RuleBasedStateMachine):
    """Up to three drivers, four checkpoints, one table."""

    site: Site

    def __init__(self) -> None:
        super().__init__()
        self.world = World(retain=1000)
        self.folders: list[Folder] = []
        self.drivers: list[Driver] = []
        self.locations = 0
        self.backup: tuple[World, list[Folder]] | None = None
        self.site.reset()

    @initialize(
        topic=st.sampled_from(["orders", None]),
        name=st.sampled_from([None, "orders"]),
        past=st.sampled_from([0, 0, 13, 15]),
        adopts=st.sampled_from([0, 0, 0, 0, 1, 1, None]),
        retain=st.sampled_from([1, 2, 3, 1000]),
    )
    def first_query(self, topic: str | None, name: str | None, past: int, adopts: int | None, retain: int) -> None:
        """A query, perhaps one whose batches another job has written so far."""
        self.world.retain = retain
        folder = Folder("q0", Source("s0", topic), self._somewhere(), name)
        for n in range(past):
            folder.plan(n, n, n + 1)
            folder.committed.add(n)
        if past and adopts is not None:
            folder.remedies = {"adopt_checkpoint": past + adopts}
        self.folders.append(folder)
        self._started(folder)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One thing more happens."""
        fitting = [name for name, deed in DEEDS.items() for _ in range(deed.weight) if deed.when(self)]
        name = data.draw(st.sampled_from(fitting), label="what")
        arguments = {key: data.draw(strategy, label=key) for key, strategy in DEEDS[name].arguments.items()}
        getattr(self, name)(**arguments)

    # Spark's own steps

    @deed(1, lambda self: len(self.drivers) < 3, at=st.integers(0, 3))
    def start(self, at: int) -> None:
        """A driver starts on a checkpoint, whether or not another one runs there."""
        self._started(self.folders[at % len(self.folders)])

    @deed(4, lambda self: 0 < len(self.drivers) < 3, at=DRIVERS, rows=ROWS)
    def take_over(self, at: int, rows: int) -> None:
        """Another driver starts on a driver's checkpoint and commits what it finds there, or a batch of its own."""
        successor = self._started(self.drivers[at % len(self.drivers)].folder)
        if self._at_hand(successor, rows, tasks=0):
            self._committed(successor)

    def _started(self, folder: Folder) -> Driver:
        newest = folder.newest
        driver = Driver(f"run {uuid.uuid4()}", folder, base=folder.plans.get(newest))
        if newest not in folder.committed and newest >= 0:
            driver.base = folder.plans.get(newest - 1)
            self._looked(driver, folder.plans[newest])
        self.drivers.append(driver)
        return driver

    def _looked(self, driver: Driver, plan: Plan) -> None:
        newest = Checkpoint(driver.folder).newest_offset_entry()
        assert newest
        driver.plan = plan
        driver.origin = Origin(
            driver.folder.query_id, driver.run_id, plan.batch_id, None if driver.folder.by_id else newest
        )

    @deed(
        3,
        lambda self: self._some(lambda driver: driver.plan is None),
        at=DRIVERS,
        rows=ROWS,
        races=st.sampled_from([True, True, False]),
    )
    def plan(self, at: int, rows: int, races: bool) -> None:
        """A driver writes ``offsets/N``; where it races, its rename goes over another driver's file."""
        driver = self._pick(at, lambda driver: driver.plan is None)
        self._planned(driver, rows, races=races)

    def _planned(self, driver: Driver, rows: int, *, races: bool = False) -> None:
        folder, n = driver.folder, driver.number
        start = driver.base.end if driver.base else folder.begins_at
        # A topic that was recreated goes back. Only beside a batch before is that promised to be seen, and not by ids.
        rows = rows if folder.source.is_kafka and driver.base and not folder.by_id else max(rows, 0)
        may_race = races and not folder.by_id and folder.newest == n
        if n <= folder.newest and not may_race:
            self.drivers.remove(driver)
            return
        self._looked(driver, folder.plan(n, start, start + rows))

    def _at_hand(self, driver: Driver, rows: int, tasks: int) -> bool:
        """Bring a driver to where it commits next; False where it found another one's entry and stopped."""
        if driver.is_published:
            self._noted(driver)
        if driver.plan is None:
            self._planned(driver, rows)
        if driver in self.drivers and tasks and not driver.promised_rows and driver.plan and driver.plan.positions:
            self._staged(driver, driver.plan, tasks)
        return driver in self.drivers

    def _staged(self, driver: Driver, plan: Plan, tasks: int) -> None:
        """Tasks stage the batch's rows; a speculative loser has staged some of them too."""
        parts = [plan] if tasks == 1 else [some_of(plan, plan.start, plan.start), plan]
        for mark, part in [*enumerate(parts), (LOSER, some_of(plan, plan.start, plan.start + 1))]:
            rows = [encoded(driver.folder.source, part, mark)]
            stage_rows(self.site.url, driver.staging_table, encoded_columns(STRUCT), rows)
        driver.promised_rows = tuple((mark, len(part.positions)) for mark, part in enumerate(parts))
        driver.staging_is_lost = False

    @deed(3, lambda self: self._some(is_awake), at=DRIVERS, rows=ROWS, tasks=TASKS)
    def prepare(self, at: int, rows: int, tasks: int) -> None:
        """A driver's tasks have run: whatever it does next is late, if others act meanwhile."""
        self._at_hand(self._pick(at, is_awake), rows, tasks)

    @deed(1, lambda self: self._some(may_commit), at=DRIVERS)
    def describe(self, at: int) -> None:
        """The commit worker has read the checkpoint, and is slow from there on."""
        self._described(self._pick(at, may_commit))

    @deed(6, lambda self: self._some(is_awake), at=DRIVERS, rows=ROWS, tasks=TASKS, cut=st.sampled_from([None, *CUTS]))
    def commit(self, at: int, rows: int, tasks: int, cut: str | None) -> None:
        """A driver commits its batch; the answer may be lost on the way."""
        driver = self._pick(at, is_awake)
        if self._at_hand(driver, rows, tasks):
            self._committed(driver, cut)

    @deed(1, lambda self: self._some(lambda driver: driver.is_published), at=DRIVERS)
    def write_commit(self, at: int) -> None:
        """Spark writes ``commits/N``."""
        self._noted(self._pick(at, lambda driver: driver.is_published))

    def _noted(self, driver: Driver) -> None:
        driver.folder.committed.add(driver.number)
        driver.base, driver.plan, driver.batch, driver.hand_in = driver.plan, None, None, None
        driver.promised_rows, driver.is_published = (), False

    @deed(3, lambda self: self._some(is_awake), at=DRIVERS, batches=st.integers(1, 3), rows=st.integers(0, 2))
    def go_on(self, at: int, batches: int, rows: int) -> None:
        """A driver runs undisturbed for some batches, or until it is refused."""
        driver = self._pick(at, is_awake)
        for _ in range(batches):
            if driver in self.drivers and self._at_hand(driver, rows, tasks=0):
                self._committed(driver)

    # What goes wrong

    @deed(2, lambda self: self._some(is_awake), at=DRIVERS)
    def crash(self, at: int) -> None:
        """A driver dies outside a transaction: nothing is called, its staging table stays."""
        self.drivers.remove(self._pick(at, is_awake))

    @deed(2, lambda self: self._some(is_awake), at=DRIVERS, rows=ROWS, tasks=TASKS)
    def crash_in_commit(self, at: int, rows: int, tasks: int) -> None:
        """A driver dies inside its transaction, with all rows written."""
        driver = self._pick(at, is_awake)
        if self._at_hand(driver, rows, tasks):
            self._committed(driver, hook=vanish)
        if driver in self.drivers:
            self.drivers.remove(driver)

    @deed(
        2,
        lambda self: self._some(is_awake) and not self._some(lambda driver: driver.frozen),
        at=DRIVERS,
        rows=ROWS,
        tasks=TASKS,
    )
    def freeze(self, at: int, rows: int, tasks: int) -> None:
        """A driver is stopped inside its transaction, and holds its writer's row (or was not to publish anyway)."""
        driver = self._pick(at, is_awake)
        if not self._at_hand(driver, rows, tasks) or not self._described(driver):
            return
        if self._expected(driver) not in PUBLISHED or self._is_kept_out(driver):
            self._committed(driver)
            return
        frozen = driver.frozen = Frozen(self._is_first_contact(driver))

        def run() -> None:
            try:
                frozen.answer.append(self._hand_in(driver, frozen.hook))
            except Vanished:
                frozen.answer.append("VANISHED")
            except BaseException as error:
                frozen.answer.append(repr(error))

        frozen.thread = threading.Thread(target=run, daemon=True)
        frozen.thread.start()
        assert frozen.stopped.wait(30), frozen.answer

    @deed(2, lambda self: self._some(lambda driver: driver.frozen))
    def wake(self) -> None:
        """The zombie's late commit: it goes on where it stopped, or finds its session ended and tries again."""
        driver = self._pick(0, lambda driver: driver.frozen)
        frozen = driver.frozen
        assert frozen
        assert frozen.thread
        expected = self._expected(driver) if frozen.is_ended else "NEW"
        frozen.woken.set()
        frozen.thread.join(30)
        driver.frozen = None
        self._judged(driver, frozen.answer[0], expected)

    @deed(1, lambda self: self._some(lambda driver: driver.frozen))
    def kill_frozen(self) -> None:
        """The zombie is killed before it wakes."""
        driver = self._pick(0, lambda driver: driver.frozen)
        self._killed(driver)

    def _killed(self, driver: Driver) -> None:
        frozen = driver.frozen
        assert frozen
        assert frozen.thread
        frozen.is_killed = True
        frozen.woken.set()
        frozen.thread.join(30)
        assert frozen.answer == ["VANISHED"]
        self.drivers.remove(driver)

    @deed(2, lambda self: self._some(lambda driver: driver.is_published), at=DRIVERS)
    def hand_in_twice(self, at: int) -> None:
        """Another writer of the same run uses the same sink name."""
        driver = self._pick(at, lambda driver: driver.is_published)
        driver.batch = driver.hand_in = None
        driver.is_published = False
        driver.promised_rows = ()
        self._committed(driver)

    @deed(2, lambda self: True)
    def back_up(self) -> None:
        """Database and checkpoints are put aside, of one moment."""
        self.site.back_up()
        self.backup = (self.world.kept(), [folder.copied(folder.shown) for folder in self.folders])

    @deed(2, lambda self: self.backup, with_checkpoints=st.booleans())
    def restore(self, with_checkpoints: bool) -> None:
        """The database is restored to an earlier state, perhaps with the checkpoints of that time."""
        assert self.backup
        # A driver that goes on over a restored checkpoint has a memory that no file tells of; Spark must be stopped
        # for that. Numbers alone tell even less.
        if with_checkpoints or any(folder.by_id for folder in self.folders):
            self._stop_all()
        self.site.restore()
        self.world = self.backup[0].kept()
        for driver in self.drivers:
            driver.staging_is_lost = bool(driver.promised_rows)
            if driver.frozen:
                driver.frozen.is_ended = True
        if with_checkpoints:
            self.folders = [folder.copied(folder.shown) for folder in self.backup[1]]

    # What people do with checkpoints

    @deed(3, lambda self: True, at=st.integers(0, 3), does=DEEDS_OF_PEOPLE, right=st.booleans())
    def keep_house(self, at: int, does: str, right: bool) -> None:
        """Somebody does something to a checkpoint, rightly or not."""
        folder = self.folders[at % len(self.folders)]
        is_used = any(driver.folder is folder for driver in self.drivers)
        is_stopped = all(driver.folder.query_id != folder.query_id for driver in self.drivers)
        if does == "move" and is_stopped:
            folder.shown = self._somewhere()
        elif does == "forget" and is_stopped and not folder.by_id and folder.newest > 0:
            # The newest batch is planned again.
            folder.committed.discard(folder.newest)
            del folder.plans[folder.newest]
            self._started_if_free(folder)
        elif does == "elsewhere" and folder.query_id in self.world.writers and not folder.by_id and not is_used:
            # It is advanced against another database, and pointed back.
            for _ in range(1 + right):
                last = folder.plans.get(folder.newest)
                start = last.end if last else folder.begins_at
                folder.committed.update(
                    {folder.newest, folder.plan(folder.newest + 1, start, start + 1).batch_id} - {-1}
                )
            self._started_if_free(folder)
        elif does == "load again" and is_stopped:
            self._load_again(folder)
        elif does == "judge by ids" and is_stopped:
            self._judge_by_ids(folder)
        elif len(self.folders) == 4:
            return
        elif does == "copy" and not folder.by_id:
            self.folders.append(folder.copied(self._somewhere()))
            self._started_if_free(self.folders[-1])
        elif does in ("recreate", "replace") and folder.remedies.keys() <= {"replaces"}:
            # To adopt a checkpoint, or to call a query independent, is a person's word: it counts, true or not.
            self._recreate(folder, replaces=does == "replace", right=right)
        elif does == "another":
            # Another source is written into the same table; the job says so, or does not, and its topic may tell.
            topic = TOPICS[at // 2] if right else None
            other = Folder(f"q{uuid.uuid4()}", Source(f"s{uuid.uuid4()}", topic), self._somewhere(), None)
            other.remedies = {"independent": at % 2 == 0}
            self.folders.append(other)
            self._started_if_free(other)
        elif does == "another by name":
            # The same, but it has a name, which its successor will have, too; nobody knows where it reads.
            name = f"n{uuid.uuid4()}"
            other = Folder(f"q{uuid.uuid4()}", Source(f"s{uuid.uuid4()}", None), self._somewhere(), name)
            other.remedies = {"independent": True} if right else {}
            self.folders.append(other)
            self._started_if_free(other)

    def _load_again(self, folder: Folder) -> None:
        """A query's rows are emptied, it is forgotten, and its source may be read from the beginning by another."""
        writer = self.world.writers.get(folder.query_id)
        feeds = [other for other in self.world.writers.values() if other.source == folder.source]
        is_busy = any(driver.frozen or driver.folder.source == folder.source for driver in self.drivers)
        if writer is None or writer.replaced_by or writer.is_forgotten or is_busy or feeds != [writer]:
            return
        self.site.admin.execute("DELETE FROM events WHERE source = %s", [folder.source.name])
        forget_query(folder.query_id, self.site.url, reason="to load it again", quiet_seconds=0, wait_seconds=30)
        self.world.forget(folder.query_id)
        if len(self.folders) < 4:
            again = Folder(f"q{uuid.uuid4()}", folder.source, self._somewhere(), folder.name)
            self.folders.append(again)
            self._started_if_free(again)

    def _recreate(self, old: Folder, *, replaces: bool, right: bool) -> None:
        """A checkpoint is recreated at the same place: to Spark, and so to the ledger, that is another query."""
        folder = Folder(f"q{uuid.uuid4()}", old.source, old.shown, old.name)
        folder.by_id = old.by_id
        writer = self.world.writers.get(old.query_id)
        if right and writer and not writer.by_id and folder.source.is_kafka:
            folder.begins_at = writer.last.plan.end
        if replaces:
            folder.remedies["replaces"] = old.query_id
        elif not right:
            folder.remedies["replaces"] = "q that never was"
        self.folders.append(folder)
        self._started_if_free(folder)

    def _started_if_free(self, folder: Folder) -> None:
        if len(self.drivers) < 3:
            self._started(folder)

    def _judge_by_ids(self, folder: Folder) -> None:
        """A job is set to ``offsetsFrom=listener``, or back: its next start judges by numbers, or by texts."""
        is_only_copy = sum(other.query_id == folder.query_id for other in self.folders) == 1
        writer = self.world.writers.get(folder.query_id)
        is_agreed = writer is None or folder.plans.get(writer.last.plan.batch_id) is writer.last.plan
        # What texts would refuse, numbers let through; that is their limit, and no find.
        plans = [folder.plans[n] for n in sorted(folder.plans)]
        is_agreed &= [plan.start for plan in plans[1:]] == [plan.end for plan in plans[:-1]]
        is_agreed &= all(plan.start <= plan.end for plan in plans)
        if is_only_copy and is_agreed and not self.backup:
            folder.by_id = not folder.by_id

    # How a batch is handed in

    def _described(self, driver: Driver) -> bool:
        """Read the checkpoint as the commit worker does; False where the driver is dead after it."""
        if driver.batch:
            return True
        folder, plan, origin = driver.folder, driver.plan, driver.origin
        assert plan
        assert origin
        if folder.by_id:
            driver.batch = batch_by_id(origin, folder.name, folder.shown)
        else:
            rewritten = folder.plans.get(plan.batch_id) is not plan
            try:
                driver.batch = describe_batch(Checkpoint(folder), origin, folder.name)
            except PgonceError as error:
                drop_staging_table(self.site.admin, driver.staging_table.name)
                self._judged(driver, error.code, "CHECKPOINT_IN_USE" if rewritten else "")
                return False
            assert not rewritten
        driver.hand_in = HandIn(
            folder.copied(folder.shown),
            folder.shown,
            driver.run_id,
            plan,
            folder.plans.get(plan.batch_id - 1),
            driver.batch.attempt,
            folder.by_id,
        )
        return True

    def _expected(self, driver: Driver) -> str:
        assert driver.hand_in
        verdict = self.world.promised(driver.hand_in)
        is_lost = driver.promised_rows and driver.staging_is_lost
        return "STAGED_ROWS_LOST" if verdict in PUBLISHED and is_lost else verdict

    def _committed(
        self, driver: Driver, cut: str | None = None, hook: Callable[[Connection], None] | None = None
    ) -> None:
        if not self._described(driver):
            return
        is_kept_out = self._is_kept_out(driver)
        expected = "LOCKED" if is_kept_out else self._expected(driver)
        hits = self.site.proxy.hits.copy()
        if cut:
            getattr(self.site.proxy, cut)(touching="pgonce.writers")
        try:
            answer = self._hand_in(driver, hook, self.site.proxy.url if cut else self.site.url)
        except Vanished:
            assert expected in PUBLISHED
            self._ended_by(driver)
            self.drivers.remove(driver)
            return
        finally:
            self.site.proxy.disarm()
        self._ended_by(driver, is_kept_out=is_kept_out)
        struck = self.site.proxy.hits - hits
        assert bool(struck) == (cut is not None and expected in PUBLISHED | SKIPPED)
        if struck["cut_after_commit"] or struck["cut_during_commit"]:
            # What was recorded before the answer was lost is found by its token; a skip is skipped again.
            expected = "LANDED" if expected in {"NEW", "ADOPTED"} else expected
            self._judged(driver, answer, expected, "NEW" if expected == "LANDED" else None)
        else:
            self._judged(driver, answer, expected)

    def _hand_in(self, driver: Driver, hook: Callable[[Connection], None] | None = None, url: str = "") -> str:
        """The Data Source's commit, with a hook at the end of the work; the verdict, or the error's code."""
        batch, plan, folder = driver.batch, driver.plan, driver.folder
        assert batch
        assert plan
        staged = StagedRows(driver.staging_table, driver.promised_rows) if driver.promised_rows else None
        bodies = [] if staged else [encoded(folder.source, plan)]
        rows = given_rows(encoded_columns(STRUCT), len(plan.positions), lambda: bodies, staged)
        work = work_into(None, destination("events"), rows)
        commit = CommitSettings(
            url or self.site.url,
            Remedies(**folder.remedies),
            retain_batches=self.world.retain,
            lock_timeout=0.2,
            retry_timeout=2 if self._is_kept_out(driver) else 30,
        )
        try:
            verdict = commit_batch(commit, batch, hooked(work, hook) if hook else work)
        except PgonceError as error:
            # Spark then calls abort.
            drop_staging_table(self.site.admin, driver.staging_table.name)
            return error.code
        sweep(self.site.admin, folder.query_id, "events", batch.run_id, batch.batch_id)
        return verdict.name

    def _judged(self, driver: Driver, answer: str, expected: str, effect: str | None = None) -> None:
        note(f"{driver.run_id} hands in {driver.plan}: {answer}")
        # All drivers of this test are one process, which remembers that it has committed for a writer that is gone.
        answer = "UNKNOWN" if answer == "LEDGER_GONE" else answer
        assert answer == expected, f"{answer} where the docs promise {expected}, for {driver}"
        if answer in PUBLISHED | SKIPPED:
            assert driver.hand_in
            adopts = effect and self.world.promised(driver.hand_in) == "ADOPTED"
            self.world.take(driver.hand_in, "ADOPTED" if adopts else effect or answer)
            driver.is_published = True
        else:
            self.drivers.remove(driver)

    def _is_kept_out(self, driver: Driver) -> bool:
        """Two queries' first batches into one sink take turns, and neither may end the other's session."""
        return self._is_first_contact(driver) and any(
            other.frozen
            and other.frozen.is_first_contact
            and not other.frozen.is_ended
            and other.folder.query_id != driver.folder.query_id
            for other in self.drivers
        )

    def _is_first_contact(self, driver: Driver) -> bool:
        return driver.folder.query_id not in self.world.writers

    def _ended_by(self, driver: Driver, *, is_kept_out: bool = False) -> None:
        """A driver that needs a row of a frozen driver's session has ended that; one kept out never came so far."""
        if is_kept_out:
            return
        needed = locked_rows(driver.folder, is_first_contact=self._is_first_contact(driver))
        for other in self.drivers:
            if (frozen := other.frozen) and other is not driver:
                held = locked_rows(other.folder, is_first_contact=frozen.is_first_contact)
                frozen.is_ended |= not held.isdisjoint(needed)

    # What must be so after every step

    @invariant()
    def all_is_as_promised(self) -> None:
        """The database is what the model says."""
        self.the_target_is_a_prefix()
        self.the_ledger_says_so()

    def the_target_is_a_prefix(self) -> None:
        """Each source's rows are there once, without a hole, from the planning that the ledger holds."""
        found: dict[str, list[tuple[int, str]]] = {}
        for source, position, label in self.site.rows("SELECT source, position, label FROM events ORDER BY 1, 2"):
            found.setdefault(source, []).append((position, label))
        assert found == {source: rows for source, rows in self.world.rows.items() if rows}
        for rows in found.values():
            positions = [position for position, _ in rows]
            assert positions == list(range(positions[0], positions[0] + len(rows))), rows

    def the_ledger_says_so(self) -> None:
        """Writers, records and skips are those of the model; the chain of records has no hole and no overlap."""
        writers = self.site.rows("SELECT query_id, run_id, last_batch_id, replaced_by FROM pgonce.writers")
        assert {row[0]: row[1:] for row in writers} == {
            query_id: (writer.owner, writer.last.plan.batch_id, writer.replaced_by)
            for query_id, writer in self.world.writers.items()
        }
        records = self.site.rows(
            "SELECT query_id, batch_id, b.run_id, attempt, offset_log, rows FROM pgonce.batches AS b "
            "JOIN pgonce.writers USING (writer_id) ORDER BY 1, 2"
        )
        assert records == [
            (query_id, n, record.run_id, record.attempt, None if record.by_id else record.plan.text, record.rows)
            for query_id, writer in sorted(self.world.writers.items())
            for n, record in sorted(writer.records.items())
        ]
        for writer in self.world.writers.values():
            chain = [writer.records[n].plan for n in sorted(writer.records)]
            assert [plan.batch_id for plan in chain] == list(range(chain[0].batch_id, chain[-1].batch_id + 1))
            assert [plan.start for plan in chain[1:]] == [plan.end for plan in chain[:-1]]
        skips = self.site.rows(
            "SELECT query_id, batch_id, r.run_id, attempt FROM pgonce.replays AS r "
            "JOIN pgonce.writers USING (writer_id) ORDER BY 1, 2, 3"
        )
        assert skips == sorted(
            (query_id, *skip, token)
            for query_id, writer in self.world.writers.items()
            for skip, token in writer.skips.items()
        )

    def teardown(self) -> None:
        """A last clean run leaves no staging table, and no session stays in a transaction."""
        self._stop_all()
        cleaned = {folder.query_id for folder in self.folders if self._run_to_the_end(folder)}
        registered = dict(self.site.rows("SELECT table_name, query_id FROM pgonce.staged_tables"))
        assert not cleaned & set(registered.values())
        there = self.site.rows("SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, 'staged_')")
        assert {name for (name,) in there} == {*registered, "staged_tables"}
        self.all_is_as_promised()
        wait_until_empty(self.site, "application_name LIKE 'pgonce %'")

    def _run_to_the_end(self, folder: Folder) -> bool:
        """Let a driver run past every batch that was staged, and publish one; False where it is refused."""
        staged = self.site.rows("SELECT max(batch_id) FROM pgonce.staged_tables WHERE query_id = %s", folder.query_id)
        last = max(staged[0][0] or 0, folder.newest)
        driver = self._started(folder)
        while self._at_hand(driver, rows=1, tasks=0):
            self._committed(driver)
            if driver not in self.drivers:
                return False
            # A run that has only skipped is no owner, and drops no table of another run.
            is_owner = self.world.writers[folder.query_id].owner == driver.run_id
            if driver.number >= last and is_owner:
                self._noted(driver)
                self.drivers.remove(driver)
                return True
        return False

    # Whom a rule is about

    def _some(self, fits: Callable[[Driver], Any]) -> bool:
        return any(map(fits, self.drivers))

    def _pick(self, at: int, fits: Callable[[Driver], Any]) -> Driver:
        fitting = [driver for driver in self.drivers if fits(driver)]
        return fitting[at % len(fitting)]

    def _stop_all(self) -> None:
        for driver in list(self.drivers):
            if driver.frozen and not driver.frozen.is_ended:
                self._killed(driver)
            elif driver.frozen:
                self.wake()
        self.drivers.clear()

    def _somewhere(self) -> str:
        self.locations += 1
        return f"/checkpoints/{self.locations}"


def may_commit(driver: Driver) -> bool:
    """Whether a driver has a batch in hand that is not committed."""
    return driver.plan is not None and not driver.is_published and not driver.frozen


def is_awake(driver: Driver) -> bool:
    """Whether a driver can do anything."""
    return driver.frozen is None


def locked_rows(folder: Folder, *, is_first_contact: bool) -> set[str]:
    """The writers whose rows a commit locks: its own, and on first contact the one that it replaces."""
    replaced = folder.remedies.get("replaces")
    return {folder.query_id, replaced} if is_first_contact and replaced else {folder.query_id}


def some_of(plan: Plan, start: int, end: int) -> Plan:
    """Some rows of a batch."""
    return Plan(plan.batch_id, start, end, plan.text, plan.label)


def wait_until_empty(site: Site, which: str) -> None:
    """Wait for sessions to be gone: a server notices a closed line a moment later."""
    deadline = time.monotonic() + 30
    query = (
        f"SELECT application_name, state, query FROM pg_stat_activity WHERE datname = current_database() AND {which}"
    )
    while left := site.admin.execute(query).fetchall():
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


@pytest.fixture
def site(url: str, proxy: Proxy) -> Iterator[Site]:
    """A database with a ledger and a table, and a line to it that can be cut."""
    with site_at(url, proxy) as found:
        yield found


def test_every_history_ends_as_the_docs_promise(site: Site) -> None:
    """Whatever happens to drivers, lines, databases and checkpoints, rows are there once and verdicts as promised."""
    live_through(LedgerMachine, EXAMPLES, STEPS, site=site)
    for url in (site.url, site.proxy.url):
        engine_for(url).dispose()
    wait_until_empty(site, "application_name LIKE 'pgonce%'")
