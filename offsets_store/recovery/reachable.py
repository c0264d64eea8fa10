"""
Can the sources of a query go on from an entry of ``offsets/`` that is written by hand?

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: an entry is written only where it
alone says which rows come next, or where the list of files that it counts on lies beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from offsets_store.offsets import parse_offset_log, tells_which_rows
from offsets_store.recovery.facts import CheckpointFacts, SinkFacts, side_log_number
from offsets_store.recovery.refusals import side_log_behind, unproven


def refuse_unreachable(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts], newest: int, entry: str) -> None:
    """
    Refuse where the sources need more than the entry to go on from it: a list of files, or nobody knows what.

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
            raise side_log_behind(checkpoint, source_id, number)
        if not _is_of_one_past(checkpoint, sinks):
            raise unproven(
                f"Source {source_id} reads files, and the newest entry in offsets/ is not the one that the ledger has "
                "recorded: the list of files in sources/ may be another past's."
            )


def _is_of_one_past(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> bool:
    newest = checkpoint.newest
    return newest is not None and any(sink.text_of(newest) == checkpoint.offsets[newest].text for sink in sinks)
