"""
Decide what a batch is to its writer: new, a replay, or something that must not be published.

Pure: runs in the commit, on rows that the commit has locked. Invariant: a batch is skipped only if it is proven to be
the one that is recorded, and published only if it is proven to follow the recorded one.
"""

from __future__ import annotations

from enum import Enum

from ..offsets import Offsets, Span, below, furthest, goes_back, left_out, places, same, says_which_rows
from .facts import Batch, Ledger, Recorded, Remedies, Writer


class Verdict(Enum):
    """What a batch is to its writer; docs/guarantees.md explains each name."""

    LANDED = "this attempt is recorded: it was committed, and only the answer was lost"
    FOREIGN = "another query feeds this sink, and nothing proves that it does so with other rows"
    UNKNOWN = "the ledger has never heard of this query, whose first batch here is not batch 0"
    FENCED = "this run was the owner, and another run or query is now"
    DUPLICATE = "this run published or skipped this batch already, under another attempt"
    REPLAY = "published before, and proven to be the same batch"
    ADOPTED = "the old job wrote this batch, as adoptCheckpoint says"
    CHANGED = "its id was published before, and it is not proven to be the same batch"
    GAP = "the batch before it was never published here"
    DISJOINT = "it does not start where the last published batch ended"
    RECREATED = "a topic that it reads was deleted and recreated, or nothing tells whether it was"
    BACKWARD = "its range ends before it starts, or a partition of it vanished"
    OVERLAP = "some of its rows are stored; their positions tell which"
    ACCEPTED = "a person has accepted this batch (pgonce accept)"
    NEW = "the next batch"


PUBLISH = frozenset({Verdict.NEW, Verdict.OVERLAP, Verdict.ACCEPTED})
# What a person may let through, once, by accepting the batch.
ACCEPTABLE = frozenset({Verdict.CHANGED, Verdict.GAP, Verdict.DISJOINT, Verdict.BACKWARD})
SKIP = frozenset({Verdict.LANDED, Verdict.REPLAY, Verdict.ADOPTED})


