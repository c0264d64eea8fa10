"""
No order of events in a small world loses a row, doubles one, or leaves every driver stuck.

Runs in: pytest, without I/O. Invariant: every state that a world can reach is visited, and judged by what happened to
the rows, never by the verdict that led there. Drivers keep Spark's logs as Spark does: ``offsets/N`` is looked for and
then written, and where a rename is not atomic another driver's file goes under. A state is kept in canonical form: runs
that are over are nobody, drivers have no order, and plannings are told apart, not numbered. So the enumeration covers
crashes and restarts without number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple
from uuid import UUID

import pytest
from support.batches import make_batch, make_writer

from pgonce.offsets_store.verdict.decide import PUBLISH, SKIP, Verdict, decide
from pgonce.offsets_store.verdict.facts import Batch, Ledger, Recorded, Remedies

Decider = Callable[[Ledger, Batch, Remedies], Verdict]
NOBODY = -1


class Violation(AssertionError):
    """What must not happen."""


class Plan(NamedTuple):
    """One planning of a batch: which rows, and (in place of the time in its text) which planning of it."""

    batch_id: int
    start: int
    end: int
    planning: int


class Driver(NamedTuple):
    """
    A run of the query. ``plan`` is the batch at hand; before it is planned, the batch before it.

    ``seen`` and ``previous`` are ``offsets/N`` and ``offsets/N-1`` as they were read.
    """

    phase: str
    batch_id: int = 0
    plan: Plan | None = None
    seen: Plan | None = None
    previous: Plan | None = None


class Record(NamedTuple):
    """A published batch: the text that the ledger holds, the run, and the rows that really went in."""

    text: Plan
    run: int
    start: int
    end: int


class State(NamedTuple):
    """
    All there is: the checkpoint, the ledger, the drivers, and the accidents that may still happen.

    A run is the place of its driver in ``drivers``; ``owners`` and ``skips`` tell of those that still run.
    """

    offsets: tuple[Plan | None, ...] = ()
    committed: int = NOBODY
    records: tuple[Record, ...] = ()
    owner: int = NOBODY
    owners: frozenset[int] = frozenset()
    skips: frozenset[tuple[int, int]] = frozenset()
    drivers: tuple[Driver, ...] = ()
    overwrites: int = 0
    lost_entries: int = 0
    lost_records: int = 0

    @property
    def target_end(self) -> int:
        """How many rows are in the target; they are a prefix as long as nobody objects."""
        return self.records[-1].end if self.records else 0


@dataclass(frozen=True)
class World:
    """
    How large a world is, and what may happen in it.

    ``overwrites``: how often a driver's ``offsets/N`` may replace another's, where a rename is not atomic;
    ``lost_entries``: how often the newest entry of the checkpoint's logs may go (an older copy is put back), so that
    it is planned again; ``lost_records``: how often the database may fall back by a batch.
    """

    drivers: int
    batches: int = 4
    overwrites: int = 0
    lost_entries: int = 0
    lost_records: int = 0


OFF = Driver("off")
TWIN = UUID(int=10**6)


def attempt(run: int, batch_id: int) -> UUID:
    """A run hands in each batch once, however often its commit tries."""
    return UUID(int=(run + 1) * 100 + batch_id)


def offsets_of(batch_id: int) -> dict[str, dict[str, int]]:
    """What a file source says: nothing of which rows."""
    return {"0": {"logOffset": batch_id}}


@cache
def described(driver: Driver, run: int, token: UUID) -> Batch:
    """The batch as the commit reads it from the checkpoint."""
    assert driver.seen
    return make_batch(
        driver.batch_id,
        str(run),
        query_id="q",
        sink_name="public.events",
        attempt=token,
        offset_log=str(driver.seen),
        previous_offset_log=str(driver.previous) if driver.batch_id else None,
        start=offsets_of(driver.batch_id - 1) if driver.batch_id else None,
        end=offsets_of(driver.batch_id),
    )


@cache
def as_recorded(record: Record) -> Recorded:
    """The ledger's row of a batch."""
    n = record.text.batch_id
    start = offsets_of(n - 1) if n else None
    return Recorded(n, str(record.run), attempt(record.run, n), start, offsets_of(n), str(record.text))


