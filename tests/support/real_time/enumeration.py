"""
Go through every order of events of a small world, breadth first.

Pure, and runs in the tests of ``tests/real_time``. Invariants, looked at in every state: the rows of a partition are
the first rows of its log, each once and in order, and all that are below the position; only the newest run writes; a
row that is dropped is stored; and a query fails only where it has to.

Three things keep the worlds small. How much of its partition a task has read counts only when it flushes or closes: so
reading is not an event of its own, and a flush takes as many records as it likes. Tasks close in the moment in which
Spark commits their batch. And what can never be accepted again, by the rules that are in force, is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from support.real_time.exploring import Label, Violation, explore, sentence
from support.real_time.rules import (
    REFUSALS,
    Answer,
    Database,
    Flush,
    Place,
    Rules,
    drawn,
    flushed,
    is_newest,
    looked,
    marked,
    moved_over_filtered,
)
from support.real_time.worlds import (
    Run,
    State,
    Task,
    World,
    expected,
    first_state,
    inspect,
    is_all_stored,
    named,
    put,
    refuse_lost,
    without,
)

Step = tuple[Label, State]
Ahead = tuple[tuple[int, int], tuple[Place, ...]]
"""How far a task may have read, as ``Task.sent`` counts it, and the rows that it has not sent yet."""
Try = tuple[Label, State, Task, Answer | None]
"""What a task has tried: what it was, what there is afterwards, the task, and what stops it."""


class Enumeration:
    """Visits every state of a world under some rules; ``heard`` is what it came across on the way."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world = world
        self.rules = rules
        self.heard: set[str] = set()
        self.visited: set[State] = set()
        self._read: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self._aheads: dict[object, list[Ahead]] = {}
        self._readers = [(partition, tuple(range(len(log)))) for partition, log in enumerate(world.records)]
        if not rules.one_task_a_partition:
            self._readers = [(0, offsets) for offsets in world.shuffled]
        # Positions are moved over filtered records where that can matter, and checkpoints are remembered.
        self._moves = rules.moves_over_filtered != "never" and world.accidents.deletions + world.accidents.restores > 0
        self._keeps_checkpoint = not rules.starts_at_positions or world.accidents.deletions > 0

    def run(self) -> int:
        """
        Visit all states, so that a trace is a shortest one; how many there are.

        :raises Violation: with the trace to the first state that breaks a promise.
        """
        self.visited = explore(first_state(self.world), self._inspected_steps)
        return len(self.visited)

    def _inspected_steps(self, state: State) -> Iterator[Step]:
        for label, step in self._steps(state):
            after = self._without_what_is_over(step)
            if after.database != state.database:
                self._inspect(after, label)
            yield label, after

    def _inspect(self, state: State, label: Label) -> None:
        try:
            inspect(self.world, state)
        except Violation as violation:
            raise Violation(f"{sentence(label)}: {violation}") from None
        if is_all_stored(self.world, state):
            self.heard.add("all is stored")

    def _without_what_is_over(self, state: State) -> State:
        """Without statements and zombies that cannot write any more, now or after a restore."""
        if state.zombies:
            left = {z for z in state.zombies if self._may_write(state, z.run, z.number) and self._has_more(state, z)}
            state = state._replace(zombies=tuple(sorted(left, key=repr)))
        if state.on_the_way:
            state = state._replace(on_the_way=tuple(f for f in state.on_the_way if self._may_land(state, f)))
        if state.backup is not None and not state.accidents.restores:
            state = state._replace(backup=None)
        return state

    def _may_write(self, state: State, run: int, number: int) -> bool:
        databases = [state.database] if state.backup is None else [state.database, state.backup]
        return any(is_newest(database, run, number, self.rules) for database in databases)

    def _may_land(self, state: State, flush: Flush) -> bool:
        """Positions only grow, but for a restore."""
        if not self._may_write(state, flush.run, flush.number):
            return False
        offset = state.database.positions[flush.partition].offset or 0
        compares = self.rules.compares_position and self.rules.rows_have_positions
        return not compares or offset <= flush.start or state.accidents.restores > 0

    # Accidents --------------------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[Step]:
        for run in state.runs:
            for task in run.tasks:
                yield from self._of_task(state, run, task)
            if state.committed < self.world.batches:
                yield from self._committed_by_spark(state, run)
            yield from self._moved_by_driver(state, run)
            if state.accidents.plans:
                yield from self._planned_again(state, run)
            if state.started < self.world.runs:
                yield from self._dead(state, run, (f"the driver of run {run.run} is killed",))
        for zombie in state.zombies:
            for label, after, task, answer in self._tried(state, zombie, zombie.tasks[0]):
                left = without(state.zombies, zombie)
                lives = (zombie._replace(tasks=(task,)),) if answer is None else ()
                yield ("a zombie wakes:", *label), after._replace(zombies=(*left, *lives))
        for flush in state.on_the_way:
            after = self._stored(state, flush)
            if after is not None:
                rest = without(state.on_the_way, flush)
                yield (flush, "arrives late, and is stored"), state._replace(database=after, on_the_way=rest)
        if state.started < self.world.runs and (self.world.together or not state.runs):
            yield from self._started(state)
        yield from self._of_world(state)

    def _of_world(self, state: State) -> Iterator[Step]:
        left = state.accidents
        if left.restores and state.backup is None:
            yield ("the database is backed up",), state._replace(backup=state.database)
        if left.restores and state.backup is not None and state.backup != state.database:
            less = left._replace(restores=left.restores - 1)
            offsets = [position.offset for position in state.backup.positions]
            restored = state._replace(database=state.backup, backup=None, accidents=less)
            yield ("the database goes back, to positions", offsets), restored
        if left.deletions:
            less = left._replace(deletions=left.deletions - 1)
            for partition, offset in enumerate(state.earliest):
                if offset < len(self.world.records[partition]):
                    deleted = state._replace(earliest=put(state.earliest, partition, offset + 1), accidents=less)
                    yield ("Kafka deletes record", offset, "of partition", partition), deleted
        if left.recreations:
            less = left._replace(recreations=left.recreations - 1)
            yield ("the topic is deleted and made again",), state._replace(topic=1, accidents=less)
        for partition, produced in enumerate(state.produced):
            if produced < len(self.world.records[partition]):
                more = state._replace(produced=put(state.produced, partition, produced + 1))
                yield ("record", produced, "of partition", partition, "is produced"), more

    # A driver ---------------------------------------------------------------------------------------------------------

    def _started(self, state: State) -> Iterator[Step]:
        """The draw, one transaction; a start that is refused leaves nothing behind."""
        rules, run = self.rules, state.started + 1
        database, first = drawn(state.database, run), state.first
        if state.topic != database.topic:
            if not rules.compares_topic:
                raise Violation("a run starts at the positions of a topic that was deleted")
            self.heard.add("RECREATED")
            return
        if any(position.disputed_from is not None for position in database.positions):
            self.heard.add("DISPUTED")
            return
        offsets = tuple(
            produced if position.offset is None else position.offset
            for position, produced in zip(database.positions, state.produced, strict=True)
        )
        if self.world.latest and not state.started:
            first = offsets
        if rules.stores_first_start:
            found = zip(database.positions, offsets, strict=True)
            database = database._replace(positions=tuple(row._replace(offset=offset) for row, offset in found))
        begins = offsets
        if not rules.starts_at_positions and state.checkpoint is not None:
            begins = state.checkpoint
            if rules.compares_checkpoint and any(b > o for b, o in zip(begins, offsets, strict=True)):
                self.heard.add("CHECKPOINT_IN_USE")
                return
        if any(begin < earliest for begin, earliest in zip(begins, state.earliest, strict=True)):
            self._refuse_unjust_data_loss(state)
            if rules.fails_on_data_loss:
                self.heard.add("DATA_LOST")
                return
            begins = tuple(map(max, begins, state.earliest))
        if self.world.shuffled:
            refuse_lost(self.world, state)
        known: tuple[int | None, ...] = offsets if rules.knows else (None,) * len(offsets)
        new = Run(run, database.number, state.topic, 0, known, self._tasks(begins, known), (None,) * len(offsets))
        runs = (*state.runs, new)
        yield ("run", run, "starts at", begins), state._replace(database=database, runs=runs, started=run, first=first)

    def _refuse_unjust_data_loss(self, state: State) -> None:
        """A start must not fail for records that Spark had committed as read, with all their rows stored."""
        went_back = state.accidents.restores < self.world.accidents.restores
        for partition, earliest in enumerate(state.earliest):
            stored = set(state.database.tables[partition])
            is_stored = all(row in stored for row in expected(self.world, state, partition) if row[0] < earliest)
            is_read = state.checkpoint is not None and earliest <= state.checkpoint[partition]
            position = state.database.positions[partition].offset or 0
            if position < earliest and is_read and is_stored and not (state.unmoved or went_back):
                raise Violation("a start fails because records are deleted that were read, and filtered out")

    def _tasks(self, begins: tuple[int, ...], known: tuple[int | None, ...]) -> tuple[Task, ...]:
        return tuple(Task(index, begins[place], known[place]) for index, (place, _) in enumerate(self._readers))

    def _committed_by_spark(self, state: State, run: Run) -> Iterator[Step]:
        """All tasks close; ``offsets/N`` and ``commits/N`` are written, and the next batch begins."""
        for frontiers in product(*(self._closes(state, task) for task in run.tasks)):
            yield from self._committed_at(state, run, frontiers)

    def _closes(self, state: State, task: Task) -> list[tuple[int, int]]:
        """
        Where Spark may take the task's batch for done: nothing is left to flush, unless that is not a rule.

        In continuous mode Spark commits an epoch before its tasks flush what they have left of it.
        """
        # An epoch ends for the task when it has flushed what was left of the one before.
        if task.asks or (task.at is None and self.rules.knows) or task.promised > (task.at or 0):
            return []
        _, offsets = self._reads(task)
        return [
            frontier
            for frontier, unsent in self._ahead(state, task)
            if not frontier[1]
            and (not unsent or self.world.continuous or not self.rules.close_flushes)
            and (not self.world.shuffled or frontier[0] == len(offsets))
        ]

    def _committed_at(self, state: State, run: Run, frontiers: tuple[tuple[int, int], ...]) -> Iterator[Step]:
        rules = self.rules
        if self.world.shuffled:
            refuse_lost(self.world, state)
        if state.topic != run.topic and rules.compares_topic:
            self.heard.add("RECREATED")
            yield from self._dead(state, run, ("run", run.run, "fails: RECREATED"))
            return
        ends, reported = [0] * len(run.known), list(run.known)
        for task, (sent, _) in zip(run.tasks, frontiers, strict=True):
            place, offsets = self._reads(task)
            ends[place] = max(ends[place], offsets[sent] if sent < len(offsets) else len(self.world.records[place]))
            reported[place] = task.at if reported[place] is None else max(task.at or 0, reported[place] or 0)
        begins = tuple(ends)
        at_move = tuple(reported)
        if self.world.continuous and rules.moves_over_filtered != "blindly":
            # A task lives as long as the run, and the driver hears nothing of its position.
            at_move = run.known if rules.moves_over_filtered == "from the start" else (None,) * len(ends)
        moves = tuple(
            (at, end) if self._moves and at is not None and at < end else None
            for at, end in zip(at_move, ends, strict=True)
        )
        committed = state._replace(
            committed=state.committed + 1, checkpoint=begins if self._keeps_checkpoint else state.checkpoint
        )
        label = "Spark commits batch", run.epoch, "of run", run.run, "which ends at", begins
        nothing = (None,) * len(ends)
        if self.world.continuous:
            tasks = tuple(self._closing(task, at) for task, at in zip(run.tasks, frontiers, strict=True))
            after = run._replace(epoch=run.epoch + 1, tasks=tasks, moves=moves)
            yield label, _exchange(committed, run, after._replace(ends=begins if state.accidents.plans else None))
            return
        handed_on: list[tuple[Label, tuple[int | None, ...]]] = [(label, tuple(reported) if rules.knows else nothing)]
        if not rules.tasks_report:
            handed_on.append(((*label, "and its partitions move to other executors"), nothing))
        for how, known in handed_on:
            tasks = self._tasks(begins, known)
            yield (
                how,
                _exchange(committed, run, run._replace(epoch=run.epoch + 1, known=known, tasks=tasks, moves=moves)),
            )

    def _closing(self, task: Task, frontier: tuple[int, int]) -> Task:
        unsent = self._unsent(task, frontier)
        if unsent and self.rules.close_flushes:
            return task._replace(promised=max(offset for offset, _ in unsent) + 1)
        return task._replace(sent=max(task.sent, frontier))

    def _moved_by_driver(self, state: State, run: Run) -> Iterator[Step]:
        for place, move in enumerate(run.moves):
            if move is None:
                continue
            database = moved_over_filtered(state.database, run.run, run.number, place, *move, self.rules)
            after = _exchange(state, run, run._replace(moves=put(run.moves, place, None)))
            self.heard.add("moved" if database != state.database else "not moved")
            label = "run", run.run, "moves the position of partition", place, "over filtered records, to", move[1]
            yield label, after._replace(database=database)

    def _planned_again(self, state: State, run: Run) -> Iterator[Step]:
        """The tasks of a continuous query end, and those of a later stage begin where Spark has committed an epoch."""
        less = state._replace(accidents=state.accidents._replace(plans=state.accidents.plans - 1))
        begins = run.ends or tuple(task.begin for task in run.tasks)
        known = tuple(map(self._remembered, run.tasks)) if self.rules.remembers else run.known
        # A later stage is a later claim.
        planned = run._replace(epoch=run.epoch + 1, tasks=self._tasks(begins, known), ends=None)
        label: Label = ("Spark plans run", run.run, "again, from", begins)
        after = _exchange(less, run, planned)
        yield label, after
        yield from self._living_on(after, run, run.tasks, label)
        if self.rules.remembers:
            strangers = tuple(task._replace(at=None, is_stranger=True) for task in planned.tasks)
            elsewhere = planned._replace(tasks=strangers)
            yield (*label, "on other executors"), _exchange(less, run, elsewhere)

    def _remembered(self, task: Task) -> int | None:
        """How far the process knows the task's partition to be stored, or to be about to be."""
        return max(task.at or 0, task.promised) if self.rules.promises and task.promised else task.at

    def _dead(self, state: State, run: Run, label: Label) -> Iterator[Step]:
        """The driver is dead; of its tasks and the zombies before, as many live on as may."""
        after = state._replace(
            runs=tuple(other for other in state.runs if other is not run), unmoved=state.unmoved or any(run.moves)
        )
        yield label, after
        yield from self._living_on(after, run, run.tasks, label)

    def _living_on(self, state: State, run: Run, tasks: tuple[Task, ...], label: Label) -> Iterator[Step]:
        for task in tasks if self.world.zombies else ():
            zombie = run._replace(tasks=(task,), moves=())
            if self._has_more(state, zombie):
                kept = state.zombies[max(0, len(state.zombies) + 1 - self.world.zombies) :]
                yield (
                    (*label, "and a task of partition", self._reads(task)[0], "lives on"),
                    state._replace(zombies=(*kept, zombie)),
                )

    # A task -----------------------------------------------------------------------------------------------------------

    def _reads(self, task: Task) -> tuple[int, tuple[int, ...]]:
        """The partition, and the offsets of the records that reach the task."""
        key = task.index, task.begin
        if key not in self._read:
            place, offsets = self._readers[task.index]
            self._read[key] = place, tuple(offset for offset in offsets if offset >= task.begin)
        return self._read[key]

    def _has_more(self, state: State, zombie: Run) -> bool:
        return any(unsent for _, unsent in self._ahead(state, zombie.tasks[0]))

    def _ahead(self, state: State, task: Task) -> list[Ahead]:
        """How far the task may have read, each with the rows that it has not sent yet."""
        place = self._readers[task.index][0]
        is_there = state.topic == state.database.topic
        key = task.index, task.begin, task.sent, state.produced[place], state.earliest[place], is_there
        if key not in self._aheads:
            self._aheads[key] = [(frontier, self._unsent(task, frontier)) for frontier in self._frontiers(state, task)]
        return self._aheads[key]

    def _frontiers(self, state: State, task: Task) -> Iterator[tuple[int, int]]:
        """Whole records, and parts of one where that is not a rule."""
        place, offsets = self._reads(task)
        log, sent = self.world.records[place], task.sent[0]
        for count in range(sent, len(offsets) + 1):
            if count > sent:
                offset = offsets[count - 1]
                # Its consumer asks for what is not there, or gets an offset that is lower than the one before.
                goes_back = self.rules.rising and count > 1 and offset < offsets[count - 2]
                is_gone = offset < state.earliest[place] or state.topic != state.database.topic
                if goes_back or is_gone or offset >= state.produced[place]:
                    return
            yield count, 0
            if not self.rules.whole_records and count < len(offsets):
                yield from ((count, rows) for rows in range(1, log[offsets[count]]))

    def _unsent(self, task: Task, frontier: tuple[int, int]) -> tuple[Place, ...]:
        place, offsets = self._reads(task)
        log = self.world.records[place]
        return tuple(
            (offsets[record], row)
            for record in range(task.sent[0], min(frontier[0] + 1, len(offsets)))
            for row in range(log[offsets[record]])
            if task.sent <= (record, row) < frontier
        )

    def _of_task(self, state: State, run: Run, task: Task) -> Iterator[Step]:
        for label, after, new, answer in self._tried(state, run, task):
            if answer in REFUSALS:
                assert answer
                self._refuse_unjust(state, run.run, answer)
                self.heard.add(answer.name)
                yield from self._dead(after, run, (*label, f"; run {run.run} fails: {answer.name}"))
            elif answer is None:
                yield label, _became(after, run, new)
        yield from self._fails(state, run, task)

    def _refuse_unjust(self, state: State, run: int, answer: Answer) -> None:
        went_back = state.accidents.restores < self.world.accidents.restores
        # What was being written when Spark planned again may never have been stored.
        was_planned_again = state.accidents.plans < self.world.accidents.plans
        is_just = {
            Answer.FENCED: state.database.run != run,
            Answer.RESTORED: went_back or was_planned_again,
            Answer.DISPUTED: bool(self.world.shuffled),
            # It cannot tell records without rows from records that are lost.
            Answer.UNPROVEN: went_back or was_planned_again or any(0 in log for log in self.world.records),
        }
        if not is_just[answer]:
            raise Violation(f"run {run} fails without a reason: {answer.name}")

    def _fails(self, state: State, run: Run, task: Task) -> Iterator[Step]:
        left, (place, offsets), sent = state.accidents, self._reads(task), task.sent[0]
        if self.rules.rising and any(offsets[n] < offsets[n - 1] for n in range(max(sent, 1), len(offsets))):
            self.heard.add("OUT_OF_ORDER")
            database = marked(state.database, self._in_hand(run, task), self.rules)
            failed = state._replace(database=database)
            yield from self._dead(failed, run, ("run", run.run, "fails: OUT_OF_ORDER"))
        if sent < len(offsets) and offsets[sent] < state.earliest[place]:
            if self.rules.fails_on_data_loss:
                self.heard.add("DATA_LOST")
                yield from self._dead(state, run, ("run", run.run, "fails: DATA_LOST"))
            else:
                skipped = task._replace(sent=(sent + 1, 0))
                yield ("Kafka skips record", offsets[sent]), _became(state, run, skipped)
        if left.outages and not self.rules.fails_in_the_end:
            less = state._replace(accidents=left._replace(outages=left.outages - 1))
            for frontier, unsent in self._ahead(state, task):
                if unsent:
                    label = "Postgres does not answer, and a task goes on without", named(unsent)
                    yield label, _became(less, run, task._replace(sent=frontier))
        if left.failed_tasks and not self.world.continuous:
            again = _became(state, run, Task(task.index, task.begin, run.known[place]))
            again = again._replace(accidents=left._replace(failed_tasks=left.failed_tasks - 1))
            label = ("the task of partition", place, "fails, and Spark tries it again")
            yield label, again
            yield from self._living_on(again, run, (task,), label)

    def _tried(self, state: State, run: Run, task: Task) -> Iterator[Try]:
        """A look, or a flush of each length."""
        if task.asks or task.at is None:
            yield self._looks(state, run, task, ("a task of run", run.run, "looks"))
            return
        done = 0
        for frontier, unsent in self._ahead(state, task):
            if len(unsent) > done:
                done = len(unsent)
                yield from self._flushes(state, run, task, (frontier, unsent))

    def _flushes(self, state: State, run: Run, task: Task, ahead: Ahead) -> Iterator[Try]:
        frontier, unsent = ahead
        rules, place, at = self.rules, self._readers[task.index][0], task.at or 0
        rows = tuple(row for row in unsent if row[0] >= at or not rules.rows_have_positions)
        if len(rows) < len(unsent):
            self._refuse_dropped(state, place, [row for row in unsent if row not in rows])
        sent = task._replace(sent=frontier)
        if not rows:
            yield ("a task of run", run.run, "drops", named(unsent)), state, sent, None
            return
        to = max(offset for offset, _ in rows) + 1
        flush = Flush(run.run, run.number, run.epoch, task.index, place, at, to, rows)
        if not rules.one_transaction:
            after = self._stored(state, flush._replace(to=at))
            if after is not None:
                then = (*state.on_the_way, flush._replace(rows=()))
                stored = state._replace(database=after, on_the_way=then)
                yield (flush, "stores rows, and its position is on the way"), stored, task._replace(asks=True), None
            return
        after = self._stored(state, flush)
        if after is None:
            yield self._looks(state, run, task, (flush, "is not accepted: the task looks"))
        else:
            moved = sent._replace(at=to if rules.rows_have_positions else at)
            yield (flush, "is stored"), state._replace(database=after), moved, None
        if state.accidents.lost_answers:
            less = state.accidents._replace(lost_answers=state.accidents.lost_answers - 1)
            lost = state._replace(on_the_way=(*state.on_the_way, flush), accidents=less)
            yield (flush, "is on the way, and the line is cut"), lost, task._replace(asks=True), None

    def _looks(self, state: State, run: Run, task: Task, label: Label) -> Try:
        place = self._readers[task.index][0]
        least = run.known[place] if task.is_stranger else task.at
        database, answer = looked(state.database, self._in_hand(run, task), least, self.rules)
        after, found = state._replace(database=database), database.positions[place].offset
        if task.is_stranger and self.rules.proves and answer is Answer.GO_ON:
            first = self._first_row(task)
            answer = Answer.UNPROVEN if first is not None and (found or 0) < first else answer
        if answer is not Answer.GO_ON:
            return label, after, task, answer
        at = found if found is not None else task.at or 0
        gone_on = task._replace(at=at, asks=False, is_stranger=False)
        return (*label, "and finds position", found), after, gone_on, None

    def _first_row(self, task: Task) -> int | None:
        """The offset of the first record that the task has a row of."""
        place, offsets = self._reads(task)
        log = self.world.records[place]
        return next((offset for offset in offsets[task.sent[0] :] if log[offset]), None)

    def _in_hand(self, run: Run, task: Task) -> Flush:
        """Who asks, and the lowest offset of what it still has."""
        place, offsets = self._reads(task)
        least = min(offsets[task.sent[0] :], default=task.at or 0)
        return Flush(run.run, run.number, run.epoch, task.index, place, least, least, ())

    def _stored(self, state: State, flush: Flush) -> Database | None:
        after = flushed(state.database, flush, self.rules)
        if after is not None and state.database.run != flush.run:
            raise Violation(f"{flush} is stored, though run {state.database.run} is newer")
        return after

    def _refuse_dropped(self, state: State, place: int, dropped: list[Place]) -> None:
        """What is dropped must be stored; after a restore, the next look or the next start finds what is missing."""
        lost = [row for row in dropped if row not in state.database.tables[place]]
        went_back = state.accidents.restores < self.world.accidents.restores
        if lost and not self.world.shuffled and not went_back:
            raise Violation(f"dropped, and not stored: {named(lost)}")


def _exchange(state: State, old: Run, new: Run) -> State:
    return state._replace(runs=tuple(new if run is old else run for run in state.runs))


def _became(state: State, run: Run, task: Task) -> State:
    return _exchange(state, run, run._replace(tasks=put(run.tasks, task.index, task)))
