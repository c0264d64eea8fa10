"""
One table that micro-batches write, then real time, then micro-batches again, in every order of events.

Pure, and runs in the tests of ``tests/real_time``. There is one Kafka partition. Micro-batches have a writer of their
own before and after, and their batches are planned and committed at different times, so that each driver may wake up
late. Invariant: the table has the first rows of the log, each once, and all below whatever position counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from support.real_time.exploring import Label, Violation, explore, sentence
from support.real_time.rules import Database, Flush, Position, Rules, drawn, flushed

BEFORE, AFTER = 0, 1
NO_RUN = -1
RULES = Rules()


@dataclass(frozen=True)
class Handover:
    """The rules of going over from one way to the other; each can be turned off."""

    replaces_micro_batches: bool = True
    """The draw ends the writer of micro-batches, in its own transaction."""
    reads_under_lock: bool = True
    """The draw reads the stored positions in the transaction that ends their writer."""
    closes_positions: bool = True
    """Batch 0 takes the positions from the run in real time, in its own transaction."""
    locks_positions: bool = True
    """Batch 0 locks the positions when it reads them; the lock on the writer's row alone does not stop a flush."""
    drops_below: bool = True
    """Batch 0 drops what was stored since it was planned."""
    refuses_above: bool = True
    """A batch that begins above what is stored is refused."""


class Writer(NamedTuple):
    """A writer of micro-batches, as the ledger knows it: the position below which rows are stored."""

    stored: int = 0
    is_known: bool = False
    is_replaced: bool = False


class Stored(NamedTuple):
    """What one database has, and what goes back together in a restore."""

    real_time: Database
    writers: tuple[Writer, Writer]
    real_time_is_known: bool = False
    real_time_is_replaced: bool = False


class Driver(NamedTuple):
    """
    A driver of micro-batches, ``BEFORE`` or ``AFTER``: what it has planned, from and to.

    ``found`` is the position that its transaction has read, without a lock on it.
    """

    which: int
    plan: tuple[int, int] | None = None
    found: int | None = None


class State(NamedTuple):
    """All there is; ``at`` is the position that the task in real time goes on from."""

    stored: Stored
    drivers: tuple[Driver, ...] = (Driver(BEFORE),)
    run: int = 0
    at: int = 0
    found: int | None = None
    backup: Stored | None = None
    restores: int = 0


Step = tuple[Label, State]


