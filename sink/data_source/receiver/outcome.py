"""
What became of a batch that the receiver was told to commit?

Runs in the commit worker. Invariant: only what the ledger holds counts as done, whatever the receiver says; as long as
the ledger cannot be asked, the outcome is called unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

import psycopg
import sqlalchemy.exc

from pgonce.offsets_store.commit.retrying import unknown_outcome, what_became_of
from pgonce.offsets_store.commit.work import NameSink
from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.ledger.recorded_attempt import RecordedAttempt, recorded_attempt
from pgonce.offsets_store.verdict.decide import PUBLISH, Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ...identity.origin import Origin
from ...options.sink_options import SinkOptions
from ..carrier import Carried, Promise
from .client import finish
from .error_messages import ReceiverError, not_in_ledger
from .line import Address

_log = logging.getLogger("pgonce")


def finished(
    options: SinkOptions,
    receiver: Address,
    origin: Origin,
    promise: Promise,
    identified: Callable[[], PlannedBatch],
    name_sink: NameSink,
) -> Carried:
    """
    Have the receiver commit the batch, and look in the ledger whether it did, even if the receiver is lost.

    :raises ReceiverError: if the batch is not done.
    :raises RefusedBatch: if the ledger says that it can never be.
    :raises CommitError: COMMIT_UNKNOWN, if the ledger cannot be asked.
    :raises PgonceError: what the commit in the receiver raised.
    """
    claimed: Verdict | None = None
    try:
        claimed = finish(receiver, origin, promise)
        failure, said = not_in_ledger(claimed.name, origin.batch_id), f"says that it is done ({claimed.name})"
    except ReceiverError as error:
        failure, said = error, f"may have committed it: {error.what}"
    recorded = _recorded(options, origin, receiver.token)
    verdict = _by_token(recorded, claimed) if recorded else None
    if verdict is None:
        try:
            # The receiver's transaction may still be open, or on its way to COMMIT.
            verdict = what_became_of(options.commit, identified(), name_sink)
        except RefusedBatch:
            raise
        except PgonceError as error:
            if not failure.leaves_unknown:
                raise
            raise unknown_outcome(
                f"The receiver of batch {origin.batch_id} {said.rstrip('.')}. The ledger could not be asked since: "
                f"{error.what}"
            ) from None
        if verdict in PUBLISH:
            raise failure
    return Carried(verdict, recorded is None or recorded.may_sweep)


def _recorded(options: SinkOptions, origin: Origin, token: UUID) -> RecordedAttempt | None:
    """What the ledger has of the attempt; None if it could not be asked at once, and has to be asked with patience."""
    try:
        return recorded_attempt(options.commit.url, origin.query_id, options.sink_label, origin.batch_id, token)
    except (PgonceError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        # Only the kind of error: the text of one that is not ours may hold a statement.
        _log.info("the ledger is asked again under the writer's lock: %s", type(error).__name__)
        return None


def _by_token(recorded: RecordedAttempt, claimed: Verdict | None) -> Verdict | None:
    """The verdict that the ledger holds of the attempt, as the receiver called it if it did; None if there is none."""
    if recorded.published:
        return claimed if claimed not in (None, Verdict.REPLAY) else Verdict.LANDED
    return Verdict.REPLAY if recorded.skipped else None
