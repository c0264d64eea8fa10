"""
No order of events in a small world of real time loses a row, doubles one, or drops one in silence.

Runs in: pytest, without I/O. What must hold is said in ``enumeration.py`` and ``switching.py`` of
``tests/support/real_time``. Each rule of docs/adr/0046-real-time.md is taken away once, and then a world is found to
break: pytest's ``-s`` shows how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from support.real_time.enumeration import Enumeration
from support.real_time.exploring import Violation
from support.real_time.rules import Rules
from support.real_time.switching import Handover, Switching
from support.real_time.worlds import Accidents, World, expected

ALL = Rules()
SHUFFLED = Rules(one_task_a_partition=False)
STORED = "all is stored"
MOVED = {STORED, "moved", "not moved"}

# Records become 0, 1 or 2 rows. Each world has what must come up there, and a number of states that shows that it was
# not cut short.
WORLDS: dict[str, tuple[World, set[str], int]] = {
    "lost answers": (World(((1, 0, 2),), Accidents(lost_answers=2)), {STORED}, 2_000),
    "a task that fails": (World(((1, 0, 2),), Accidents(failed_tasks=1, lost_answers=1)), {STORED}, 5_000),
    "two drivers": (World(((1, 2),), Accidents(lost_answers=1), together=True), {STORED, "FENCED"}, 1_000),
    "two partitions": (World(((1, 0, 1), (2,)), Accidents(failed_tasks=1)), {STORED}, 5_000),
    "two partitions, restored": (World(((1, 0), (1,)), Accidents(restores=1)), {*MOVED, "FENCED"}, 3_000),
    "two partitions and drivers": (
        World(((1,), (2,)), Accidents(lost_answers=1), together=True),
        {STORED, "FENCED"},
        2_000,
    ),
    "restored, and a task fails": (
        World(((1, 1),), Accidents(restores=1, failed_tasks=1)),
        {STORED, "FENCED", "RESTORED"},
        8_000,
    ),
    "restored, and an answer is lost": (
        World(((1, 1),), Accidents(restores=1, lost_answers=1)),
        {STORED, "FENCED", "RESTORED"},
        5_000,
    ),
    "restored, with two drivers": (
        World(((1, 1),), Accidents(restores=1), together=True),
        {STORED, "FENCED", "RESTORED"},
        2_000,
    ),
    "continuous": (
        World(((1, 0, 2, 1),), Accidents(lost_answers=1), together=True, continuous=True),
        {STORED, "FENCED"},
        2_000,
    ),
    "continuous, restored": (
        World(((1, 0, 2, 1),), Accidents(restores=1), continuous=True),
        {STORED, "FENCED", "RESTORED"},
        2_000,
    ),
    "continuous, and planned again": (
        World(((1, 0, 2),), Accidents(plans=1, lost_answers=1), continuous=True),
        {STORED, "UNPROVEN", "RESTORED"},
        2_000,
    ),
    "continuous, planned again, and restored": (
        World(((1, 0, 1),), Accidents(plans=1, restores=1), continuous=True),
        {STORED, "UNPROVEN", "FENCED", "RESTORED"},
        2_000,
    ),
    "continuous, planned again, with all rows": (
        World(((1, 2, 1),), Accidents(plans=1), continuous=True),
        {STORED, "RESTORED", "UNPROVEN"},
        50,
    ),
    "retention": (World(((1, 0, 1, 0),), Accidents(deletions=3)), {*MOVED, "DATA_LOST"}, 1_000),
    "retention, restored": (
        World(((1, 0, 1),), Accidents(deletions=2, restores=1)),
        {*MOVED, "DATA_LOST", "FENCED", "RESTORED"},
        8_000,
    ),
    "the topic is another one": (
        World(((1, 0, 1),), Accidents(recreations=1, failed_tasks=1)),
        {STORED, "RECREATED"},
        1_000,
    ),
    "started at latest": (World(((1, 1, 0, 1),), Accidents(failed_tasks=1), latest=True), {STORED}, 2_000),
}
LARGER_WORLDS: dict[str, tuple[World, set[str], int]] = {
    "two partitions of four records": (
        World(((1, 0, 2, 1), (1, 2, 0, 1)), Accidents(failed_tasks=1)),
        {STORED},
        100_000,
    ),
    "restored, with filtered records and an answer that is lost": (
        World(((1, 0, 1),), Accidents(restores=1, lost_answers=1)),
        {*MOVED, "FENCED", "RESTORED"},
        20_000,
    ),
    "restored, with three drivers": (
        World(((1, 1),), Accidents(restores=1), together=True, runs=3),
        {STORED, "FENCED", "RESTORED"},
        15_000,
    ),
    "every accident": (
        World(((1, 2),), Accidents(failed_tasks=1, lost_answers=1, restores=1)),
        {STORED, "FENCED", "RESTORED"},
        50_000,
    ),
    "two zombies and three drivers": (
        World(((1, 2, 1),), Accidents(failed_tasks=1, lost_answers=1), runs=3, zombies=2, together=True),
        {STORED, "FENCED"},
        50_000,
    ),
}


def enumerated(world: World, rules: Rules, record: Callable[[str, object], None]) -> Enumeration:
    """The enumeration, which has found nothing wrong."""
    enumeration = Enumeration(world, rules)
    record("states", enumeration.run())
    return enumeration


@pytest.mark.parametrize(("world", "heard", "least_states"), WORLDS.values(), ids=WORLDS)
def test_no_order_of_events_breaks_a_promise(
    world: World, heard: set[str], least_states: int, record_property: Callable[[str, object], None]
) -> None:
    """Whatever comes in whatever order, each row is stored once and in order, and each refusal has its reason."""
    enumeration = enumerated(world, ALL, record_property)
    assert enumeration.heard == heard
    assert len(enumeration.visited) >= least_states


@pytest.mark.parametrize(("world", "heard", "least_states"), LARGER_WORLDS.values(), ids=LARGER_WORLDS)
def test_no_order_of_events_in_a_larger_world(
    world: World, heard: set[str], least_states: int, record_property: Callable[[str, object], None]
) -> None:
    """The same, with more of everything at a time."""
    test_no_order_of_events_breaks_a_promise(world, heard, least_states, record_property)


TWO = ((1, 1),)
THREE = ((1, 1, 1),)
TWICE, LOST, NOT_FIRST = "is stored twice", "is lost", "are not the first ones of its log"
# By the number of the rule in the record of the decision.
BROKEN: dict[str, tuple[Rules, World, str]] = {
    "1, goes on with a checkpoint": (Rules(starts_at_positions=False), World(TWO, Accidents(restores=1)), NOT_FIRST),
    "1, asks for latest again": (Rules(stores_first_start=False), World(THREE, latest=True), NOT_FIRST),
    "2, rows and position apart": (Rules(one_transaction=False), World(TWO), TWICE),
    "2, does not compare the position": (Rules(compares_position=False), World(TWO, Accidents(failed_tasks=1)), TWICE),
    "2, flushes a part of a record": (Rules(whole_records=False), World(((2,),)), LOST),
    "3, lets a shuffle through": (SHUFFLED, World(THREE, shuffled=((0, 2), (1,))), LOST),
    "3, and without claims": (replace(SHUFFLED, claims=False), World(THREE, shuffled=((0, 2), (1,)), runs=1), LOST),
    "3, and in any order": (replace(SHUFFLED, rising=False), World(TWO, shuffled=((1, 0), ()), runs=1), LOST),
    "4, lets older runs write": (Rules(newest_run=False), World(TWO), "though run 2 is newer"),
    "4, knows runs by their numbers": (
        Rules(random_run_id=False),
        World(TWO, Accidents(restores=1), together=True),
        "though run 2 is newer",
    ),
    "5, trusts the position that it finds": (
        Rules(knows=False, moves_over_filtered="never"),
        World(TWO, Accidents(restores=1)),
        NOT_FIRST,
    ),
    "5, remembers in the executor alone": (
        Rules(tasks_report=False, moves_over_filtered="never"),
        World(TWO, Accidents(restores=1)),
        NOT_FIRST,
    ),
    "5, remembers nothing when it is planned again": (
        Rules(remembers=False),
        World(THREE, Accidents(restores=1, plans=1), continuous=True),
        NOT_FIRST,
    ),
    "5, goes on in another process": (
        Rules(proves=False),
        World(THREE, Accidents(restores=1, plans=1), continuous=True),
        NOT_FIRST,
    ),
    "5, forgets what is being written when it is planned again": (
        Rules(promises=False),
        World(THREE, Accidents(plans=1), continuous=True),
        NOT_FIRST,
    ),
    "6, closes without a flush": (Rules(close_flushes=False), World(TWO), NOT_FIRST),
    "6, gives rows up": (Rules(fails_in_the_end=False), World(TWO, Accidents(outages=1)), NOT_FIRST),
    "6, lets Kafka skip records": (Rules(fails_on_data_loss=False), World(TWO, Accidents(deletions=1)), NOT_FIRST),
    "6, does not look at the topic": (
        Rules(compares_topic=False),
        World(TWO, Accidents(recreations=1)),
        "the positions of a topic that was deleted",
    ),
    "7, stays behind filtered records": (
        Rules(moves_over_filtered="never"),
        World(((1, 0),), Accidents(deletions=2)),
        "records are deleted that were read",
    ),
    "7, moves blindly": (Rules(moves_over_filtered="blindly"), World(((1, 1, 0),), Accidents(restores=1)), LOST),
    "7, moves blindly in continuous mode": (
        Rules(moves_over_filtered="blindly"),
        World(((1, 1, 0),), Accidents(restores=1), continuous=True),
        LOST,
    ),
    "7, moves in continuous mode from where the run began": (
        Rules(moves_over_filtered="from the start"),
        World(((1, 1, 0),), Accidents(restores=1), continuous=True),
        LOST,
    ),
    "8, takes rows without a position": (Rules(rows_have_positions=False), World(TWO), TWICE),
}


@pytest.mark.parametrize(("rules", "world", "what"), BROKEN.values(), ids=BROKEN)
def test_a_rule_that_is_taken_away_is_missed(rules: Rules, world: World, what: str) -> None:
    """Without the rule, few events lead astray; with it, the same world is all right."""
    with pytest.raises(Violation) as broken:
        Enumeration(world, rules).run()
    *trace, last = str(broken.value).splitlines()
    print(broken.value)
    assert what in last
    assert len(trace) <= 8
    if not world.shuffled:
        Enumeration(world, ALL).run()


class TestShuffles:
    """A shuffle that slipped through is noticed, but only the list of plans prevents it."""

    @pytest.mark.parametrize("shuffled", [((0, 2), (1,)), ((0,), (1, 2)), ((1,), (0, 2))])
    def test_a_second_claimant_is_never_silent(self, shuffled: tuple[tuple[int, ...], ...]) -> None:
        """If the driver lives on, Spark commits nothing over a lost row, and the partition is marked for the next."""
        enumeration = Enumeration(World(THREE, shuffled=shuffled, runs=1), SHUFFLED)
        enumeration.run()
        assert "DISPUTED" in enumeration.heard

    @pytest.mark.parametrize("shuffled", [((1, 0), ()), ((0, 2, 1), ())])
    def test_an_offset_that_goes_back_is_never_silent(self, shuffled: tuple[tuple[int, ...], ...]) -> None:
        """The same where one task has all rows, in another order."""
        enumeration = Enumeration(World(THREE, shuffled=shuffled, runs=1), SHUFFLED)
        enumeration.run()
        assert enumeration.heard >= {"OUT_OF_ORDER"}

    def test_a_driver_that_is_killed_before_the_second_claim_leaves_no_mark(self) -> None:
        """So a claim is no protection: this is why plans with an exchange are refused before the start."""
        with pytest.raises(Violation, match="is killed\n=> .* is lost"):
            Enumeration(World(THREE, shuffled=((0, 2), (1,))), SHUFFLED).run()


class TestCheckpoints:
    """A checkpoint that is kept is right as long as it is not above the positions."""

    def test_without_a_restore_a_kept_checkpoint_is_right(self) -> None:
        """Spark reads again what it has not committed, and what is stored is dropped."""
        world = World(((1, 0, 2),), Accidents(failed_tasks=1))
        enumeration = Enumeration(world, Rules(starts_at_positions=False))
        enumeration.run()
        assert enumeration.heard == {STORED}

    def test_a_kept_checkpoint_above_a_position_is_refused(self) -> None:
        """That is enough where the database may go back, and it also refuses what a new checkpoint would not."""
        world = World(((1, 0, 1),), Accidents(restores=1))
        enumeration = Enumeration(world, Rules(starts_at_positions=False, compares_checkpoint=True))
        enumeration.run()
        assert enumeration.heard == {*MOVED, "FENCED", "RESTORED", "CHECKPOINT_IN_USE"}


def test_a_reader_sees_whole_records_and_parts_of_batches() -> None:
    """Rule 9: a flush is the unit, not a batch."""
    world = World(((1, 2, 0, 2),))
    enumeration = Enumeration(world, ALL)
    enumeration.run()
    first = next(iter(enumeration.visited))
    rows = expected(world, first, 0)
    before_any_batch = {len(state.database.tables[0]) for state in enumeration.visited if not state.committed}
    assert before_any_batch == {0, 1, 3, 5}
    assert len(rows) == 5


def test_a_key_that_comes_from_two_partitions_has_no_one_value() -> None:
    """Rule 8: partitions have no order among them, so the last change of such a key may be either one's."""

    def values(changes: list[tuple[int, str]]) -> set[str]:
        orders = [order for order in permutations(changes) if all_in_order(order)]
        return {order[-1][1] for order in orders}

    def all_in_order(order: tuple[tuple[int, str], ...]) -> bool:
        return all([v for p, v in order if p == one] == sorted(v for p, v in order if p == one) for one in (0, 1))

    assert values([(0, "a1"), (0, "a2"), (0, "a3")]) == {"a3"}
    assert values([(0, "a1"), (0, "a2"), (1, "b1")]) == {"a2", "b1"}


