"""
Mend the checkpoint of a stopped query from the ledger, and take that back.

Runs on the driver before ``.start()``, and in the command ``pgonce recover``. Invariant: before the first file is
touched, the ledger has taken the query from the run that owned it, and everything that is replaced lies kept aside; cut
short anywhere, a second recovery mends what the first one left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import LedgerError, RecoveryError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.backoff import RETRY_SECONDS
from pgonce.offsets_store.recovery.backup import (
    FOLDER,
    Kept,
    keep_aside,
    kept_folder,
    mark_undone,
    newest_kept,
    undoing,
)
from pgonce.offsets_store.recovery.changes import is_continuous
from pgonce.offsets_store.recovery.interventions import RECOVERY, fence, moved
from pgonce.offsets_store.recovery.patience import patiently
from pgonce.offsets_store.recovery.plan import plan_recovery
from pgonce.offsets_store.recovery.read_stopped_query import read_checkpoint, read_sinks, with_state
from pgonce.offsets_store.recovery.refused_recovery import NOTHING, no_checkpoint
from pgonce.offsets_store.recovery.still_running import QUIET_SECONDS, refuse_running
from pgonce.offsets_store.recovery.stopped_query import CheckpointFacts, SinkFacts
from pgonce.offsets_store.status.store import OffsetsStore

WAIT_SECONDS = 15.0


@dataclass(frozen=True)
class Recovery:
    """
    What was done to a checkpoint, or would be.

    ``does`` says it in words; ``written`` and ``removed`` are files of the checkpoint, ``kept`` those of them that were
    there before, ``kept_in`` the folder in the checkpoint where these lie. ``stands_at`` is the newest batch in
    ``offsets/`` afterwards. ``query_id`` is None where there is no checkpoint yet. ``needs_new_application``: executors
    that ran the refused batch of a stateful query may still write its state, so the next start must not be on them.
    """

    location: str
    query_id: str | None
    does: str
    stands_at: int | None
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    kept_in: str | None = None
    is_done: bool = False
    needs_new_application: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to change."""
        return bool(self.written or self.removed)


def recover_checkpoint(
    checkpoint_location: str,
    url: str = "",
    *,
    dry_run: bool = False,
    quiet_seconds: float = QUIET_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
    retry_timeout: float = RETRY_SECONDS,
    approve: Callable[[Recovery], None] | None = None,
) -> Recovery:
    """
    Make a stopped query's checkpoint agree with the ledger; call it on the driver, before ``.start()``.

    Forward where the ledger is ahead (asynchronous progress tracking, an older copy of the checkpoint), back where it
    is behind (a restored database). Of a stateful query only the entry of its last batch can be put back. Where all is
    well, and where there is no checkpoint yet, it changes nothing.

    :param checkpoint_location: as given to Spark: a path, or a URI that Python can read and write.
    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param dry_run: only say what would be done.
    :param quiet_seconds: how long neither checkpoint nor ledger may have been written to, if something is to be
        changed: a query that runs writes to both.
    :param wait_seconds: how long to wait, at most, for that silence.
    :param retry_timeout: how many seconds to wait for a Postgres that is away, or restarts, as a commit does.
    :param approve: is told what would be done before anything is; what it raises keeps that from being done.
    :raises RecoveryError: where the query keeps state that does not fit, or runs, or nothing proves what to do.
    :raises CheckpointError: where the checkpoint cannot be read or written.
    :raises LedgerError: where the ledger cannot be read or written.
    :raises ConnectError: where Postgres stays away.
    """

    def once() -> Recovery:
        return _recover(
            checkpoint_location,
            url,
            dry_run=dry_run,
            quiet_seconds=quiet_seconds,
            wait_seconds=wait_seconds,
            approve=approve,
        )

    return patiently(once, checkpoint_location, retry_timeout)


