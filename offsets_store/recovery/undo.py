"""
Undo the newest recovery of a checkpoint.

Runs in the command ``pgonce recover --undo``. Invariant: as with a recovery, the ledger takes the query from the run
that owns it before the first file is changed. If the query has run since the recovery, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..checkpoint.writer import CheckpointWriter
from ..errors import RecoveryError
from ..postgres.backoff import RETRY_SECONDS
from .backup import Kept, mark_undone, newest_kept, undoing
from .fence import RECOVERY, StoppedQuery, take_over
from .read_stopped_query import known_sinks, read_checkpoint, with_state
from .recover import WAIT_SECONDS, Recovery
from .refused_recovery import NOTHING_CHANGED
from .retrying import recovered
from .still_running import QUIET_SECONDS
from .stopped_query import SinkFacts


def undo_recovery(
    checkpoint_location: str,
    url: str = "",
    *,
    dry_run: bool = False,
    quiet_seconds: float = QUIET_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
    retry_timeout: float = RETRY_SECONDS,
) -> Recovery:
    """
    Bring back what the newest recovery has replaced.

    The arguments are those of :func:`~pgonce.offsets_store.recovery.recover.recover_checkpoint`.

    :raises RecoveryError: NOTHING_TO_UNDO; UNDO_TOO_LATE, where the query has run since; RECOVERY_RUNNING.
    """

    def once() -> Recovery:
        return _undo(checkpoint_location, url, dry_run=dry_run, quiet_seconds=quiet_seconds, wait_seconds=wait_seconds)

    return recovered(once, checkpoint_location, retry_timeout)


def _undo(checkpoint_location: str, url: str, *, dry_run: bool, quiet_seconds: float, wait_seconds: float) -> Recovery:
    writer = CheckpointWriter(checkpoint_location)
    kept = newest_kept(writer)
    checkpoint = read_checkpoint(writer.files)
    files = undoing(writer, kept, (checkpoint.newest, checkpoint.newest_commit))
    sinks = known_sinks(url, checkpoint)
    checkpoint = with_state(writer.files, checkpoint, sinks)
    _refuse_published_since(kept, writer, sinks)
    undo = Recovery(
        writer.location,
        checkpoint.query_id,
        f"brings back what the recovery of {kept.time} replaced",
        None,
        written=tuple(name for name, data in files if data is not None),
        removed=tuple(name for name, data in files if data is None),
    )
    if dry_run:
        return undo
    details = {"undone": kept.recovery, "files": [name for name, _ in files], "kept_in": kept.folder}
    stopped = StoppedQuery(url, writer, checkpoint, sinks, quiet_seconds, wait_seconds)
    owner = take_over(stopped, "undo", None, details)
    for name, data in files:
        writer.put(name, data)
    mark_undone(writer, kept, owner)
    return replace(undo, kept_in=kept.folder, is_done=True)


def _refuse_published_since(kept: Kept, writer: CheckpointWriter, sinks: Sequence[SinkFacts]) -> None:
    for sink in sinks:
        if sink.is_living and not sink.run_id.startswith(RECOVERY):
            raise RecoveryError(
                "UNDO_TOO_LATE",
                f"Run {sink.run_id} has published into {sink.sink_name} since the recovery of {kept.folder}.",
                NOTHING_CHANGED,
                f"What the recovery replaced is still kept in {writer.location}/{kept.folder}.",
            )
