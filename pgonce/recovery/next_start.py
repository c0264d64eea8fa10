"""
Tell which batch Spark runs when the query is next started, and what each sink will say to it.

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: the verdict comes from the
function that the commit uses (:func:`pgonce.offsets_store.verdict.decide.decide`); there is no second set of rules.

What Spark does is in its ``MicroBatchExecution.populateStartOffsets``. The batch of the newest entry in ``offsets/`` is
run again unless ``commits/`` ends with it. In either case ``validateOffsetLogAndGetPrevOffset`` needs the entry before
it: the one of the preceding number, or with asynchronous progress tracking the nearest one that there is.

If the ledger does not know the query, a checkpoint tells neither which sink the query will write to nor what its name
is. Then the answer says that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from pgonce.offsets_store.checkpoint.log_entries import OffsetLog
from pgonce.offsets_store.offsets import Offsets, Span
from pgonce.offsets_store.verdict.decide import ACCEPTABLE, PUBLISH, SKIP, Verdict, decide
from pgonce.offsets_store.verdict.facts import Batch, Ledger, Remedies, Writer, rivals_of, what_speaks_against
from pgonce.offsets_store.verdict.refused_batch import refusal

from .stopped_query import NO_QUERY_ID, CheckpointFacts, SinkFacts

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
    batch = _batch(checkpoint, start, sink.sink_name)
    batch = replace(
        batch,
        offset_log=_NOT_PLANNED if batch.offset_log is None else batch.offset_log,
        previous_offset_log=None if start.after is None else checkpoint.offsets[start.after].text,
        guarantee=sink.guarantee,
        span=Span(batch.start or {}, batch.end or {}) if sink.drops_by_position else None,
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


ANY_SINK = "*"
"""The name that stands for every sink that is not named."""


@dataclass(frozen=True)
class SinkStanding:
    """
    One sink: where it stands, and what it will say to the next batch.

    ``says`` is the text for the verdict. ``last_batch_id`` is None for a sink that has nothing of the query yet; the
    rest is about such a one. ``remedy`` is what to do about a refusal, ``is_certain`` is False where it depends on what
    no checkpoint says (the query's name, or what it reads), and ``knows_the_place`` is True where a query with its
    checkpoint at the same location has fed this sink.
    """

    sink_name: str
    verdict: Verdict
    says: str
    last_batch_id: int | None = None
    end_offsets: Offsets | None = None
    remedy: str = ""
    is_certain: bool = True
    knows_the_place: bool = False


def first_contacts(
    checkpoint: CheckpointFacts,
    fed: Mapping[str, tuple[Writer, ...]],
    start: NextStart,
    sink_name: str | None,
    query_name: str | None,
) -> list[SinkStanding]:
    """
    What each sink that the query may write to will say.

    :param fed: the living queries of each sink.
    :param sink_name: the sink that it will write to; None if that is unknown.
    """
    if start.batch_id > 0:
        batch = _batch(checkpoint, start, sink_name or ANY_SINK, query_name)
        return [_contact(batch, (), is_named=True)]
    names = [*sorted(fed), ANY_SINK] if sink_name is None else [sink_name]
    return [
        _contact(_batch(checkpoint, start, name, query_name), fed.get(name, ()), is_named=query_name is not None)
        for name in names
    ]


def _batch(checkpoint: CheckpointFacts, start: NextStart, sink_name: str, query_name: str | None = None) -> Batch:
    """The first batch of the next run, as far as its checkpoint tells it."""
    entry, begins = planned_entry(checkpoint, start), begins_at(checkpoint, start)
    return Batch(
        query_id=checkpoint.query_id or NO_QUERY_ID,
        sink_name=sink_name,
        run_id=str(uuid4()),
        batch_id=start.batch_id,
        offset_log=entry.text if entry else None,
        start=begins,
        end=entry.offsets if entry else begins,
        stateful=checkpoint.is_stateful,
        query_name=query_name,
        checkpoint_location=checkpoint.location,
    )


def _contact(batch: Batch, neighbours: tuple[Writer, ...], *, is_named: bool) -> SinkStanding:
    ledger = Ledger(rivals=rivals_of(batch, neighbours, None))
    verdict = decide(ledger, batch, Remedies())
    if verdict not in PUBLISH:
        error = refusal(verdict, ledger, batch, Remedies())
        knows = any(other.checkpoint_location == batch.checkpoint_location for other in neighbours)
        may_prove = bool(neighbours) and all(_may_be_apart(batch, other) for other in neighbours)
        says = error.what + (" But it is NEW if the query is proven to read something else." if may_prove else "")
        return SinkStanding(
            batch.sink_name, verdict, says, remedy=error.remedy, is_certain=not may_prove, knows_the_place=knows
        )
    names = sorted({other.query_name for other in neighbours if other.query_name})
    if names and not is_named:
        says = f"{verdict.value}; but FOREIGN if the query has the name of one that feeds it: {', '.join(names)}"
        return SinkStanding(batch.sink_name, verdict, says, is_certain=False)
    return SinkStanding(batch.sink_name, verdict, verdict.value)


def _may_be_apart(batch: Batch, other: Writer) -> bool:
    """Whether the query may prove, when it runs, that it reads something else: its checkpoint does not say it all."""
    if other.replaces_all:
        return False
    if not what_speaks_against(batch, other):
        return True
    is_open = batch.end is None and other.reads is not None
    return is_open and not what_speaks_against(batch, other, doubt_counts=False)