def ledger_for(state: State, run: int, batch_id: int) -> Ledger:
    """What the ledger says to this run of this batch."""
    if not state.records:
        return Ledger()
    last = len(state.records) - 1
    return Ledger(
        writer=make_writer("q", last, offsets_of(last), run_id=str(state.owner), last=as_recorded(state.records[last])),
        same_id=as_recorded(state.records[batch_id]) if batch_id <= last else None,
        was_owner=run in state.owners,
        skipped_by=attempt(run, batch_id) if (run, batch_id) in state.skips else None,
    )


class Enumeration:
    """Visits every state of a world under one decider, and counts what it saw."""

    def __init__(self, world: World, decider: Decider) -> None:
        self.world = world
        self.decider = decider
        self.verdicts: set[Verdict] = set()
        self.states = 0
        self._ends: dict[State, bool] = {}

    def run(self) -> int:
        """
        Breadth first, from an empty checkpoint and an empty ledger; the number of states.

        :raises Violation: for the first state that breaks a promise.
        """
        world = self.world
        first = State(
            drivers=(OFF,) * world.drivers,
            overwrites=world.overwrites,
            lost_entries=world.lost_entries,
            lost_records=world.lost_records,
        )
        seen = frontier = {first}
        while frontier:
            frontier = {step for state in frontier for step in self._judged_steps(state)} - seen
            seen |= frontier
        self.states = len(seen)
        return self.states

    def _judged_steps(self, state: State) -> Iterator[State]:
        self._refuse_stuck(state)
        for step in self._steps(state):
            yield canonical_form(step)

    def _steps(self, state: State) -> Iterator[State]:
        for run, driver in enumerate(state.drivers):
            if driver.phase == "off":
                yield from self._started(state, run)
            else:
                yield dead(state, run)
                yield from self._goes_on(state, run, driver)
        if state.lost_entries and state.offsets:
            newest = len(state.offsets) - 1
            yield state._replace(
                offsets=trimmed(state.offsets[:-1]),
                committed=min(state.committed, newest - 1),
                lost_entries=state.lost_entries - 1,
            )
        if state.lost_records and state.records:
            kept = state.records[:-1]
            yield state._replace(
                records=kept,
                owner=kept[-1].run if kept else NOBODY,
                owners=frozenset(record.run for record in kept) - {NOBODY},
                skips=frozenset(skip for skip in state.skips if skip[1] < len(kept)),
                lost_records=state.lost_records - 1,
            )

    def _started(self, state: State, run: int) -> Iterator[State]:
        newest = len(state.offsets) - 1
        if newest in (NOBODY, state.committed):
            yield from self._next(state, run, newest + 1, entry(state, newest))
        elif newest == 0 or entry(state, newest - 1):
            yield from self._planned(state, run, newest, state.offsets[newest])

    def _next(self, state: State, run: int, batch_id: int, after: Plan | None) -> Iterator[State]:
        """A driver looks for ``offsets/N``; one that finds it stops ("concurrent update"), as one that crashes does."""
        if batch_id == self.world.batches:
            yield moved(state, run, Driver("ended", batch_id))
        elif entry(state, batch_id) is None:
            yield moved(state, run, Driver("absent", batch_id, after))

    def _planned(self, state: State, run: int, batch_id: int, plan: Plan | None) -> Iterator[State]:
        """The planner's worker looks at the newest entry at once."""
        if not (state.overwrites or state.lost_entries):
            # No file can change any more, so it is all the same when the commit reads them.
            yield moved(state, run, Driver("described", batch_id, plan, plan, entry(state, batch_id - 1)))
        else:
            yield moved(state, run, Driver("running", batch_id, plan, plan))

    def _goes_on(self, state: State, run: int, driver: Driver) -> Iterator[State]:
        phase, n, plan, seen, _ = driver
        if phase == "absent":
            start = plan.end if plan else 0
            # Each planning of a batch takes another number of rows: the worst that can be.
            planning = unused_planning(state, n)
            new = Plan(n, start, start + 1 + planning, planning)
            padded = state.offsets + (None,) * (n + 1 - len(state.offsets))
            left = state.overwrites - (padded[n] is not None)
            if left < 0:
                return
            written = state._replace(offsets=(*padded[:n], new, *padded[n + 1 :]), overwrites=left)
            yield from self._planned(written, run, n, new)
        elif phase == "running":
            # Rewritten or gone: the commit refuses and the driver stops, as one that crashes does.
            if seen and seen.batch_id == n and entry(state, n) == seen:
                yield moved(state, run, driver._replace(phase="described", previous=entry(state, n - 1)))
        elif phase == "described":
            yield from self._committed(state, run, driver)

    def _committed(self, state: State, run: int, driver: Driver) -> Iterator[State]:
        """The commit's transaction; where its answer is lost, the driver stays where it was and asks again."""
        verdict = self._judge(state, run, driver, attempt(run, driver.batch_id))
        plan = driver.plan
        assert plan
        assert driver.seen
        if verdict in PUBLISH:
            if plan.start != state.target_end or plan.batch_id != len(state.records):
                raise Violation(f"{verdict.name}: rows are lost or doubled by {driver} in {state}")
            if run in state.owners and state.owner != run:
                raise Violation(f"{verdict.name}: run {run} lost its writer and publishes again in {state}")
            written = state._replace(
                records=(*state.records, Record(driver.seen, run, plan.start, plan.end)),
                owner=run,
                owners=state.owners | {run},
            )
        elif verdict in SKIP:
            there = state.records[plan.batch_id : plan.batch_id + 1]
            if [record[2:] for record in there] != [plan[1:3]] or there[0].text != driver.seen:
                raise Violation(f"{verdict.name}: {driver} skips rows that are not there in {state}")
            skipped = {(run, plan.batch_id)} if verdict is Verdict.REPLAY else set()
            written = state._replace(skips=state.skips | skipped)
        else:
            self._refuse_unjust(state, run, driver, verdict)
            return
        self._refuse_twin(written, run, driver)
        # The answer is lost; and Spark notes that the batch is done. A crash before that note is one in the first.
        yield written
        noted = written._replace(committed=max(state.committed, plan.batch_id))
        yield from self._next(noted, run, plan.batch_id + 1, plan)

    def _judge(self, state: State, run: int, driver: Driver, token: UUID) -> Verdict:
        ledger = ledger_for(state, run, driver.batch_id)
        verdict = self.decider(ledger, described(driver, run, token), Remedies())
        self.verdicts.add(verdict)
        return verdict

    def _refuse_unjust(self, state: State, run: int, driver: Driver, verdict: Verdict) -> None:
        world = self.world
        if verdict is Verdict.FENCED and (run not in state.owners or state.owner == run):
            raise Violation(f"run {run} is fenced, though nobody took a writer from it, in {state}")
        if world.drivers == 1 and not world.lost_entries and not world.lost_records:
            raise Violation(f"{verdict.name}: a driver that was always alone is refused: {driver} in {state}")
        if any(record.run == run and record.text.batch_id == driver.batch_id for record in state.records) and (
            state.owner == run
        ):
            raise Violation(f"{verdict.name}: run {run} is refused what it has published itself, in {state}")

    def _refuse_twin(self, state: State, run: int, driver: Driver) -> None:
        """A second writer of the same run that shares the sink's name has other rows: it may neither write nor skip."""
        batch_id = driver.batch_id
        if self._judge(state, run, driver, TWIN) in PUBLISH | SKIP:
            raise Violation(f"a second writer of run {run} hands in batch {batch_id} in {state}")

    def _refuse_stuck(self, state: State) -> None:
        """Where the checkpoint is the newest one, a driver that is left alone comes to the end."""
        last = len(state.records) - 1
        is_newest = last == NOBODY or entry(state, last) == state.records[last].text
        if not is_newest or len(state.offsets) - 1 not in (last, last + 1) or state.committed > last:
            return
        # With all drivers dead, the records' runs are nobody's: few states are left, so most answers are known.
        alone = State(
            state.offsets, state.committed, tuple(r._replace(run=NOBODY) for r in state.records), drivers=(OFF,)
        )
        if alone not in self._ends:
            self._ends[alone] = self._comes_to_the_end(alone)
        if not self._ends[alone]:
            raise Violation(f"a driver with the newest checkpoint cannot go on from {state}")

    def _comes_to_the_end(self, state: State) -> bool:
        # It starts, goes the first way that is not a crash, and takes the answered commit: the last of the two.
        steps = list(self._started(state, 0))
        while steps:
            state = steps[-1]
            if state.drivers[0].phase == "ended":
                return len(state.records) == self.world.batches
            steps = list(self._goes_on(state, 0, state.drivers[0]))
        return False


