"""
May a person let this batch through by hand?

Pure: runs in the command ``pgonce accept``. Invariant: only the batch that Spark runs next can be accepted, and only
where it would be refused otherwise; an acceptance that lies about unused would let through whatever comes later.
"""

from __future__ import annotations

from pgonce.offsets_store.errors import CheckpointError, RecoveryError
from pgonce.offsets_store.recovery.next_start import next_start, verdict_on
from pgonce.offsets_store.recovery.refused_recovery import NOTHING
from pgonce.offsets_store.recovery.stopped_query import CheckpointFacts, SinkFacts
from pgonce.offsets_store.verdict.decide import ACCEPTABLE, Verdict


def refused_verdict(query_id: str, checkpoint: CheckpointFacts | None, sink: SinkFacts, batch_id: int) -> Verdict:
    """
    What the sink would say to the batch without the acceptance.

    :param checkpoint: None where it cannot be read; then only a batch past the next one is surely refused.
    :raises RecoveryError: ACCEPT_NOT_NEEDED, ACCEPT_NOT_NEXT.
    :raises CheckpointError: OTHER_CHECKPOINT.
    """
    if checkpoint is None:
        if batch_id > sink.last_batch_id + 1:
            return Verdict.GAP
        raise _not_needed(
            f"Without its checkpoint nothing shows that batch {batch_id} would be refused: the sink stands at batch "
            f"{sink.last_batch_id}."
        )
    if checkpoint.query_id != query_id:
        raise CheckpointError(
            "OTHER_CHECKPOINT",
            f"The checkpoint {checkpoint.location} belongs to query {checkpoint.query_id}, not to {query_id}.",
            NOTHING,
            "Give the query's own with --checkpoint.",
        )
    start = next_start(checkpoint)
    if start.batch_id != batch_id:
        raise RecoveryError(
            "ACCEPT_NOT_NEXT",
            f"Spark runs batch {start.batch_id} next, not {batch_id}, says {checkpoint.location}.",
            NOTHING,
            "`pgonce doctor` says what happens at the next start. Accept that batch, or none.",
        )
    verdict = verdict_on(checkpoint, sink, start)
    if verdict not in ACCEPTABLE:
        raise _not_needed(f"Batch {batch_id} would not be refused: {verdict.name}, {verdict.value}.")
    return verdict


def _not_needed(what: str) -> RecoveryError:
    return RecoveryError(
        "ACCEPT_NOT_NEEDED",
        what,
        NOTHING,
        "`pgonce doctor` says what happens at the next start; --checkpoint names the query's checkpoint, where it lies "
        "elsewhere than the ledger says.",
    )
