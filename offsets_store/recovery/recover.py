"""
Repair the checkpoint of a stopped query from the ledger.

Runs on the driver before ``.start()``, and in the command ``pgonce recover``. Invariant: before the first file is
touched, the ledger has taken the query from the run that owned it, and a copy of everything that will be replaced has
been kept. Wherever a recovery is cut short, a second one finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..checkpoint.writer import CheckpointWriter
from ..errors import LedgerError
from ..ledger.migrations import ensure_ledger
from ..postgres.backoff import RETRY_SECONDS
from .backup import keep_aside, kept_folder
from .fence import StoppedQuery, take_over
from .plan import plan_recovery
from .read_stopped_query import known_sinks, read_checkpoint, with_state
from .retrying import recovered
from .still_running import QUIET_SECONDS

WAIT_SECONDS = 15.0


@dataclass(frozen=True)
class Recovery:
    """
    What was done to a checkpoint, or would be.

    ``does`` says it in words. ``written`` and ``removed`` are files of the checkpoint, ``kept`` are those of them that
    were there before, and ``kept_in`` is the folder of the checkpoint with their copies. ``stands_at`` is the newest
    batch in ``offsets/`` afterwards. ``query_id`` is None where there is no checkpoint yet. With
    ``needs_new_application`` the query must be started in a new Spark application, because executors that ran the
    refused batch of a stateful query may still write its state.
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

    The checkpoint is moved forward if the ledger is ahead (asynchronous progress tracking, an older copy of the
    checkpoint), and back if the ledger is behind (a restored database). For a stateful query, only the entry of its
    last batch can be put back. If all is well, or there is no checkpoint yet, nothing is changed.

    :param checkpoint_location: as given to Spark: a path, or a URI that Python can read and write.
    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param dry_run: only say what would be done.
    :param quiet_seconds: before something is changed, how long neither checkpoint nor ledger may have been written to:
        a query that runs writes to both.
    :param wait_seconds: how long to wait for that, at most.
    :param retry_timeout: how many seconds to wait for a Postgres that is away, or restarts, as a commit does.
    :param approve: is called with what would be done, before anything is changed; it may raise an error to stop that.
    :raises RecoveryError: where the query runs, or keeps state that does not fit, or nothing proves what to do.
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

    return recovered(once, checkpoint_location, retry_timeout)


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
    try:
        sinks = known_sinks(url, checkpoint)
    except LedgerError as error:
        if dry_run or error.code != "LEDGER_TOO_OLD":
            raise
        # The first commit of the query would bring it up to date too, but that is too late for a recovery.
        ensure_ledger(url)
        sinks = known_sinks(url, checkpoint)
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
    # A checkpoint that will be adopted may be repaired before there is a ledger.
    ensure_ledger(url)
    folder = kept_folder()
    stopped = StoppedQuery(url, writer, checkpoint, sinks, quiet_seconds, wait_seconds)
    details = {"does": plan.does, "files": [name for name, _ in plan.changes], "kept_in": folder}
    owner = take_over(stopped, "recover", plan.stands_at, details)
    repaired = checkpoint.after(plan.changes)
    keep_aside(writer, folder, owner, plan.changes, (repaired.newest, repaired.newest_commit))
    for name, text in plan.changes:
        writer.put(name, None if text is None else text.encode())
    return replace(recovery, kept_in=folder, is_done=True)