def _recover(
    checkpoint_location: str,
    url: str,
    *,
    dry_run: bool,
    quiet_seconds: float,
    wait_seconds: float,
    approve: Callable[[Recovery], None] | None,
) -> Recovery:
    writer = CheckpointWriter(checkpoint_location)
    checkpoint = read_checkpoint(writer.files)
    if checkpoint.is_empty:
        return Recovery(writer.location, None, "changes nothing: there is no checkpoint yet", None)
    store = OffsetsStore(url)
    try:
        sinks = known_sinks(store, checkpoint)
    except LedgerError as error:
        if dry_run or error.code != "LEDGER_TOO_OLD":
            raise
        # The query's first commit would bring it up to date, and comes too late for this.
        ensure_ledger(url)
        sinks = known_sinks(store, checkpoint)
    checkpoint = with_state(writer.files, checkpoint, sinks)
    plan = plan_recovery(checkpoint, sinks)
    recovery = Recovery(
        writer.location,
        checkpoint.query_id,
        plan.does,
        plan.stands_at,
        written=tuple(name for name, text in plan.changes if text is not None),
        removed=tuple(name for name, text in plan.changes if text is None),
        kept=tuple(name for name, _ in plan.changes if writer.files.exists(name)),
        needs_new_application=checkpoint.is_stateful and any(text is not None for _, text in plan.changes),
    )
    if dry_run or not plan.changes:
        return recovery
    if approve is not None:
        approve(recovery)
    # A checkpoint that is to be adopted may be mended before there is a ledger.
    ensure_ledger(url)
    folder = kept_folder()
    stopped = _Stopped(store, url, writer, checkpoint, sinks, quiet_seconds, wait_seconds)
    details = {"does": plan.does, "files": [name for name, _ in plan.changes], "kept_in": folder}
    owner = stopped.take_over("recover", plan.stands_at, details)
    mended = checkpoint.after(plan.changes)
    keep_aside(writer, folder, owner, plan.changes, (mended.newest, mended.newest_commit))
    for name, text in plan.changes:
        writer.put(name, None if text is None else text.encode())
    return replace(recovery, kept_in=folder, is_done=True)


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
    Bring back what the newest recovery has replaced; arguments as for :func:`recover_checkpoint`.

    :raises RecoveryError: NOTHING_TO_UNDO; UNDO_TOO_LATE, where the query has run since; RECOVERY_RUNNING.
    """

    def once() -> Recovery:
        return _undo(checkpoint_location, url, dry_run=dry_run, quiet_seconds=quiet_seconds, wait_seconds=wait_seconds)

    return patiently(once, checkpoint_location, retry_timeout)


def _undo(checkpoint_location: str, url: str, *, dry_run: bool, quiet_seconds: float, wait_seconds: float) -> Recovery:
    writer = CheckpointWriter(checkpoint_location)
    kept = newest_kept(writer)
    checkpoint = read_checkpoint(writer.files)
    files = undoing(writer, kept, (checkpoint.newest, checkpoint.newest_commit))
    store = OffsetsStore(url)
    sinks = known_sinks(store, checkpoint)
    checkpoint = with_state(writer.files, checkpoint, sinks)
    _refuse_published_since(kept, writer, sinks)
    undo = Recovery(
        writer.location,
        checkpoint.query_id,
        f"brings back what the recovery of {kept.folder.removeprefix(FOLDER + '/')} replaced",
        None,
        written=tuple(name for name, data in files if data is not None),
        removed=tuple(name for name, data in files if data is None),
    )
    if dry_run:
        return undo
    details = {"undone": kept.recovery, "files": [name for name, _ in files], "kept_in": kept.folder}
    stopped = _Stopped(store, url, writer, checkpoint, sinks, quiet_seconds, wait_seconds)
    owner = stopped.take_over("undo", None, details)
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
                NOTHING,
                f"What the recovery replaced still lies in {writer.location}/{kept.folder}.",
            )


def known_sinks(store: OffsetsStore, checkpoint: CheckpointFacts) -> list[SinkFacts]:
    """
    The sinks of the checkpoint's query, as the ledger has them; none where there is no ledger yet.

    :raises LedgerError: where the ledger cannot be read.
    """
    if checkpoint.query_id is None:
        return []
    try:
        with store._reading() as connection:
            return read_sinks(connection, checkpoint.query_id, checkpoint.offsets.keys())
    except LedgerError as error:
        # Nothing is asked of the ledger for these.
        if error.code == "NO_LEDGER" and (checkpoint.newest in (None, 0) or is_continuous(checkpoint)):
            return []
        raise


@dataclass(frozen=True)
class _Stopped:
    """A query that should not run, and what was read of it."""

    store: OffsetsStore
    url: str
    writer: CheckpointWriter
    checkpoint: CheckpointFacts
    sinks: Sequence[SinkFacts]
    quiet_seconds: float
    wait_seconds: float

    def take_over(self, kind: str, stands_at: int | None, details: dict[str, Any]) -> str:
        """Make sure that it does not run, and that nobody goes on from what was read; the new owner's id."""
        if self.checkpoint.query_id is None:
            raise no_checkpoint(self.checkpoint)
        living = [sink for sink in self.sinks if sink.is_living]
        refuse_running(
            self.store,
            self.writer,
            self.checkpoint,
            living,
            self.checkpoint.query_id,
            quiet_seconds=self.quiet_seconds,
            wait_seconds=self.wait_seconds,
        )
        owner = fence(self.url, living, kind, stands_at, details)
        # After the fence: only now can no batch be published any more, and until now one may have been planned.
        files, before = self.writer.files, self.checkpoint
        if with_state(files, read_checkpoint(files), self.sinks) != before:
            raise moved(
                "the checkpoint",
                "No file was changed. The ledger has taken the query from its run, which is refused at its next batch.",
            )
        return owner
