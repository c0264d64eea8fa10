"""
Decide whether a stateful query's last batch may be run again, once its recorded entry is put back.

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: the checkpoint becomes what a driver
leaves when it is killed between the commit of batch N in Postgres and ``commits/N``. State is moved neither forward nor
back: it is that after batch N-1, and Spark itself makes that of batch N.

Asynchronous state checkpointing leads here: Spark has run N-1 again, a proven replay, and has then planned N again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.offsets import goes_back, tells_which_rows
from pgonce.offsets_store.verdict.decide import Verdict

from .next_start import NextStart, verdict_on
from .stopped_query import (
    Change,
    CheckpointFacts,
    SinkFacts,
    proven_text,
    side_log_number,
    topic_recreated,
    unproven,
)


def last_batch(checkpoint: CheckpointFacts, living: Sequence[SinkFacts]) -> int | None:
    """
    The batch that all living sinks have published last, if only its entry and its commit are wrong; else None.

    ``commits/`` must end with the batch before it, and the entry of that batch must be the recorded one, byte for byte.
    Then the state after it is that of the published rows.
    """
    number = _published_by_all(living)
    if not number or not checkpoint.is_stateful or checkpoint.newest_commit != number - 1:
        return None
    planned_last = checkpoint.newest in (number - 1, number)
    return number if planned_last and _is_recorded(checkpoint, living, number - 1) else None


def lacking_batch(checkpoint: CheckpointFacts, living: Sequence[SinkFacts]) -> int | None:
    """
    The last batch that Spark has done, if only that is missing in the ledger, of some sink; else None.

    The batch after it may have been planned, and refused. Of a sink that is judged by ids alone, nothing is proven.
    """
    number = checkpoint.newest_commit
    lasts = {sink.last_batch_id for sink in living}
    if not number or number - 1 not in lasts or not lasts <= {number - 1, number}:
        return None
    if any(sink.guarantee == "ids" for sink in living):
        return None
    is_last = number in checkpoint.offsets and checkpoint.newest in (number, number + 1)
    return number if is_last and number - 1 in checkpoint.commits else None


def entry_to_put_back(checkpoint: CheckpointFacts, living: Sequence[SinkFacts], start: NextStart) -> dict[int, str]:
    """
    The last batch's number and its recorded entry.

    :raises RecoveryError: if anything else is wrong, or nothing proves the entry.
    """
    number = last_batch(checkpoint, living)
    if number is None:
        again = _runs_again_first(checkpoint, living, start)
        whose = f"The query {checkpoint.query_id} keeps state, and its checkpoint {checkpoint.location}"
        if again is None:
            raise RecoveryError.usual(
                "RECOVERY_STATEFUL",
                f"{whose} does not agree with the ledger. State belongs to the batches that the checkpoint has done: "
                "it can be moved neither forward nor back.",
                "Bring back checkpoint and database of the same time. If that is impossible, `pgonce accept` lets the "
                "next batch through by hand; `pgonce doctor` shows which batch that is, and its verdict.",
            )
        raise RecoveryError.usual(
            "RECOVERY_STATEFUL",
            f"{whose} lacks the commits of its last two batches (asynchronous state checkpointing). Spark runs batch "
            f"{again} again at the next start, which is a proven replay, and then plans batch {again + 1} again, which "
            "is refused.",
            "Start the query once more, and do not recover it before that. When it has been refused, `pgonce recover` "
            f"puts the recorded entry of batch {again + 1} back.",
        )
    text = proven_text(living, number)
    before, planned = checkpoint.offsets[number - 1], checkpoint.offsets.get(number)
    entry = parse_offset_log(text)
    if goes_back(before.offsets, entry.offsets) or (planned and goes_back(before.offsets, planned.offsets)):
        raise topic_recreated(number)
    for source_id, offset in entry.offsets.items():
        if side_log_number(offset) is not None:
            raise unproven(
                f"The query keeps state, and its source {source_id} reads files: the recorded entry is the number of a "
                f"list in sources/{source_id}, and nothing proves that the list still holds the files that it held.",
                "Bring back checkpoint and database of the same time; or, if you know that the next batch is the right "
                "one, let it through with `pgonce accept`.",
            )
        if offset is not None and not tells_which_rows(offset):
            raise unproven(f"Source {source_id} stands at {offset!r}, which does not say which rows come next.")
    if checkpoint.state_since is None or any(file.version > number + 1 for file in checkpoint.state_since):
        raise RecoveryError.usual(
            "RECOVERY_STATEFUL",
            f"The query {checkpoint.query_id} keeps state, and state/ of its checkpoint {checkpoint.location} holds "
            f"versions that only batches after {number} can have made, of which neither offsets/ nor the ledger knows.",
            "Bring back checkpoint and database of the same time.",
        )
    return {number: text}


def without_whole_state(checkpoint: CheckpointFacts) -> list[Change]:
    """
    Remove the whole states that are newer than the newest commit, their checksums first.

    A batch that was refused, and is planned again, may have made them, from other rows. When the batch is run again,
    Spark writes the changes of that version again, but a snapshot of it only at times. It would read the old one at a
    later start.
    """
    files = sorted(file.name for file in checkpoint.state_since or () if file.is_whole and not file.is_named_in_commit)
    return [Change(name, None) for name in files]


def _published_by_all(living: Sequence[SinkFacts]) -> int | None:
    lasts = {sink.last_batch_id for sink in living}
    return lasts.pop() if len(lasts) == 1 else None


def _is_recorded(checkpoint: CheckpointFacts, living: Sequence[SinkFacts], batch_id: int) -> bool:
    entry = checkpoint.offsets.get(batch_id)
    return entry is not None and all(sink.text_of(batch_id) == entry.text for sink in living)


def _runs_again_first(checkpoint: CheckpointFacts, living: Sequence[SinkFacts], start: NextStart) -> int | None:
    """The batch before the last one, if Spark runs it again first, and so makes its state and its commit."""
    number = _published_by_all(living)
    commit_before = -1 if checkpoint.newest_commit is None else checkpoint.newest_commit
    if (
        not number
        or not checkpoint.is_stateful
        or not start.runs_again
        or start.lacks is not None
        or (start.batch_id, commit_before) != (number - 1, number - 2)
        or any(verdict_on(checkpoint, sink, start) is not Verdict.REPLAY for sink in living)
    ):
        return None
    return start.batch_id
