"""
Repair the checkpoint of a stopped query from the ledger.

Runs on the driver before ``.start()``, and in the command ``pgonce recover``. Invariant: before the first file is
touched, the ledger has taken the query from the run that owned it, and the bytes of everything that will be replaced or
removed are in ``pgonce-kept/<UTC time>/``, with a manifest. If a recovery is cut short, a second one finishes it.

Work that is tried again, because Postgres is unavailable, has not changed a file yet. It asks Postgres first, and its
last statement, the fence, may be run twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pgonce.offsets_store.checkpoint.files import without_credentials
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.commit.settings import RETRY_SECONDS
from pgonce.offsets_store.errors import OldLedgerError, PgonceError, RunningQueryError, UnknownQueryError
from pgonce.offsets_store.ledger.failures import Failed, keep_failure, kept_words
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.backoff import Tries
from pgonce.offsets_store.postgres.translate import driver_error, ledger_error

from .fence import QUIET_SECONDS, StoppedQuery, take_over
from .plan import plan_recovery
from .read_stopped_query import known_sinks, read_checkpoint, with_state
from .stopped_query import Change, query_id_of

_log = logging.getLogger("pgonce")

WAIT_SECONDS = 15.0


@dataclass(frozen=True)
class Recovery:
    """
    What was done to a checkpoint, or would be.

    ``does`` is the text for it. ``written`` and ``removed`` are files of the checkpoint, ``kept`` are those of them
    that were there before, and ``kept_in`` is the folder of the checkpoint with their copies. ``stands_at`` is the
    newest batch in ``offsets/`` afterwards. ``query_id`` is None if there is no checkpoint yet. With
    ``needs_new_application`` the query must be started in a new Spark application, because executors that ran the
    refused batch of a stateful query may still write its state. ``may_double`` is whether Spark runs batches
    again that it has done and the ledger does not have: their rows are written twice if something else wrote them.
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
    may_double: bool = False

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
    :param retry_timeout: how many seconds to wait while Postgres is unavailable or restarts, as a commit does.
    :param approve: is called with what would be done, before anything is changed; it may raise an error to stop that.
    :raises RecoveryError: if the query runs, or keeps state that does not fit, or nothing proves what to do.
    :raises CheckpointError: if the checkpoint cannot be read or written.
    :raises LedgerError: if the ledger cannot be read or written.
    :raises ConnectError: if Postgres stays unavailable.
    """

    def once() -> Recovery:
        writer = CheckpointWriter(checkpoint_location)
        checkpoint = read_checkpoint(writer.files)
        if checkpoint.is_empty:
            return Recovery(writer.location, None, "changes nothing: there is no checkpoint yet", None)
        try:
            sinks = known_sinks(url, checkpoint)
        except OldLedgerError:
            if dry_run:
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
            may_double=plan.may_double,
        )
        if dry_run or not plan.changes:
            return recovery
        if approve is not None:
            approve(recovery)
        # An incomplete first entry may be removed before there is a ledger.
        ensure_ledger(url)
        folder = f"pgonce-kept/{datetime.now(timezone.utc):%Y-%m-%dT%H-%M-%S.%fZ}"
        stopped = StoppedQuery(url, query_id_of(checkpoint), sinks, quiet_seconds, wait_seconds, (writer, checkpoint))
        details = {"does": plan.does, "files": [name for name, _ in plan.changes], "kept_in": folder}
        owner = take_over(stopped, "recover", plan.stands_at, details)
        _keep_aside(writer, folder, owner, plan.changes)
        for name, text in plan.changes:
            writer.put(name, None if text is None else text.encode())
        return replace(recovery, kept_in=folder, is_done=True)

    trying = f"recovery of {without_credentials(checkpoint_location)}: trying again"
    tries = Tries(retry_timeout, log=_log, trying=trying, failed=_failed)
    try:
        while True:
            with tries:
                return once()
    except (RunningQueryError, UnknownQueryError):
        # Nothing is wrong with a query that runs, and an unknown one has nothing to recover.
        raise
    except PgonceError as error:
        if not dry_run:
            keep_failure(
                url,
                lambda: Failed("recovery", Checkpoint(checkpoint_location).query_id()),
                error.code,
                kept_words(error),
                remedy=error.remedy,
            )
        raise


def _keep_aside(writer: CheckpointWriter, folder: str, recovery: str, changes: Sequence[Change]) -> None:
    """Copy everything that ``changes`` will replace or remove, then write the manifest: the hash of each, or null."""
    files = []
    for name, _ in changes:
        before = writer.files.read(name)
        if before is not None:
            writer.write(f"{folder}/{name}", before)
        files.append({"name": name, "before": None if before is None else hashlib.sha256(before).hexdigest()})
    writer.write(f"{folder}/manifest.json", json.dumps({"recovery": recovery, "files": files}, indent=2).encode())


def _failed(error: Exception) -> Exception:
    cause = driver_error(error)
    if cause is not None:
        return ledger_error(cause, "recovering")
    # A traceback would print what Postgres said of a row of the ledger.
    error.__cause__, error.__suppress_context__ = None, True
    return error