def entry(state: State, batch_id: int) -> Plan | None:
    """The file ``offsets/N``, where there is one."""
    return state.offsets[batch_id] if 0 <= batch_id < len(state.offsets) else None


def trimmed(offsets: tuple[Plan | None, ...]) -> tuple[Plan | None, ...]:
    """Without what is not there at the end."""
    while offsets and offsets[-1] is None:
        offsets = offsets[:-1]
    return offsets


def unused_planning(state: State, batch_id: int) -> int:
    """A number that tells a new planning from all those of this batch that are still known anywhere."""
    known = {plan.planning for plan in plans_of(state) if plan.batch_id == batch_id}
    return next(number for number in range(len(known) + 1) if number not in known)


def plans_of(state: State) -> Iterator[Plan]:
    """Every planning that anybody still knows."""
    yield from filter(None, state.offsets)
    yield from (record.text for record in state.records)
    for driver in state.drivers:
        yield from filter(None, driver[2:])


def moved(state: State, run: int, driver: Driver) -> State:
    """The state with one driver elsewhere."""
    return state._replace(drivers=(*state.drivers[:run], driver, *state.drivers[run + 1 :]))


def dead(state: State, run: int) -> State:
    """The driver is gone, and what the ledger says of its run is from now on said of nobody."""
    return moved(state, run, OFF)._replace(
        records=tuple(record._replace(run=NOBODY) if record.run == run else record for record in state.records),
        owner=NOBODY if state.owner == run else state.owner,
        owners=state.owners - {run},
        skips=frozenset(skip for skip in state.skips if skip[0] != run),
    )