class Switching:
    """Visits every state; ``heard`` is what it came across."""

    def __init__(self, records: int, rules: Handover, restores: int = 0) -> None:
        self.records = records
        self.rules = rules
        self.restores = restores
        self.heard: set[str] = set()

    def run(self) -> int:
        """:raises Violation: with the trace to the first state that breaks a promise."""
        nothing = Stored(Database(0, 0, 0, (Position(),), ((),)), (Writer(is_known=True), Writer()))
        return len(explore(State(nothing, restores=self.restores), self._inspected))

    def _inspected(self, state: State) -> Iterator[Step]:
        for label, after in self._steps(state):
            table = [offset for offset, _ in after.stored.real_time.tables[0]]
            if table != list(range(len(table))):
                raise Violation(f"{sentence(label)}: the table has records {table}")
            if len(table) == self.records and after.stored.writers[AFTER].is_known:
                self.heard.add("all is stored")
            yield label, after

    def _steps(self, state: State) -> Iterator[Step]:
        for driver in state.drivers:
            yield from self._planned(state, driver)
            yield from self._committed(state, driver)
        yield from self._started_in_real_time(state)
        yield from self._flushed(state)
        if state.stored.real_time_is_known and len(state.drivers) == 1:
            yield ("a driver of micro-batches starts",), state._replace(drivers=(*state.drivers, Driver(AFTER)))
        if state.restores and state.backup is None:
            yield ("the database is backed up",), state._replace(backup=state.stored)
        if state.backup not in (None, state.stored):
            assert state.backup
            yield ("the database goes back",), state._replace(stored=state.backup, backup=None, restores=0)

    # Micro-batches ----------------------------------------------------------------------------------------------------

    def _planned(self, state: State, driver: Driver) -> Iterator[Step]:
        if driver.plan is not None:
            return
        writer = state.stored.writers[driver.which]
        start = writer.stored if writer.is_known else state.stored.real_time.positions[0].offset or 0
        for end in range(start + 1, self.records + 1):
            planned = driver._replace(plan=(start, end))
            yield ("a batch is planned from", start, "to", end), _exchanged(state, driver, planned)

    def _committed(self, state: State, driver: Driver) -> Iterator[Step]:
        """One transaction: rows past what is stored, and the writer's position."""
        if driver.plan is None:
            return
        (start, end), stored, rules = driver.plan, state.stored, self.rules
        writer = stored.writers[driver.which]
        below, database, replaced = writer.stored, stored.real_time, stored.real_time_is_replaced
        is_first = not writer.is_known
        if writer.is_replaced:
            self.heard.add("FENCED")
            return
        if is_first:
            if not stored.real_time_is_known or replaced:
                self.heard.add("UNKNOWN")
                return
            below, replaced = database.positions[0].offset or 0, True
            if not rules.locks_positions and driver.found is None:
                label = ("a transaction reads position", below)
                yield label, _exchanged(state, driver, driver._replace(found=below))
                return
            below = below if rules.locks_positions else driver.found or 0
            if rules.closes_positions:
                database = database._replace(run=NO_RUN)
        if start > below and rules.refuses_above:
            self.heard.add("DISJOINT")
            return
        begin = max(start, below) if rules.drops_below else start
        rows = tuple((offset, 0) for offset in range(begin, end))
        database = database._replace(tables=((*database.tables[0], *rows),))
        writers = list(stored.writers)
        writers[driver.which] = Writer(max(end, below), is_known=True)
        after = Stored(database, (writers[0], writers[1]), stored.real_time_is_known, replaced)
        ahead = driver._replace(plan=(end, end + 1) if end < self.records else None, found=None)
        yield (
            ("the batch from", start, "to", end, "is committed"),
            _exchanged(state, driver, ahead)._replace(stored=after),
        )
        # Its driver dies before it knows; the next one plans from what is stored.
        yield (
            ("the batch from", start, "to", end, "is committed, and its driver starts again"),
            _exchanged(state, driver, driver._replace(plan=None, found=None))._replace(stored=after),
        )

    # Real time --------------------------------------------------------------------------------------------------------

    def _started_in_real_time(self, state: State) -> Iterator[Step]:
        rules, stored = self.rules, state.stored
        if state.run == 2 or stored.real_time_is_replaced:
            return
        before = stored.writers[BEFORE]
        begins = stored.real_time.positions[0].offset or 0
        if not stored.real_time_is_known:
            if not rules.reads_under_lock and state.found is None:
                yield ("a start reads position", before.stored), state._replace(found=before.stored)
                return
            begins = before.stored if rules.reads_under_lock else state.found or 0
            before = before._replace(is_replaced=rules.replaces_micro_batches)
        positions = (Position(begins),)
        database = drawn(stored.real_time, state.run + 1)._replace(positions=positions)
        after = stored._replace(real_time=database, writers=(before, stored.writers[AFTER]), real_time_is_known=True)
        yield ("run", state.run + 1, "starts at", begins), state._replace(stored=after, run=state.run + 1, at=begins)

    def _flushed(self, state: State) -> Iterator[Step]:
        """The newest task in real time, which may also be a zombie: it lives until it is refused."""
        for to in range(state.at + 1, self.records + 1) if state.run else ():
            rows = tuple((offset, 0) for offset in range(state.at, to))
            flush = Flush(state.run, state.stored.real_time.number, 0, 0, 0, state.at, to, rows)
            database = flushed(state.stored.real_time, flush, RULES)
            if database is not None:
                yield (flush, "is stored"), state._replace(stored=state.stored._replace(real_time=database), at=to)
            else:
                self.heard.add("flush refused")


def _exchanged(state: State, old: Driver, new: Driver) -> State:
    return state._replace(drivers=tuple(new if driver is old else driver for driver in state.drivers))
