"""
What may a person say of a sink: that one batch may follow, or that the sink publishes no more?

Runs in the commands ``pgonce accept``, ``retire`` and ``forget``. Invariant: only the batch that Spark runs next can be
accepted, and only where it would be refused otherwise: an acceptance that was left unused would let a later batch
through. No row of the target is touched, and the ledger keeps who said what, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, update

from ..checkpoint.files import open_location, open_recorded
from ..errors import CheckpointError, ConfigurationError, RecoveryError
from ..ledger.session import reading
from ..ledger.tables import writers
from ..status.store import OffsetsStore
from ..verdict.decide import ACCEPTABLE, Verdict
from .fence import holding, note
from .next_start import next_start, verdict_on
from .read_stopped_query import read_checkpoint, read_sinks
from .refused_recovery import NOTHING_CHANGED, no_checkpoint
from .stopped_query import CheckpointFacts, SinkFacts

# Records of this many batches are read besides the newest ones: as many as Spark keeps in a checkpoint.
_LOOK_BACK = 100


@dataclass(frozen=True)
class Acceptance:
    """What is accepted, or would be: a batch of this sink, which is refused with this verdict otherwise."""

    query_id: str
    sink: SinkFacts
    verdict: Verdict


def accept_batch(
    query: str,
    batch_id: int,
    url: str = "",
    *,
    reason: str,
    sink: str | None = None,
    checkpoint_location: str | None = None,
    dry_run: bool = False,
) -> Acceptance:
    """
    Let one batch of a query (its id or name) through, once, whatever the ledger thinks of it.

    :param checkpoint_location: the query's checkpoint, where it is not the one that the ledger has noted.
    :raises ConfigurationError: NO_REASON.
    :raises RecoveryError: WRITER_GONE, ALREADY_ACCEPTED, ACCEPT_NOT_NEEDED, ACCEPT_NOT_NEXT, RECOVERY_RUNNING.
    :raises CheckpointError: OTHER_CHECKPOINT; or where the checkpoint that was given cannot be read.
    :raises OffsetsError: where no query or sink, or several, have that name.
    """
    refuse_no_reason(reason)
    query_id, recorded, chosen = _chosen_sink(url, query, sink)
    refuse_gone(chosen)
    checkpoint = _read_if_possible(checkpoint_location, recorded)
    if batch_id in chosen.accepted:
        raise RecoveryError(
            "ALREADY_ACCEPTED",
            f"Batch {batch_id} of sink {chosen.sink_name!r} has been accepted already, and has not come yet.",
            NOTHING_CHANGED,
            "Start the query.",
        )
    verdict = _refused_verdict(query_id, checkpoint, chosen, batch_id)
    if not dry_run:
        accept(url, chosen, batch_id, reason)
    return Acceptance(query_id, chosen, verdict)


def accept(url: str, sink: SinkFacts, batch_id: int, reason: str) -> None:
    """
    Note that this batch may follow.

    :raises RecoveryError: RECOVERY_RUNNING, where the sink has moved since it was read.
    """
    with holding(url, [sink]) as connection:
        note(connection, sink, "accept", batch_id=batch_id, reason=reason.strip())


def retire_sink(
    query: str, url: str = "", *, sink: str | None = None, reason: str | None = None, dry_run: bool = False
) -> tuple[str, SinkFacts]:
    """
    Say that a sink will publish no more; its query is refused if it comes back. The query's id, and the sink.

    :raises RecoveryError: WRITER_GONE, RECOVERY_RUNNING.
    :raises OffsetsError: where no query or sink, or several, have that name.
    """
    query_id, _, chosen = _chosen_sink(url, query, sink)
    refuse_gone(chosen)
    if not dry_run:
        put_out_of_the_way(url, [chosen], "retire", reason)
    return query_id, chosen


def put_out_of_the_way(url: str, sinks: Sequence[SinkFacts], kind: str, reason: str | None) -> None:
    """
    Let the sinks publish no more, and be no rivals of new queries.

    :raises RecoveryError: RECOVERY_RUNNING, where a sink has moved since it was read.
    """
    with holding(url, sinks) as connection:
        for sink in sinks:
            gone = update(writers).where(writers.c.writer_id == sink.writer_id)
            connection.execute(gone.values(retired_at=func.clock_timestamp()))
            note(connection, sink, kind, batch_id=sink.last_batch_id, reason=reason)


def refuse_no_reason(reason: str) -> None:
    """:raises ConfigurationError: NO_REASON, for a blank one."""
    if not reason.strip():
        raise ConfigurationError(
            "NO_REASON",
            "No reason is given.",
            NOTHING_CHANGED,
            "Say why in --reason: the ledger keeps it for those who come after you.",
        )


def refuse_gone(sink: SinkFacts) -> None:
    """:raises RecoveryError: WRITER_GONE, for a sink that was replaced, retired or forgotten."""
    if not sink.is_living:
        raise RecoveryError(
            "WRITER_GONE",
            f"The sink {sink.sink_name!r} of this query was {sink.fate}, and publishes no more.",
            NOTHING_CHANGED,
            "`pgonce status` shows which queries there are.",
        )


def _chosen_sink(url: str, query: str, sink: str | None) -> tuple[str, str | None, SinkFacts]:
    """The query's id, where the ledger says that its checkpoint is, and the one sink that is meant."""
    writer = OffsetsStore(url).latest(query, sink)
    newest = writer.batch_id or 0
    with reading(url) as connection:
        sinks = read_sinks(connection, writer.query_id, range(max(0, newest - _LOOK_BACK), newest))
    return writer.query_id, writer.checkpoint_location, next(s for s in sinks if s.sink_name == writer.sink_name)


def _read_if_possible(given: str | None, recorded: str | None) -> CheckpointFacts | None:
    """The checkpoint that a person has named; else the one that the ledger has noted, None where it is not there."""
    if given is not None:
        named = read_checkpoint(open_location(given))
        if named.query_id is None:
            raise no_checkpoint(named)
        return named
    try:
        found = read_checkpoint(open_recorded(recorded)) if recorded else None
    except CheckpointError:
        return None
    return found if found is not None and found.query_id is not None else None


def _refused_verdict(query_id: str, checkpoint: CheckpointFacts | None, sink: SinkFacts, batch_id: int) -> Verdict:
    """
    What the sink would say to the batch without the acceptance.

    :param checkpoint: None where it cannot be read; then only a batch past the next one is surely refused.
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
            NOTHING_CHANGED,
            "Give the query's own with --checkpoint.",
        )
    start = next_start(checkpoint)
    if start.batch_id != batch_id:
        raise RecoveryError(
            "ACCEPT_NOT_NEXT",
            f"According to {checkpoint.location}, Spark runs batch {start.batch_id} next, not {batch_id}.",
            NOTHING_CHANGED,
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
        NOTHING_CHANGED,
        "`pgonce doctor` says what happens at the next start. If the query's checkpoint is not where the ledger says, "
        "name it with --checkpoint.",
    )
