"""
May a stateful query's last batch be run again, once its recorded entry is put back?

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: the checkpoint becomes what a driver
leaves when it is killed between the commit of batch N in Postgres and ``commits/N``. State is moved neither forward nor
back: it is that after batch N-1, and Spark itself makes that of batch N.

Asynchronous state checkpointing leads here: Spark has run N-1 again, a proven replay, and has then planned N again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoint.log_entries import parse_offset_log
from ..offsets.compare import goes_back, tells_which_rows
from ..verdict.decide import Verdict
from .next_start import NextStart, verdict_on
from .refused_recovery import (
    common_text,
    files_of_a_stateful_query,
    state_went_on,
    stateful,
    stateful_once_more,
    topic_recreated,
    unproven,
)
from .stopped_query import Change, CheckpointFacts, SinkFacts, side_log_number


def last_batch(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> int | None:
    """
    The batch that all living sinks have published last, if only its entry and its commit are wrong; else None.

    ``commits/`` must end with the batch before it, and the entry of that batch must be the recorded one, byte for byte.
    Then the state after it is that of the published rows.
    """
    number = _published_by_all(sinks)
    if not number or not checkpoint.is_stateful or checkpoint.newest_commit != number - 1:
        return None
    planned_last = checkpoint.newest in (number - 1, number)
    return number if planned_last and _is_recorded(checkpoint, sinks, number - 1) else None


def entry_to_put_back(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], start: NextStart) -> dict[int, str]:
    """
    The last batch's number and its recorded entry.

    :raises RecoveryError: where anything else is wrong, or nothing proves the entry.
    """
    living = [sink for sink in sinks if sink.is_living]
    number = last_batch(checkpoint, sinks)
    if number is None:
        if (again := _runs_again_first(checkpoint, living, start)) is not None:
            raise stateful_once_more(checkpoint, again)
        raise stateful(checkpoint)
    text = common_text(living, number)
    before, planned = checkpoint.offsets[number - 1], checkpoint.offsets.get(number)
    entry = parse_offset_log(text)
    if goes_back(before.offsets, entry.offsets) or (planned and goes_back(before.offsets, planned.offsets)):
        raise topic_recreated(number)
    for source_id, offset in entry.offsets.items():
        if side_log_number(offset) is not None:
            raise files_of_a_stateful_query(source_id)
        if offset is not None and not tells_which_rows(offset):
            raise unproven(f"Source {source_id} stands at {offset!r}, which does not say which rows come next.")
    if checkpoint.state_since is None or any(file.version > number + 1 for file in checkpoint.state_since):
        raise state_went_on(checkpoint, number)
    return {number: text}


def without_whole_state(checkpoint: CheckpointFacts) -> list[Change]:
    """
    Remove the whole states that are newer than the newest commit, their checksums first.

    The batch that was planned again and refused may have made them, from other rows. When the batch is run again, Spark
    writes the changes of that version again, but a snapshot of it only at times. It would read the old one at a later
    start.
    """
    files = sorted(file.name for file in checkpoint.state_since or () if file.is_whole and not file.is_named_in_commit)
    return [Change(name, None) for name in files]


def _published_by_all(sinks: Sequence[SinkFacts]) -> int | None:
    lasts = {sink.last_batch_id for sink in sinks if sink.is_living}
    return lasts.pop() if len(lasts) == 1 else None


def _is_recorded(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], batch_id: int) -> bool:
    entry = checkpoint.offsets.get(batch_id)
    return entry is not None and all(sink.text_of(batch_id) == entry.text for sink in sinks if sink.is_living)


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