def canonical_form(state: State) -> State:
    """Drivers in an order of their own; and what nobody can look at any more is all the same."""
    everyone = list(range(len(state.drivers)))
    order = sorted(everyone, key=lambda run: _sort_key(state, run))
    if order == everyone:
        return _forgotten(state)
    place = {run: index for index, run in enumerate(order)} | {NOBODY: NOBODY}
    return _forgotten(
        state._replace(
            records=tuple(record._replace(run=place[record.run]) for record in state.records),
            owner=place[state.owner],
            owners=frozenset(place[run] for run in state.owners),
            skips=frozenset((place[run], batch_id) for run, batch_id in state.skips),
            drivers=tuple(state.drivers[run] for run in order),
        )
    )


def _sort_key(state: State, run: int) -> tuple[object, ...]:
    phase, n, *plans = state.drivers[run]
    known = tuple(plan or () for plan in plans)
    mine = tuple(record.text.batch_id for record in state.records if record.run == run)
    return phase, n, known, state.owner == run, run in state.owners, mine


def _forgotten(state: State) -> State:
    numbers = [driver.batch_id for driver in state.drivers if driver.phase not in ("off", "ended")]
    oldest = min([*numbers, len(state.offsets) - 1, len(state.records) - 1])
    cut = oldest - 1 - state.lost_entries - state.lost_records
    # As if every batch before had taken one row.
    moved_by = cut - state.records[cut - 1].end if cut > 0 else 0
    if moved_by == 0 and all(state.offsets[n] == _long_ago(n) for n in range(cut)):
        return state

    def shifted(plan: Plan | None) -> Plan | None:
        if plan is None:
            return None
        if plan.batch_id < cut:
            return _long_ago(plan.batch_id)
        return plan._replace(start=plan.start + moved_by, end=plan.end + moved_by)

    return state._replace(
        offsets=tuple(map(shifted, state.offsets)),
        records=tuple(
            Record(_long_ago(text.batch_id), NOBODY, text.batch_id, text.batch_id + 1)
            if text.batch_id < cut
            else Record(shifted(text) or text, run, start + moved_by, end + moved_by)
            for text, run, start, end in state.records
        ),
        skips=frozenset(skip for skip in state.skips if skip[1] >= cut),
        drivers=tuple(Driver(phase, n, *map(shifted, plans)) for phase, n, *plans in state.drivers),
    )


def _long_ago(batch_id: int) -> Plan:
    return Plan(batch_id, batch_id, batch_id + 1, 0)


ALWAYS = {Verdict.NEW, Verdict.LANDED, Verdict.REPLAY, Verdict.DUPLICATE}
CONTESTED = {*ALWAYS, Verdict.FENCED}
REPLANNED = {*CONTESTED, Verdict.CHANGED, Verdict.DISJOINT}
RESTORED = {Verdict.GAP, Verdict.UNKNOWN}

