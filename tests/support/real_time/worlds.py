"""
What a small world of real time consists of: a log, a database, runs with their tasks, and accidents.

Pure, and runs in the tests of ``tests/real_time``. Invariant: a state is a value that can be looked up, and two states
from which the same can happen are equal as far as that is cheap to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from support.real_time.exploring import Violation
from support.real_time.rules import Database, Flush, Place, Position


class Accidents(NamedTuple):
    """How often each may still happen; a driver may be killed as often as there are runs to follow."""

    failed_tasks: int = 0
    lost_answers: int = 0
    restores: int = 0
    outages: int = 0
    deletions: int = 0
    recreations: int = 0
    plans: int = 0
    """How often a topic gets a partition, so that Spark plans a continuous query again."""


NO_ACCIDENTS = Accidents()


@dataclass(frozen=True)
class World:
    """
    What there is to read, and what may happen.

    ``records`` has for each partition the number of rows that its records become: 0 is filtered out, 2 is exploded.
    """

    records: tuple[tuple[int, ...], ...]
    accidents: Accidents = NO_ACCIDENTS
    runs: int = 2
    batches: int = 2
    """How many batches Spark commits, in all runs together."""
    zombies: int = 1
    """How many may live on at a time."""
    together: bool = False
    """Whether a driver may start while another one lives."""
    continuous: bool = False
    latest: bool = False
    """Whether the first start is at *latest*, when one record is there."""
    shuffled: tuple[tuple[int, ...], ...] = ()
    """The offsets of partition 0 that reach each of two tasks, in this order."""


class Task(NamedTuple):
    """
    A task of one partition, which reads from ``begin`` on.

    It has ``sent`` so many of the records that reach it, and so many rows of the next one. ``at`` is the position that
    it goes on from, None if it knows none; ``asks`` is set while it does not know what became of its flush.
    ``is_stranger`` if earlier tasks of its partition ran in another process, and it has not claimed it yet. Before
    record ``promised``, Spark takes everything for done.
    """

    index: int
    begin: int
    at: int | None
    sent: tuple[int, int] = (0, 0)
    asks: bool = False
    is_stranger: bool = False
    promised: int = 0


class Run(NamedTuple):
    """
    A driver and its tasks; or, if it is a zombie, one task that Spark has given up or whose driver is dead.

    ``known`` are the positions that the driver hands to new tasks; ``moves`` are those that it still has to move over
    filtered records, from and to. ``ends`` is where its last epoch ended that Spark has committed, if the query may be
    planned again.
    """

    run: int
    number: int
    topic: int
    epoch: int
    known: tuple[int | None, ...]
    tasks: tuple[Task, ...]
    moves: tuple[tuple[int, int] | None, ...] = ()
    ends: tuple[int, ...] | None = None


class State(NamedTuple):
    """
    All there is.

    ``checkpoint`` is where the last batch ended that Spark has committed; ``unmoved`` is set if a driver died before it
    had moved its positions; ``first`` is where the first start began.
    """

    database: Database
    accidents: Accidents
    produced: tuple[int, ...]
    earliest: tuple[int, ...]
    first: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    zombies: tuple[Run, ...] = ()
    on_the_way: tuple[Flush, ...] = ()
    started: int = 0
    committed: int = 0
    checkpoint: tuple[int, ...] | None = None
    backup: Database | None = None
    topic: int = 0
    unmoved: bool = False


def first_state(world: World) -> State:
    """An empty table, and no run yet."""
    count = len(world.records)
    nothing = Position(None) if world.latest else Position()
    return State(
        Database(0, 0, 0, (nothing,) * count, ((),) * count),
        world.accidents,
        produced=tuple(1 if world.latest else len(log) for log in world.records),
        earliest=(0,) * count,
        first=(0,) * count,
    )


def expected(world: World, state: State, partition: int) -> list[Place]:
    """The rows that the table has of a partition once all of it is stored."""
    log = world.records[partition]
    return [(offset, row) for offset in range(state.first[partition], len(log)) for row in range(log[offset])]


def inspect(world: World, state: State) -> None:
    """
    Compare the tables with the logs.

    :raises Violation: if rows are stored twice or out of order, or are missing below the position.
    """
    for partition, table in enumerate(state.database.tables):
        if len(set(table)) < len(table):
            raise Violation(f"a row of partition {partition} is stored twice: {named(table)}")
        if not world.shuffled and list(table) != expected(world, state, partition)[: len(table)]:
            raise Violation(f"the rows of partition {partition} are not the first ones of its log: {named(table)}")
    if not world.shuffled:
        refuse_lost(world, state)


def refuse_lost(world: World, state: State) -> None:
    """:raises Violation: if a row below a position is not stored, and the position is not marked as disputed."""
    for partition, position in enumerate(state.database.positions):
        stored = set(state.database.tables[partition])
        lost = [
            row
            for row in expected(world, state, partition)
            if row[0] < (position.offset or 0) and row not in stored and position.disputed_from is None
        ]
        if lost:
            raise Violation(f"the position of partition {partition} is {position.offset}, and {named(lost)} is lost")


def is_all_stored(world: World, state: State) -> bool:
    """Whether nothing is left to do."""
    return all(list(table) == expected(world, state, p) for p, table in enumerate(state.database.tables))


def named(rows: list[Place] | tuple[Place, ...]) -> str:
    """Rows by the offsets of their records; the second row of record 1 is 1.1."""
    return "row " + ", ".join(f"{offset}.{row}" if row else str(offset) for offset, row in rows)


def put(values: tuple[Any, ...], place: int, value: object) -> tuple[Any, ...]:
    """The tuple with another value at one place."""
    return (*values[:place], value, *values[place + 1 :])


def without(values: tuple[Any, ...], one: object) -> tuple[Any, ...]:
    """The tuple without one of its values."""
    place = values.index(one)
    return (*values[:place], *values[place + 1 :])
