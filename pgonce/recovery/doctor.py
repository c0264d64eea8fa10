"""
Compare a checkpoint with the ledger: whether they agree, what happens at the next start, and what repairs it.

Runs in the command ``pgonce doctor``. Invariant: it changes nothing, and the verdicts come from the functions that the
commit and the recovery themselves use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from pgonce.offsets_store.checkpoint.files import CheckpointFiles, open_location
from pgonce.offsets_store.errors import CheckpointError, RecoveryError
from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.offsets import Offsets, furthest
from pgonce.offsets_store.verdict.decide import Verdict

from .next_start import NextStart, begins_at, goes_on, next_start, planned_entry, verdict_on
from .plan import MAY_DOUBLE, plan_recovery
from .read_stopped_query import known_sinks, read_checkpoint, with_state
from .stopped_query import CheckpointFacts, SinkFacts, no_checkpoint


class Finding(Enum):
    """The result of the comparison; ``pgonce doctor`` has an exit code for each."""

    AGREE = "checkpoint and ledger agree"
    RECOVERABLE = "`pgonce recover` repairs it"
    NEEDS_PERSON = "a person must decide"


@dataclass(frozen=True)
class SinkStanding:
    """One sink: where it stands, and what it will say to the next batch. ``says`` is the text for the verdict."""

    sink_name: str
    verdict: Verdict
    says: str
    last_batch_id: int
    end_offsets: Offsets | None


@dataclass(frozen=True)
class Diagnosis:
    """
    The comparison of a checkpoint with the ledger.

    ``next_batch_id`` is the batch that Spark runs first, ``runs_again`` tells whether it is planned already, ``begins``
    and ``ends`` are its range as far as it is written down. ``remarks`` and ``advice`` are sentences.
    """

    location: str
    query_id: str | None
    finding: Finding
    newest_offsets: int | None
    newest_commit: int | None
    next_batch_id: int
    runs_again: bool
    begins: Offsets | None
    ends: Offsets | None
    sinks: tuple[SinkStanding, ...]
    remarks: tuple[str, ...]
    advice: str

    def record(self) -> dict[str, Any]:
        """The same for programs: plain JSON values, with stable keys."""
        sinks = [
            {
                "sink_name": sink.sink_name,
                "last_batch_id": sink.last_batch_id,
                "end_offsets": sink.end_offsets,
                "verdict": sink.verdict.name,
            }
            for sink in self.sinks
        ]
        rest = {name: value for name, value in vars(self).items() if name not in ("finding", "sinks", "remarks")}
        return {**rest, "finding": self.finding.name, "sinks": sinks, "remarks": list(self.remarks)}


def diagnose(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> Diagnosis:
    """The diagnosis for these facts; without sinks, of a query that the ledger does not know."""
    if checkpoint.is_real_time:
        return _in_real_time(checkpoint, sinks)
    start = next_start(checkpoint)
    remarks = list(_remarks(checkpoint, sinks, start))
    try:
        plan = plan_recovery(checkpoint, sinks)
    except (RecoveryError, CheckpointError) as error:
        finding, advice = Finding.NEEDS_PERSON, f"{error.what} {error.remedy}"
    else:
        if plan.changes:
            finding = Finding.RECOVERABLE
            advice = f"`pgonce recover {in_command(checkpoint.location, 'CHECKPOINT')}` repairs this: it {plan.does}."
            if plan.may_double:
                advice = f"{advice} {MAY_DOUBLE}"
        else:
            finding, advice = Finding.AGREE, f"Nothing to repair: `pgonce recover` {plan.does}."
    if finding is Finding.RECOVERABLE and checkpoint.is_stateful:
        advice += (
            " Then start the query in a new Spark application: page `recovering` of the documentation, Several batches "
            "run again."
        )
    return _diagnosis(checkpoint, sinks, remarks, finding, advice)


def _in_real_time(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> Diagnosis:
    """Each run has a checkpoint of its own, inside this one, which begins at the positions in the ledger."""
    living = [sink for sink in sinks if sink.is_living]
    if living:
        finding, advice = Finding.AGREE, "Nothing to repair: each start in real time goes on where the rows end."
    else:
        finding = Finding.NEEDS_PERSON
        advice = (
            "A query has run here in real time, and this ledger does not know where its rows end. The next start is "
            "refused (`pgonce explain UNKNOWN`); with replaces or independent, it begins as that option says."
        )
    found = _diagnosis(checkpoint, sinks, [], finding, advice)
    if not living:
        return found
    next_batch_id = 1 + max(sink.last_batch_id for sink in living)
    return replace(found, next_batch_id=next_batch_id, begins=furthest(*(sink.end_offsets for sink in living)))


def _diagnosis(
    checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], remarks: Sequence[str], finding: Finding, advice: str
) -> Diagnosis:
    start = next_start(checkpoint)
    entry = planned_entry(checkpoint, start)
    return Diagnosis(
        location=checkpoint.location,
        query_id=checkpoint.query_id,
        finding=finding,
        newest_offsets=checkpoint.newest,
        newest_commit=checkpoint.newest_commit,
        next_batch_id=start.batch_id,
        runs_again=start.runs_again,
        begins=begins_at(checkpoint, start),
        ends=entry.offsets if entry else None,
        sinks=tuple(_standing(checkpoint, sink, start) for sink in sinks),
        remarks=tuple(remarks),
        advice=advice,
    )


def _standing(checkpoint: CheckpointFacts, sink: SinkFacts, start: NextStart) -> SinkStanding:
    if not sink.is_living:
        verdict, says = Verdict.FENCED, f"it was {sink.fate}"
    elif checkpoint.is_real_time:
        verdict, says = Verdict.NEW, "a start in real time goes on at its positions"
    else:
        verdict = verdict_on(checkpoint, sink, start)
        says = verdict.value
        if not start.runs_again and not sink.drops_by_position and verdict is not Verdict.ACCEPTED:
            says += f" (it must be batch {sink.last_batch_id + 1}, and begin where the recorded batch before it ends)"
        if verdict is Verdict.REPLAY and not goes_on(checkpoint, sink, start):
            says += f", but batch {start.batch_id + 1}, which was published too, is then planned again and refused"
    return SinkStanding(sink.sink_name, verdict, says, sink.last_batch_id, sink.end_offsets)


def _remarks(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], start: NextStart) -> list[str]:
    remarks = []
    if not sinks and checkpoint.query_id is not None:
        remarks.append(
            f"The ledger does not know query {checkpoint.query_id}. If another query feeds its table, its start is "
            "refused before a row is written."
        )
    if start.lacks is not None:
        remarks.append(
            f'The offset log is sparse (asynchronous progress tracking): a synchronous start fails with "batch '
            f"{start.lacks} doesn't exist\"."
        )
    if checkpoint.damaged:
        remarks.append(
            f"{', '.join(sorted(checkpoint.damaged))} cannot be read: empty or cut short, as after a loss of power. "
            "Spark fails if it has to read them."
        )
    if checkpoint.orphans:
        remarks.append(
            f"{', '.join(checkpoint.orphans)} belong to files that are missing: Spark's next write of these files "
            "would fail."
        )
    if any(sink.drops_by_position for sink in sinks):
        remarks.append("The stored rows have positions: all this is true only if the job still sets positionColumns.")
    if checkpoint.is_stateful:
        remarks.append("The query keeps state, and recovery can move state neither forward nor back.")
    if checkpoint.unfinished and checkpoint.newest is None:
        remarks.append(
            f"{', '.join(sorted(checkpoint.unfinished))} exist: a driver was killed while it wrote the first entry. "
            "Spark refuses to start (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)."
        )
    if checkpoint.commits_lead:
        remarks.append(
            f"commits/ ends with batch {checkpoint.newest_commit}, after offsets/: files were removed by hand, or "
            "cannot be read."
        )
    return remarks


def examine(checkpoint_location: str | CheckpointFiles, url: str = "") -> Diagnosis:
    """
    Compare a checkpoint with the ledger, over all sinks of its query.

    :raises CheckpointError: if there is no checkpoint, or it cannot be read.
    :raises LedgerError: if the ledger cannot be read.
    """
    files = open_location(checkpoint_location) if isinstance(checkpoint_location, str) else checkpoint_location
    checkpoint = read_checkpoint(files)
    if checkpoint.is_empty:
        raise no_checkpoint(checkpoint)
    sinks = known_sinks(url, checkpoint)
    return diagnose(with_state(files, checkpoint, sinks), sinks)
