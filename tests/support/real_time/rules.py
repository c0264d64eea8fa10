"""
The rules of real time: what one statement does to the database, and what a task does after it has looked.

Pure, and runs in the tests of ``tests/real_time``: no Spark, no Postgres. Each function that takes a
:class:`Database` is one transaction. Invariant: with all of :class:`Rules`, whatever :func:`flushed` stores goes on
from what is stored already. docs/adr/0046-real-time.md has the same in words and in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Place = tuple[int, int]
"""A row that is to be stored: the offset of its record, and which of the record's rows it is."""


@dataclass(frozen=True)
class Rules:
    """The rules that are in force; each can be turned off."""

    # 1. The positions are the truth.
    starts_at_positions: bool = True
    """A run begins with a new checkpoint at the positions; otherwise where the last checkpoint ends."""
    compares_checkpoint: bool = False
    """Where a checkpoint is kept, it is refused if it begins above a position."""
    stores_first_start: bool = True
    """What *latest* means is stored by the first start; otherwise each start asks again where nothing is stored."""
    # 2. A flush is one transaction.
    one_transaction: bool = True
    compares_position: bool = True
    whole_records: bool = True
    # 3. One partition, one task, in order.
    one_task_a_partition: bool = True
    """The plan is compared with the list; otherwise a shuffle slips through."""
    claims: bool = True
    rising: bool = True
    # 4. Only the newest run writes.
    newest_run: bool = True
    random_run_id: bool = True
    """Otherwise its number tells a run from others."""
    # 5. A run knows what it has stored.
    knows: bool = True
    """A task goes on from what the run knows to be stored; otherwise from what it finds."""
    tasks_report: bool = True
    """The driver hands on what tasks have reported; otherwise only the executor remembers."""
    remembers: bool = True
    """
    A process remembers how far its tasks have stored, for those of a later plan.

    Otherwise they know where the run began: those of a continuous query report nothing.
    """
    promises: bool = True
    """It also remembers what closing tasks still write: Spark takes an epoch for done before it is stored."""
    proves: bool = True
    """A task of a later plan in another process goes on only if no record is missing before its first row."""
    # 6. No loss in silence.
    close_flushes: bool = True
    fails_in_the_end: bool = True
    fails_on_data_loss: bool = True
    compares_topic: bool = True
    # 7. Only the driver moves a position over filtered records.
    moves_over_filtered: str = "reported"
    """
    From what tasks have ``reported``, ``blindly``, or ``never``.

    ``from the start``: in continuous mode too, where no task reports while it lives, from where the run began.
    """
    # 8. Rows without a position are refused.
    rows_have_positions: bool = True


class Answer(Enum):
    """What a look at the position's row tells a task."""

    GO_ON = "go on from the position that was found"
    GIVEN_UP = "this attempt was given up by Spark, and stops"
    FENCED = "a newer run has been started"
    RESTORED = "the database has gone back behind what this run has stored"
    DISPUTED = "two tasks have rows of one partition"
    UNPROVEN = "records between the position and the first row may have no rows, or may be lost"


REFUSALS = frozenset({Answer.FENCED, Answer.RESTORED, Answer.DISPUTED, Answer.UNPROVEN})
"""The answers that fail the query."""


class Position(NamedTuple):
    """
    A row of ``pgonce.positions``; without an offset, nothing is stored of the partition.

    The run that may write is the same for all of them, and stands in the database.
    """

    offset: int | None = 0
    epoch: int = -1
    task: int = -1
    claimed_from: int = 0
    disputed_from: int | None = None


class Database(NamedTuple):
    """The newest run (its random id and its number), the id of the topic, the positions and the tables' rows."""

    run: int
    number: int
    topic: int
    positions: tuple[Position, ...]
    tables: tuple[tuple[Place, ...], ...]


class Flush(NamedTuple):
    """One statement: rows of a partition, and its position from ``start`` to ``to``."""

    run: int
    number: int
    epoch: int
    task: int
    partition: int
    start: int
    to: int
    rows: tuple[Place, ...]

    def __str__(self) -> str:
        """As a trace shows it."""
        return f"run {self.run}'s flush of partition {self.partition} from {self.start} to {self.to}"


def is_newest(database: Database, run: int, number: int, rules: Rules) -> bool:
    """Whether this run may write."""
    if not rules.newest_run:
        return True
    return database.run == run if rules.random_run_id else database.number == number


def flushed(database: Database, flush: Flush, rules: Rules) -> Database | None:
    """The database after a flush; None if it wrote nothing."""
    position = database.positions[flush.partition]
    may_write = (
        is_newest(database, flush.run, flush.number, rules)
        and (position.offset in (None, flush.start) or not rules.compares_position or not rules.rows_have_positions)
        and position.disputed_from is None
        and (
            not rules.claims
            or position.epoch < flush.epoch
            or (position.epoch == flush.epoch and position.task == flush.task)
        )
    )
    if not may_write:
        return None
    claimed_from = position.claimed_from if position.epoch == flush.epoch else position.offset or 0
    to = flush.to if rules.rows_have_positions else position.offset
    moved = Position(to, flush.epoch, flush.task, claimed_from)
    return _with(database, flush.partition, moved, flush.rows)


def looked(database: Database, flush: Flush, least: int | None, rules: Rules) -> tuple[Database, Answer]:
    """
    What a task learns that does not know whether its flush is stored; a second claimant leaves its mark.

    :param flush: ``start`` is the lowest offset that the task has rows of.
    :param least: what the task knows to be stored; None if it knows nothing.
    """
    position = database.positions[flush.partition]
    if not is_newest(database, flush.run, flush.number, rules):
        return database, Answer.FENCED
    if least is not None and (position.offset or 0) < least:
        return database, Answer.RESTORED
    if position.disputed_from is not None:
        return database, Answer.DISPUTED
    if rules.claims and position.epoch == flush.epoch and position.task != flush.task:
        return marked(database, flush, rules), Answer.DISPUTED
    if rules.claims and position.epoch > flush.epoch:
        return database, Answer.GIVEN_UP
    return database, Answer.GO_ON


def marked(database: Database, flush: Flush, rules: Rules) -> Database:
    """The database after a task has said that rows from ``flush.start`` on, or from its claim on, may be missing."""
    position = database.positions[flush.partition]
    if not is_newest(database, flush.run, flush.number, rules):
        return database
    disputed = position._replace(disputed_from=min(position.claimed_from, flush.start))
    return _with(database, flush.partition, disputed)


def drawn(database: Database, run: int) -> Database:
    """The database after a start; whatever an older run sends from now on is refused."""
    return database._replace(
        run=run,
        number=database.number + 1,
        positions=tuple(row._replace(epoch=-1, task=-1, claimed_from=0) for row in database.positions),
    )


def moved_over_filtered(
    database: Database, run: int, number: int, partition: int, reported: int, upto: int, rules: Rules
) -> Database:
    """
    The database after the driver has moved a position to the end of a batch that Spark has committed.

    :param reported: the position that the batch's tasks have reported.
    """
    position = database.positions[partition]
    is_known = position.offset == reported or rules.moves_over_filtered == "blindly"
    if not is_newest(database, run, number, rules) or not is_known or (position.offset or 0) >= upto:
        return database
    return _with(database, partition, position._replace(offset=upto))


def _with(database: Database, partition: int, position: Position, rows: tuple[Place, ...] = ()) -> Database:
    positions, tables = list(database.positions), list(database.tables)
    positions[partition] = position
    tables[partition] += rows
    return database._replace(positions=tuple(positions), tables=tuple(tables))
