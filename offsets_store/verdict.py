"""
What is this batch to this writer: new, a replay, or something that must not be published?

Pure: runs in the commit, over rows that the commit has locked. Invariant: a batch is skipped only where it is
proven to be the one that is recorded, and published only where it is proven to follow the recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal
from uuid import UUID

from offsets_store.offsets import Offsets, goes_back, same, says_which_rows

Guarantee = Literal["offsets", "ids"]


class Verdict(Enum):
    """What a batch is to its writer; each name stands in docs/guarantees.md."""

    LANDED = "this very attempt is recorded: the lost answer was COMMIT"
    FOREIGN = "another query feeds this sink from the same place"
    UNKNOWN = "the ledger has never heard of this query, whose first batch here is not batch 0"
    FENCED = "this run was the owner, and another run or query is now"
    DUPLICATE = "this run published or skipped this batch already, under another attempt"
    REPLAY = "published before, and proven to be the same batch"
    ADOPTED = "the old job wrote this batch, as adoptCheckpoint says"
    CHANGED = "its id was published before, and it is not proven to be the same batch"
    GAP = "the batch before it was never published here"
    DISJOINT = "it does not start where the last published batch ended"
    BACKWARD = "its range ends before it starts, or a partition of it vanished"
    NEW = "the next batch"


PUBLISH = frozenset({Verdict.NEW})
SKIP = frozenset({Verdict.LANDED, Verdict.REPLAY, Verdict.ADOPTED})


@dataclass(frozen=True)
class Batch:
    """
    One micro-batch, as the commit sees it.

    ``offset_log`` and ``previous_offset_log`` are the texts of ``offsets/N`` and ``offsets/N-1``; None where
    they cannot be had. ``start`` is inclusive; both offsets map a source's id to its offset.
    """

    query_id: str
    sink_name: str
    run_id: str
    batch_id: int
    attempt: UUID
    offset_log: str | None
    previous_offset_log: str | None
    start: Offsets | None
    end: Offsets | None
    stateful: bool
    query_name: str | None = None
    checkpoint_location: str | None = None
    guarantee: Guarantee = "offsets"


@dataclass(frozen=True)
class Remedies:
    """What the user allowed by hand, for a query that the ledger does not know."""

    adopt_checkpoint: int | None = None
    replaces: str | None = None
    independent: bool = False


@dataclass(frozen=True)
class Writer:
    """The writer's row in the ledger."""

    generation: int
    last_batch_id: int
    end_offsets: Offsets | None
    run_id: str
    guarantee: Guarantee
    replaced_by: str | None = None


@dataclass(frozen=True)
class Recorded:
    """A batch's row in the ledger."""

    batch_id: int
    run_id: str
    attempt: UUID
    start: Offsets | None
    end: Offsets | None
    offset_log: str | None


@dataclass(frozen=True)
class Rival:
    """Another query that feeds the same sink, and what it has in common with this one."""

    query_id: str
    shares: str
    end_offsets: Offsets | None


@dataclass(frozen=True)
class Ledger:
    """
    What the ledger says of this writer and batch, read under the writer's lock.

    ``same_id`` is the record of this batch id, ``last`` that of the newest batch; ``was_owner`` tells whether
    this run ever owned the writer; ``skipped_by`` is the attempt with which this run skipped this batch id.
    """

    writer: Writer | None = None
    same_id: Recorded | None = None
    last: Recorded | None = None
    was_owner: bool = False
    skipped_by: UUID | None = None
    rivals: tuple[Rival, ...] = ()


def decide(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """
    Judge ``batch`` against what is recorded; the order of the cases is part of the design.

    An error's words are made elsewhere (:mod:`offsets_store.refusals`): this says which case it is.
    """
    known = _first_contact(ledger, batch, remedies) if ledger.writer is None else _known(ledger, ledger.writer, batch)
    return Verdict.BACKWARD if known is Verdict.NEW and goes_back(batch.start, batch.end) else known


def _known(ledger: Ledger, writer: Writer, batch: Batch) -> Verdict:
    same_id = ledger.same_id
    if same_id and same_id.attempt == batch.attempt:
        return Verdict.LANDED
    if writer.replaced_by or (ledger.was_owner and writer.run_id != batch.run_id):
        return Verdict.FENCED
    if ledger.skipped_by not in (None, batch.attempt) or (same_id and same_id.run_id == batch.run_id):
        return Verdict.DUPLICATE
    if batch.batch_id <= writer.last_batch_id:
        return Verdict.REPLAY if same_id and is_same_batch(same_id, batch) else Verdict.CHANGED
    if batch.batch_id > writer.last_batch_id + 1:
        return Verdict.GAP
    return Verdict.NEW if follows(writer, ledger.last, batch) else Verdict.DISJOINT


def _first_contact(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    if batch.batch_id > 0:
        if remedies.adopt_checkpoint == batch.batch_id:
            return Verdict.NEW
        if remedies.adopt_checkpoint == batch.batch_id + 1:
            return Verdict.ADOPTED
        return Verdict.UNKNOWN
    if remedies.adopt_checkpoint == 1:
        return Verdict.ADOPTED
    if remedies.independent:
        return Verdict.NEW
    open_rivals = [rival for rival in ledger.rivals if rival.query_id != remedies.replaces]
    if open_rivals or not takes_over(ledger, batch, remedies):
        return Verdict.FOREIGN
    return Verdict.NEW


def takes_over(ledger: Ledger, batch: Batch, remedies: Remedies) -> bool:
    """
    Whether batch 0 starts where the query that it ``replaces`` ended (True where it replaces none).

    A partition that the old query never saw may be new; one that it saw must be there, at the stored offset.
    """
    if remedies.replaces is None:
        return True
    for rival in ledger.rivals:
        if rival.query_id == remedies.replaces:
            return _continues(rival.end_offsets, batch.start)
    return False


def _continues(end: Offsets | None, start: Offsets | None) -> bool:
    if end is None or start is None or not says_which_rows(end) or not says_which_rows(start):
        return False
    return end.keys() == start.keys() and all(
        start[source].get(topic, {}).get(partition) == position
        for source, topics in end.items()
        for topic, partitions in topics.items()
        for partition, position in partitions.items()
    )


def is_same_batch(recorded: Recorded, batch: Batch) -> bool:
    """
    Whether ``batch`` is proven to be the recorded one.

    The text of ``offsets/N`` holds the time at which the batch was planned, so a batch that was planned anew
    differs even where its offsets read the same. Without the text, offsets are proof only where they say which
    rows (Kafka), the range is not empty (a no-data batch may emit other rows) and no state is involved.
    """
    if recorded.offset_log is not None and batch.offset_log is not None:
        return recorded.offset_log == batch.offset_log
    if batch.guarantee == "ids":
        return True
    return (
        not batch.stateful
        and same(recorded.start, batch.start)
        and same(recorded.end, batch.end)
        and batch.start != batch.end
        and says_which_rows(batch.end)
    )


def follows(writer: Writer, last: Recorded | None, batch: Batch) -> bool:
    """
    Whether ``batch`` starts where the last published one ended.

    Texts first: an older copy of a checkpoint that was advanced elsewhere has matching file offsets and other
    files, and only the text of ``offsets/N-1`` tells.
    """
    if last is not None and last.offset_log is not None and batch.previous_offset_log is not None:
        return last.offset_log == batch.previous_offset_log
    if batch.guarantee == "ids":
        return True
    return same(batch.start, writer.end_offsets)