def decide(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """
    Compare ``batch`` with what is recorded. The order of the cases is part of the design.

    This says which case it is; the words of an error are made in :mod:`pgonce.offsets_store.verdict.refused_batch`.
    """
    known = (
        _first_contact(ledger, batch, remedies)
        if ledger.writer is None
        else _known(ledger, ledger.writer, batch, remedies)
    )
    return Verdict.BACKWARD if known in PUBLISH and backwards(batch) else known


def backwards(batch: Batch) -> list[str]:
    """The texts for the Kafka partitions in which the range of the batch goes back."""
    return goes_back(batch.start, batch.end)


def _known(ledger: Ledger, writer: Writer, batch: Batch, remedies: Remedies) -> Verdict:
    same_id = ledger.same_id
    if same_id and same_id.attempt == batch.attempt:
        return Verdict.LANDED
    if not writer.is_living or (ledger.was_owner and writer.run_id != batch.run_id):
        return Verdict.FENCED
    if ledger.skipped_by not in (None, batch.attempt) or (same_id and same_id.run_id == batch.run_id):
        return Verdict.DUPLICATE
    if same_id and batch.batch_id <= writer.last_batch_id and is_same_batch(same_id, batch):
        return Verdict.REPLAY
    if recreated(ledger, batch, remedies):
        return Verdict.RECREATED
    if batch.span is not None and _has_positions(ledger, writer):
        return _by_position(ledger, writer, batch, batch.span)
    if batch.batch_id <= writer.last_batch_id:
        return Verdict.CHANGED
    if needs_positions(ledger, batch):
        return Verdict.DISJOINT
    if batch.batch_id > writer.last_batch_id + 1:
        return Verdict.GAP
    return Verdict.NEW if follows(writer, ledger.last, batch) else Verdict.DISJOINT


def recreated(ledger: Ledger, batch: Batch, remedies: Remedies) -> list[str]:
    """
    The topics whose id has changed since the last batch was published, or whose known id was not asked for this time.

    An id that the brokers do not give tells nothing.
    """
    replaced = ledger.rival(remedies.replaces)
    known = ledger.writer or (replaced.writer if replaced else None)
    before = known.topic_ids if known else {}
    if batch.topic_ids is None:
        return sorted(before)
    return sorted(topic for topic, now in batch.topic_ids.items() if before.get(topic, now) != now)


def needs_positions(ledger: Ledger, batch: Batch) -> bool:
    """Whether rows of the batch may be stored by position, so that only their positions tell which of them are."""
    stored = ledger.last.positions if ledger.last else None
    return batch.span is None and stored is not None and (batch.start is None or below(batch.start, stored))


def _has_positions(ledger: Ledger, writer: Writer) -> bool:
    """Whether the ledger says which rows are stored, even if no row was selected yet."""
    by_row = ledger.last is not None and ledger.last.positions is not None
    return by_row or says_which_rows(writer.end_offsets)


def _by_position(ledger: Ledger, writer: Writer, batch: Batch, span: Span) -> Verdict:
    """
    Judge a batch whose rows carry their positions: batch ids may come again, and ranges may overlap.

    Only the start can be wrong. Within a run, Spark begins each batch where the one before it ended, even if it has not
    written that down. The first batch of a run begins where an entry of ``offsets/`` ends.
    """
    is_next = batch.batch_id == writer.last_batch_id + 1
    out_of_order = Verdict.CHANGED if batch.batch_id <= writer.last_batch_id else Verdict.GAP
    if writer.run_id == batch.run_id:
        if not is_next:
            return out_of_order
        if ledger.last and below(span.first, ledger.last.end):
            return Verdict.BACKWARD
    elif batch.start is None:
        return out_of_order
    else:
        known = stored_end(ledger)
        if known and not known.keys() & batch.start.keys():
            # The source has another name now, so that no position of it is known under that name.
            return Verdict.DISJOINT
        if not _is_recorded(ledger.previous, batch) and left_out(batch.start, known):
            return Verdict.GAP if batch.batch_id > writer.last_batch_id + 1 else Verdict.DISJOINT
    return Verdict.NEW if is_next and not below(span.first, stored_positions(ledger)) else Verdict.OVERLAP


def _is_recorded(previous: Recorded | None, batch: Batch) -> bool:
    """Whether the entry before the batch's is proven to be that of a published batch."""
    return (
        previous is not None
        and previous.offset_log not in (None, "")
        and (previous.offset_log == batch.previous_offset_log)
    )


def stored_positions(ledger: Ledger, remedies: Remedies | None = None) -> Offsets | None:
    """The positions below which rows are in the target, or were never selected; None if nothing is stored."""
    if ledger.writer is None:
        replaced = ledger.rival(remedies.replaces) if remedies else None
        return replaced.writer.stored_to if replaced else None
    if ledger.last is None or ledger.last.positions is None:
        return ledger.writer.end_offsets
    return ledger.last.positions


def accepted_positions(ledger: Ledger, batch: Batch) -> Offsets | None:
    """What is stored, for a batch that a person let through: of a topic whose range goes back, nothing counts."""
    return None if batch.span is None else without_gone(furthest(stored_positions(ledger)), batch)


def without_gone(offsets: Offsets, batch: Batch) -> Offsets:
    """These offsets of Kafka, without topics whose range goes back in this batch: there is another topic now."""
    starts, ends = places(batch.start), places(batch.end)
    gone = {place[:2] for place, start in starts.items() if ends and ends.get(place, -1) < start}
    return {
        source_id: {topic: partitions for topic, partitions in topics.items() if (source_id, topic) not in gone}
        for source_id, topics in offsets.items()
    }


def stored_end(ledger: Ledger) -> Offsets:
    """Where a batch may start at the latest: this can be after the stored positions, by rows that were not selected."""
    return furthest(stored_positions(ledger), ledger.writer.end_offsets if ledger.writer else None)


def _first_contact(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    if batch.batch_id > 0:
        # Not if its own rows are there under another name of the sink: then the same batch is a replay.
        if remedies.adopt_checkpoint == batch.batch_id and ledger.rival(batch.query_id) is None:
            return Verdict.NEW
        if remedies.adopt_checkpoint == batch.batch_id + 1:
            return Verdict.ADOPTED
        return Verdict.UNKNOWN
    if remedies.adopt_checkpoint == 1 and not ledger.rivals:
        return Verdict.ADOPTED
    return beside_rivals(ledger, batch, remedies)


def beside_rivals(ledger: Ledger, batch: Batch, remedies: Remedies) -> Verdict:
    """The verdict on a query's first write where others write."""
    if remedies.independent:
        return Verdict.NEW
    open_rivals = [rival for rival in ledger.rivals if rival.query_id != remedies.replaces]
    if open_rivals or not takes_over(ledger, batch, remedies):
        return Verdict.FOREIGN
    if recreated(ledger, batch, remedies):
        return Verdict.RECREATED
    overlaps = batch.span is not None and below(batch.span.first, stored_positions(ledger, remedies))
    return Verdict.OVERLAP if overlaps else Verdict.NEW


def takes_over(ledger: Ledger, batch: Batch, remedies: Remedies) -> bool:
    """
    Whether batch 0 starts where the query that it ``replaces`` ended (True if it replaces none).

    A partition that the old query saw must be there, at the stored offset; or below that, if the rows carry their
    positions, and the old query was not retired or forgotten: its rows may be gone. One that was added since must begin
    at 0, and a topic that the old query did not read may begin anywhere. A query is replaced once, so that a setting
    that was left in place takes nothing for stored that is not.
    """
    if remedies.replaces is None:
        return True
    rival = ledger.rival(remedies.replaces)
    if rival is None or rival.writer.replaced_by is not None:
        return False
    may_overlap = batch.span is not None and rival.writer.retired_at is None
    return _continues(rival.writer.stored_to, batch.start, may_overlap=may_overlap)


def _continues(end: Offsets | None, start: Offsets | None, *, may_overlap: bool) -> bool:
    if end is None or start is None or not says_which_rows(end) or not says_which_rows(start):
        return False
    starts = places(start)
    return (
        end.keys() == start.keys()
        and not begun_late(end, start)
        and all(
            place in starts and (starts[place] == position or (may_overlap and starts[place] < position))
            for place, position in places(end).items()
        )
    )


def begun_late(end: Offsets | None, start: Offsets | None) -> list[str]:
    """
    The partitions that ``start`` does not read from 0 on, although ``end`` has their topic and not them.

    Unless a query reads given partitions (``assign``), Spark looks for new ones before each batch. So one that it never
    saw was added after its last batch, and no row of it has been read.
    """
    ends = places(end)
    topics = {place[:2] for place in ends}
    begun = {place for place, position in places(start).items() if position > 0 and place[:2] in topics}
    return [f"{topic}-{partition}" for _, topic, partition in sorted(begun - ends.keys())]


def is_same_batch(recorded: Recorded, batch: Batch) -> bool:
    """
    Whether ``batch`` is proven to be the recorded one.

    The text of ``offsets/N`` contains the time at which the batch was planned, so a batch that was planned again
    differs even if its offsets read the same. Without the text, offsets are proof only if they say which rows (Kafka),
    the range is not empty (a batch without data may emit other rows), and no state is involved. An entry that was
    recorded with rows by their positions may have been another driver's: then all that the batch reads has to be
    stored.
    """
    if recorded.positions is not None:
        reached = batch.span.next if batch.span else batch.end
        if reached is None or left_out(reached, recorded.positions):
            return False
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

    Texts count first. An older copy of a checkpoint that was advanced elsewhere has the same file offsets for other
    files, and only the text of ``offsets/N-1`` shows that.
    """
    if last is not None and last.offset_log is not None and batch.previous_offset_log is not None:
        return last.offset_log == batch.previous_offset_log
    if batch.guarantee == "ids":
        return True
    return same(batch.start, writer.end_offsets)
