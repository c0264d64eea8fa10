"""
Plan which files make a stopped query's checkpoint agree with the ledger.

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: a plan is proven before it is
returned. The checkpoint is judged again as it will be, and every sink must go on from there; else a RecoveryError is
raised. The changes are in such an order that they may stop after any of them; what is left can be repaired again.

A checkpoint "stands at" batch L when ``offsets/`` ends with L-1 and L, and ``commits/`` ends with L. Its texts are
those that the ledger has recorded, byte for byte: only they prove that the next batch follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.offsets import tells_which_rows
from pgonce.offsets_store.verdict.decide import Verdict

from .next_start import NextStart, goes_on, next_start, verdict_on
from .stateful_query import entry_to_put_back, lacking_batch, without_whole_state
from .stopped_query import (
    NEW_START,
    Change,
    CheckpointFacts,
    SinkFacts,
    living_sinks,
    newest_of,
    no_checkpoint,
    proven_text,
    refuse_ids_alone,
    side_log_number,
    topic_recreated,
    unproven,
)
from .target import Target, changes_for

MAY_DOUBLE = (
    "Spark has done batches that the ledger does not have, and runs them again. If the database was restored, or lost "
    "them in a failover, that is right. If something else wrote their rows, such as a function that you went back to, "
    "they would be written twice: see page `replace-your-foreachbatch` of the documentation, And back."
)


@dataclass(frozen=True)
class Plan:
    """
    The changes, in the order in which they must be made, and the text for what they do. There are none if all is well.

    ``stands_at`` is the newest batch in ``offsets/`` afterwards; None in a checkpoint without any. ``may_double`` is
    whether :data:`MAY_DOUBLE` holds.
    """

    changes: tuple[Change, ...]
    stands_at: int | None
    does: str
    may_double: bool = False


def plan_recovery(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> Plan:
    """
    What must be done to the checkpoint before its query is started again.

    :raises RecoveryError: if nothing proves what to do.
    """
    if checkpoint.query_id is None:
        raise no_checkpoint(checkpoint)
    if checkpoint.is_real_time:
        return Plan((), None, "changes nothing: the query runs in real time, and each start goes on where its rows end")
    if not sinks and checkpoint.is_continuous:
        raise _continuous(checkpoint)
    if not sinks and checkpoint.newest in (None, 0) and not checkpoint.commits and checkpoint.damaged <= {"offsets/0"}:
        return _before_the_first_batch(checkpoint)
    living = living_sinks(checkpoint, sinks)
    if not checkpoint.offsets and not checkpoint.commits and not checkpoint.useless:
        return _from_the_ledger_alone(checkpoint, living)
    start = next_start(checkpoint)
    if _all_go_on(checkpoint, living, start) and start.lacks is None and not checkpoint.commits_lead:
        if checkpoint.is_continuous:
            raise _continuous(checkpoint)
        changes = (*_state_of_damaged(checkpoint), *(Change(name, None) for name in checkpoint.useless))
        does = f"removes {_named(checkpoint)}" if changes else _agreed(checkpoint, living, start)
        return Plan(changes, checkpoint.newest, does)
    goes_back = any(verdict_on(checkpoint, sink, start) is Verdict.BACKWARD for sink in living)
    try:
        if checkpoint.is_stateful or any(sink.stateful for sink in living):
            return _last_batch_again(checkpoint, living, start)
        if goes_back:
            raise topic_recreated(start.batch_id)
        return _proven(checkpoint, living, _target(checkpoint, living, start))
    except RecoveryError:
        if goes_back or (plan := _as_before_its_commit(checkpoint, living)) is None:
            raise
        return plan


def _from_the_ledger_alone(checkpoint: CheckpointFacts, living: Sequence[SinkFacts]) -> Plan:
    """
    The plan for a checkpoint that has nothing but the query's id: to stand at the newest batch that any sink has.

    :raises RecoveryError: if nothing proves what to write, or a sink would not go on from there.
    """
    # First: for a query that is judged by ids, it is not recorded whether it keeps state.
    refuse_ids_alone(living)
    if checkpoint.is_stateful or any(sink.stateful is not False for sink in living):
        raise RecoveryError.usual(
            "RECOVERY_STATEFUL",
            f"Query {checkpoint.query_id} keeps state, or its batches (of older versions) did not record that it keeps "
            "none.",
            f"State cannot be made from the ledger: {NEW_START}.",
        )
    target = _at_the_ledger(checkpoint, living)
    offsets = parse_offset_log(target.entries[target.newest]).offsets
    if lacking := [source_id for source_id, offset in offsets.items() if offset is None]:
        raise unproven(f"Source {lacking[0]} has no offset yet, and would begin again, perhaps elsewhere.")
    return _proven(checkpoint, living, target)


def _as_before_its_commit(checkpoint: CheckpointFacts, living: Sequence[SinkFacts]) -> Plan | None:
    """
    The plan for a database that lacks the last batch, for sources and states that can be moved nowhere else.

    Spark runs the batch again, as it does if a driver is killed before ``commits/N``: the entry, the lists of files and
    the state after the batch before it are there.
    """
    number = lacking_batch(checkpoint, living)
    if number is None:
        return None
    does = f"leaves batch {number} to be run again, which Spark has done and the ledger does not have"
    target = Target({}, number, is_committed=False, does=does, may_double=True)
    try:
        return _proven(checkpoint, living, target, without_whole_state(checkpoint))
    except RecoveryError:
        return None


def _state_of_damaged(checkpoint: CheckpointFacts) -> Sequence[Change]:
    """Whole states of a batch whose entry is removed, and which is planned again with other rows."""
    newest = -1 if checkpoint.newest is None else checkpoint.newest
    later = (name for name in checkpoint.damaged if name.startswith("offsets/"))
    return without_whole_state(checkpoint) if any(int(name.partition("/")[2]) > newest for name in later) else ()


def _named(checkpoint: CheckpointFacts) -> str:
    """What is in the checkpoint and of no use."""
    damaged = f"what cannot be read ({', '.join(sorted(checkpoint.damaged))})" if checkpoint.damaged else ""
    rest = "checksums whose files are gone" if checkpoint.orphans else ""
    return " and ".join(filter(None, (damaged, rest)))


def _agreed(checkpoint: CheckpointFacts, living: Sequence[SinkFacts], start: NextStart) -> str:
    if any(verdict_on(checkpoint, sink, start) is Verdict.ACCEPTED for sink in living):
        return (
            f"changes nothing: batch {start.batch_id} would be refused, but was accepted by hand (page `recovering` of "
            "the documentation says how to withdraw that)"
        )
    return "changes nothing: checkpoint and ledger agree"


def _before_the_first_batch(checkpoint: CheckpointFacts) -> Plan:
    """No row has moved yet. But without a first entry Spark starts a query only if ``offsets/`` is empty."""
    cut_short = checkpoint.unfinished | checkpoint.damaged
    if checkpoint.newest is not None or not cut_short:
        return Plan((), checkpoint.newest, "changes nothing: the query's first batch is still to come")
    if checkpoint.is_stateful:
        raise unproven(
            f"{', '.join(sorted(cut_short))} are in {checkpoint.location}, offsets/ has no entry, and "
            "there is a folder state/: that cannot come from a driver that was killed in its first batch.",
            "Give the query a new checkpoint.",
        )
    leavings = [*sorted(checkpoint.unfinished.union(checkpoint.orphans)), *sorted(checkpoint.damaged)]
    does = "removes the incomplete first entry: the driver was killed while it wrote it, before any row was written"
    return Plan(tuple(Change(name, None) for name in leavings), None, does)


def _continuous(checkpoint: CheckpointFacts) -> RecoveryError:
    return unproven(
        f"A continuous query wrote the newest entry in {checkpoint.location}/offsets: its metadata line is empty, and "
        "no micro-batch query can go on from it.",
        "Start the query on a new checkpoint: page `replace-your-foreachbatch` of the documentation, A query that ran "
        "continuously.",
    )


def _last_batch_again(checkpoint: CheckpointFacts, living: Sequence[SinkFacts], start: NextStart) -> Plan:
    entries = entry_to_put_back(checkpoint, living, start)
    (number,) = entries
    does = f"puts the recorded entry of batch {number} back; it is run again as a proven replay, and makes its state"
    target = Target(entries, number, is_committed=False, does=does)
    return _proven(checkpoint, living, target, without_whole_state(checkpoint))


def _proven(
    checkpoint: CheckpointFacts, living: Sequence[SinkFacts], target: Target, first: Sequence[Change] = ()
) -> Plan:
    changes = (*first, *changes_for(checkpoint, target))
    repaired = checkpoint.after(changes)
    after = next_start(repaired)
    if after.lacks is not None or not _all_go_on(repaired, living, after):
        verdicts = {sink.sink_name: verdict_on(repaired, sink, after).name for sink in living}
        raise unproven(
            f"A recovery that {target.does} would not help: batch {after.batch_id} would be refused ({verdicts})."
        )
    return Plan(changes, target.newest, target.does, target.may_double)


def _all_go_on(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], start: NextStart) -> bool:
    return all(goes_on(checkpoint, sink, start) for sink in sinks)


def _target(checkpoint: CheckpointFacts, living: Sequence[SinkFacts], start: NextStart) -> Target:
    if _all_go_on(checkpoint, living, start) and not checkpoint.commits_lead:
        # By ids alone, a batch goes on from any entry: from an older one, with rows that are published already.
        refuse_ids_alone(living)
        return _dense(checkpoint, living, start)
    exact = [sink for sink in living if not sink.drops_by_position]
    if exact:
        return _at_the_ledger(checkpoint, exact)
    return _at_a_proven_entry(checkpoint, living)


def _dense(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], start: NextStart) -> Target:
    """The checkpoint as it is, with the entry that a synchronous start needs."""
    newest = start.batch_id if start.runs_again else start.batch_id - 1
    return Target(
        entries=_entry_before(checkpoint, sinks, newest),
        newest=newest,
        is_committed=not start.runs_again,
        does=f"writes the entry before batch {newest}, without which only an asynchronous start works",
    )


def _at_the_ledger(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> Target:
    """Stand at the newest batch that any sink has. It is left uncommitted if another sink still lacks it."""
    newest, ahead, behind = newest_of(sinks)
    refuse_ids_alone(sinks)
    entry = proven_text(ahead, newest)
    _refuse_unreachable(checkpoint, sinks, newest, entry)
    if behind:
        before = {newest - 1: proven_text(behind, newest - 1)}
        missing = ", ".join(sink.sink_name for sink in behind)
        does = (
            f"leaves batch {newest} to be run again: {missing} has not published it yet, and the others skip it (if "
            f"the query does not write {missing} any more, run `pgonce retire` for that sink instead)"
        )
    else:
        before = _entry_before(checkpoint, sinks, newest, done=entry)
        does = f"puts the checkpoint at batch {newest}, where the ledger is"
    lost = any(not _is_published(checkpoint, sinks, number) for number in checkpoint.commits)
    return Target({**before, newest: entry}, newest, is_committed=not behind, does=does, may_double=lost)


def _is_published(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], number: int) -> bool:
    """Whether all sinks have published what Spark has done under this number, as far as texts tell."""
    there = checkpoint.offsets.get(number)
    return all(
        number <= sink.last_batch_id and (there is None or sink.text_of(number) in (None, there.text)) for sink in sinks
    )


def _at_a_proven_entry(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> Target:
    """
    Stand at the newest entry after which no sink leaves anything out. Rows that are stored are dropped by their
    positions.

    The last resort is batch 0, run again from where it began.
    """
    for number in sorted(checkpoint.offsets, reverse=True):
        start = NextStart(number + 1, runs_again=False, after=number, lacks=None)
        if _all_go_on(checkpoint, sinks, start):
            does = f"puts the checkpoint back at batch {number}; rows that are stored are dropped by their positions"
            before = _entry_before(checkpoint, sinks, number, done=checkpoint.offsets[number].text)
            lost = any(done > number for done in checkpoint.commits)
            return Target(before, number, is_committed=True, does=does, may_double=lost)
    again = NextStart(0, runs_again=True, after=None, lacks=None)
    if 0 in checkpoint.offsets and _all_go_on(checkpoint, sinks, again):
        does = "leaves batch 0 to be run again; rows that are stored are dropped by their positions"
        return Target({}, 0, is_committed=False, does=does, may_double=bool(checkpoint.commits))
    raise unproven("No entry in offsets/ is proven to be a published batch's, or to end at or below the stored end.")


def _entry_before(
    checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], newest: int, *, done: str | None = None
) -> dict[int, str]:
    """
    The text for ``offsets/<newest-1>``, empty for batch 0.

    Spark reads this entry at a start, and uses it only if it runs ``newest`` again. In that case the ledger proves the
    batch by the batch's own text, or drops rows by position. So if the true text is not recorded, the text of an entry
    before it is good enough; and if ``newest`` is ``done`` and not run again, so is the text of ``newest`` itself.
    """
    if newest == 0:
        return {}
    recorded = next((text for sink in sinks if (text := sink.text_of(newest - 1)) is not None), None)
    if recorded is None:
        before = checkpoint.entry_before(newest)
        recorded = done if before is None else checkpoint.offsets[before].text
    return {newest - 1: recorded or proven_text(sinks, newest - 1)}


def _refuse_unreachable(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], newest: int, entry: str) -> None:
    """
    Refuse if a source needs more than the entry to go on from it: a list of files, or something unknown.

    :raises RecoveryError: RECOVERY_UNPROVEN.
    """
    for source_id, offset in parse_offset_log(entry).offsets.items():
        if offset is None or tells_which_rows(offset):
            continue
        number = side_log_number(offset)
        if number is None:
            raise unproven(f"Source {source_id} stands at {offset!r}, which does not say which rows come next.")
        log = checkpoint.side_logs.get(source_id)
        if (checkpoint.newest or 0) > newest or log is None or not log.covers(number):
            raise unproven(
                f"Source {source_id} reads files and keeps the list of them in "
                f"{checkpoint.location}/sources/{source_id}. The ledger is at entry {number} of that list, and the "
                "list cannot be moved there, neither back nor past its end.",
                "Bring back the newest copy of the checkpoint, with all of sources/; or a database of the "
                "checkpoint's time.",
            )
        if not _is_of_one_past(checkpoint, sinks):
            raise unproven(
                f"Source {source_id} reads files, and the newest entry in offsets/ is not the one that the ledger has "
                "recorded: the list of files in sources/ may belong to another past."
            )


def _is_of_one_past(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> bool:
    newest = checkpoint.newest
    return newest is not None and any(sink.text_of(newest) == checkpoint.offsets[newest].text for sink in sinks)
