"""
Tell which batch Spark runs when the query is next started, and what each sink will say to it.

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: the verdict comes from the
function that the commit uses (:func:`pgonce.offsets_store.verdict.decide.decide`); there is no second set of rules.

What Spark does is in its ``MicroBatchExecution.populateStartOffsets``. The batch of the newest entry in ``offsets/`` is
run again unless ``commits/`` ends with it. In either case ``validateOffsetLogAndGetPrevOffset`` needs the entry before
it: the one of the preceding number, or with asynchronous progress tracking the nearest one that there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pgonce.offsets_store.checkpoint.log_entries import OffsetLog
from pgonce.offsets_store.offsets import Offsets, Span
from pgonce.offsets_store.verdict.decide import ACCEPTABLE, PUBLISH, SKIP, Verdict, decide
from pgonce.offsets_store.verdict.facts import Batch, Remedies

from .stopped_query import CheckpointFacts, SinkFacts

# Equal to no recorded text: the entry of this batch is still to be written.
_NOT_PLANNED = ""


@dataclass(frozen=True)
class NextStart:
    """
    The first batch of the next run.

    ``runs_again`` tells whether its entry is in ``offsets/`` already. ``after`` is the entry at whose end it begins.
    ``lacks`` is the entry whose absence makes a synchronous start fail ("batch N doesn't exist"), None where nothing is
    missing.
    """

    batch_id: int
    runs_again: bool
    after: int | None
    lacks: int | None


def next_start(checkpoint: CheckpointFacts) -> NextStart:
    """The batch that Spark will run first, as ``offsets/`` and ``commits/`` stand."""
    newest = checkpoint.newest
    if newest is None:
        return NextStart(0, runs_again=False, after=None, lacks=None)
    lacks = newest - 1 if newest > 0 and newest - 1 not in checkpoint.offsets else None
    if checkpoint.newest_commit == newest:
        return NextStart(newest + 1, runs_again=False, after=newest, lacks=lacks)
    return NextStart(newest, runs_again=True, after=checkpoint.entry_before(newest), lacks=lacks)


def verdict_on(checkpoint: CheckpointFacts, sink: SinkFacts, start: NextStart) -> Verdict:
    """
    What ``sink`` will say to the first batch of the next run.

    A batch that is not planned yet is judged by where it begins, because its end is not known yet.
    """
    entry, begins = planned_entry(checkpoint, start), begins_at(checkpoint, start)
    end = entry.offsets if entry else begins
    batch = Batch(
        query_id=sink.query_id,
        sink_name=sink.sink_name,
        run_id=str(uuid4()),
        batch_id=start.batch_id,
        offset_log=entry.text if entry else _NOT_PLANNED,
        previous_offset_log=None if start.after is None else checkpoint.offsets[start.after].text,
        start=begins,
        end=end,
        stateful=checkpoint.is_stateful,
        checkpoint_location=checkpoint.location,
        guarantee=sink.guarantee,
        span=Span(begins or {}, end or {}) if sink.drops_by_position else None,
        # The run will ask the brokers.
        topic_ids=sink.topic_ids,
    )
    verdict = decide(sink.ledger(start.batch_id, start.after), batch, Remedies())
    if verdict is Verdict.REPLAY and batch.offset_log == _NOT_PLANNED:
        # Judged by its number alone (offsetsFrom=listener), it would be skipped with any rows.
        verdict = Verdict.CHANGED
    if verdict in ACCEPTABLE and start.batch_id in sink.accepted:
        return Verdict.ACCEPTED
    return verdict


def goes_on(checkpoint: CheckpointFacts, sink: SinkFacts, start: NextStart) -> bool:
    """
    Whether the query goes on from there for this sink, with nothing lost or doubled.

    A proven replay of a batch older than the sink's last one is not enough: the batch after it is planned again, under
    a number that is published already. Only positions tell which of its rows are stored.
    """
    verdict = verdict_on(checkpoint, sink, start)
    if verdict is Verdict.REPLAY and not sink.drops_by_position:
        return start.batch_id == sink.last_batch_id
    return verdict in PUBLISH | SKIP


def planned_entry(checkpoint: CheckpointFacts, start: NextStart) -> OffsetLog | None:
    """The entry of the first batch of the next run; None if Spark still has to plan it."""
    return checkpoint.offsets.get(start.batch_id) if start.runs_again else None


def begins_at(checkpoint: CheckpointFacts, start: NextStart) -> Offsets | None:
    """Where the first batch of the next run begins; None if it is not written down."""
    if start.after is None:
        return checkpoint.initial or None
    return checkpoint.offsets[start.after].offsets