HANDED_OVER = {STORED, "FENCED", "flush refused"}


class TestSwitching:
    """From micro-batches by position to real time and back."""

    @pytest.mark.parametrize(
        ("records", "restores", "heard"),
        [(4, 0, HANDED_OVER), (3, 1, {*HANDED_OVER, "DISJOINT", "UNKNOWN"})],
        ids=["driven by several", "restored"],
    )
    def test_no_order_of_events_breaks_a_promise(self, records: int, restores: int, heard: set[str]) -> None:
        """Drivers that wake up late, of either way, store nothing twice and leave nothing out."""
        switching = Switching(records, Handover(), restores)
        assert switching.run() > 2_000
        assert switching.heard == heard

    @pytest.mark.parametrize(
        ("rules", "restores"),
        [
            (Handover(replaces_micro_batches=False), 0),
            (Handover(reads_under_lock=False), 0),
            (Handover(closes_positions=False), 0),
            (Handover(locks_positions=False), 0),
            (Handover(drops_below=False), 0),
            (Handover(refuses_above=False), 1),
        ],
        ids=[
            "replaces",
            "reads under the lock",
            "closes the positions",
            "locks the positions",
            "drops below",
            "refuses above",
        ],
    )
    def test_a_rule_that_is_taken_away_is_missed(self, rules: Handover, restores: int) -> None:
        """Each step of going over is needed."""
        with pytest.raises(Violation, match="the table has records") as broken:
            Switching(3, rules, restores).run()
        print(broken.value)