# Each with the verdicts that must come up there, and a number of states that shows that it was not cut short.
WORLDS = {
    "one driver, and nothing but crashes": (World(1), ALWAYS, 70),
    "one driver, and every accident": (
        World(1, overwrites=1, lost_entries=1, lost_records=1),
        {*ALWAYS, Verdict.CHANGED, Verdict.DISJOINT, *RESTORED},
        1_000,
    ),
    "two drivers, whose renames are not atomic": (World(2, overwrites=2), REPLANNED, 15_000),
    "two drivers, and an older copy of the checkpoint": (World(2, lost_entries=1), REPLANNED, 15_000),
    "two drivers, and an older state of the database": (World(2, lost_records=1), {*CONTESTED, *RESTORED}, 5_000),
    "three drivers": (World(3), CONTESTED, 25_000),
}
if os.environ.get("PGONCE_LONG"):
    WORLDS["three drivers, whose renames are not atomic"] = (World(3, overwrites=1), REPLANNED, 200_000)
    WORLDS["two drivers, and an older checkpoint, not atomic"] = (
        World(2, overwrites=1, lost_entries=1),
        REPLANNED,
        60_000,
    )


@pytest.mark.parametrize(("world", "verdicts", "least_states"), WORLDS.values(), ids=WORLDS)
def test_no_order_of_events_breaks_a_promise(
    world: World, verdicts: set[Verdict], least_states: int, record_property: Callable[[str, object], None]
) -> None:
    """
    Whatever comes in whatever order, rows are neither lost nor doubled, skips are just, and nobody is stuck.

    About 75,000 states; ``PGONCE_LONG=1`` adds 380,000 more, in about a minute.
    """
    enumeration = Enumeration(world, decide)
    record_property("states", enumeration.run())
    assert enumeration.states >= least_states
    assert enumeration.verdicts == verdicts


def by_id_alone(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Takes any batch with a published number for done."""
    done = ledger.writer and batch.batch_id <= ledger.writer.last_batch_id
    return Verdict.REPLAY if done else decide(ledger, batch, remedies)


def by_offsets_alone(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Takes equal offsets for proof, whatever the source."""
    verdict = decide(ledger, batch, remedies)
    equal = ledger.same_id and ledger.same_id.end == batch.end
    return Verdict.REPLAY if verdict is Verdict.CHANGED and equal else verdict


def never_fences(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Lets a run go on whose writer another one took."""
    return decide(replace(ledger, was_owner=False), batch, remedies)


def fences_newcomers(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Takes every run but the owner for one that was the owner."""
    return decide(replace(ledger, was_owner=True), batch, remedies)


def ignores_the_batch_before(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Does not compare the text of ``offsets/N-1``."""
    return decide(ledger, replace(batch, previous_offset_log=None), remedies)


def forgets_its_token(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Does not know its own attempt again when the answer to COMMIT was lost."""
    return decide(ledger, replace(batch, attempt=UUID(int=2**64)), remedies)


def knows_runs_for_tokens(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """Takes whatever this run recorded for this attempt."""
    mine = ledger.same_id and ledger.same_id.run_id == batch.run_id
    return Verdict.LANDED if mine else decide(ledger, batch, remedies)


def says_instead(verdict: Verdict, wrong: Verdict) -> Decider:
    """Gives a wrong verdict in the place of a right one."""

    def decider(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
        """Decides rightly otherwise."""
        right = decide(ledger, batch, remedies)
        return wrong if right is verdict else right

    return decider


BROKEN: dict[str, tuple[Decider, World]] = {
    "goes by the number alone": (by_id_alone, World(2, overwrites=1)),
    "goes by offsets alone": (by_offsets_alone, World(2, overwrites=1)),
    "never fences": (never_fences, World(2)),
    "fences newcomers": (fences_newcomers, World(2)),
    "does not compare the batch before": (ignores_the_batch_before, World(2, overwrites=1)),
    "publishes whatever comes after the last batch": (says_instead(Verdict.GAP, Verdict.NEW), World(1, lost_records=2)),
    "publishes batches of a query that it does not know": (
        says_instead(Verdict.UNKNOWN, Verdict.NEW),
        World(1, lost_records=2),
    ),
    "forgets its token": (forgets_its_token, World(1)),
    "takes runs for tokens": (knows_runs_for_tokens, World(1)),
    "lets a run hand in a batch twice": (says_instead(Verdict.DUPLICATE, Verdict.REPLAY), World(1)),
    "lets no restart past a batch that is done": (says_instead(Verdict.REPLAY, Verdict.CHANGED), World(1)),
}


@pytest.mark.parametrize(("decider", "world"), BROKEN.values(), ids=BROKEN)
def test_a_broken_decision_is_found(decider: Decider, world: World) -> None:
    """The enumeration can fail: each rule that is taken away leads some order of events astray."""
    with pytest.raises(Violation):
        Enumeration(world, decider).run()
