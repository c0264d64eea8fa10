"""
Record what a person decides about a query: one batch may follow, or a sink publishes no more.

Runs in the commands ``pgonce accept`` and ``retire``. Invariant: only the batch that Spark runs
next can be accepted, and only where it would be refused otherwise: an acceptance that was left unused would let a later
batch through. No row of the target is touched, no record of the ledger is deleted, and the ledger keeps who said what,
and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, func, select, update

from pgonce.offsets_store.errors import NOTHING_CHANGED, ConfigurationError, RecoveryError
from pgonce.offsets_store.ledger.lock import is_accepted_in_tx
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import writers
from pgonce.offsets_store.ledger.writers import COUNTS_AS_FEEDER, writers_in_tx
from pgonce.offsets_store.status.stored import the_writer
from pgonce.offsets_store.verdict.decide import ACCEPTABLE, Verdict

from .fence import holding, note
from .next_start import next_start, verdict_on
from .read_stopped_query import known_sinks, named_sinks, own_files, read_checkpoint
from .stopped_query import CheckpointFacts, SinkFacts


@dataclass(frozen=True)
class Acceptance:
    """What is accepted, or would be: a batch of this sink, which is refused with this verdict otherwise."""

    query_id: str
    sink: SinkFacts
    batch_id: int
    verdict: Verdict

    @property
    def says(self) -> list[str]:
        """What that means, as sentences."""
        stands_at, end = self.sink.last_batch_id, self.sink.end_offsets
        return [
            f"Query {self.query_id}, sink {self.sink.sink_name}: stands at batch {stands_at}, end {end}.",
            f"Batch {self.batch_id} would be refused as {self.verdict.name}: {self.verdict.value}.",
            "Once it is accepted, all its rows are published without a check, and the stored offsets move to "
            f"its end. {self._besides}Nothing proves that no row is lost or doubled.",
        ]

    @property
    def _besides(self) -> str:
        """What it does about other batches, as a sentence."""
        last, number = self.sink.last_batch_id, self.batch_id
        if number <= last:
            again = f", and so are batches {number + 1} to {last} after it" if number < last else ""
            return f"It was published already, and is published again{again}. "
        if number > last + 1:
            return f"The rows of batches {last + 1} to {number - 1}, if they have any, are left out. "
        return ""


@dataclass(frozen=True)
class Retirement:
    """A sink of a query that is retired, or would be."""

    query_id: str
    sink: SinkFacts

    @property
    def says(self) -> list[str]:
        """What that means, as sentences."""
        return [
            f"Query {self.query_id}, sink {self.sink.sink_name}: stands at batch {self.sink.last_batch_id}.",
            "Once it is retired, it can never publish again, and recovery leaves it out.",
        ]


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
    Let one batch of a query (its id or name) through, once, with any verdict.

    :param checkpoint_location: the query's checkpoint, where it is not the one that the ledger has noted.
    :raises ConfigurationError: OPTION_MISSING.
    :raises RecoveryError: WRITER_GONE, NOTHING_TO_DO, QUERY_RUNNING.
    :raises CheckpointError: if the checkpoint is not there, or cannot be read.
    :raises OffsetsError: if no query or sink, or several, have that name.
    """
    refuse_no_reason(reason)
    query_id, recorded, chosen = _chosen_sink(url, query, sink)
    checkpoint = read_checkpoint(own_files(query_id, recorded, checkpoint_location))
    (chosen,) = (one for one in known_sinks(url, checkpoint) if one.sink_name == chosen.sink_name)
    verdict = _refused_verdict(checkpoint, chosen, batch_id)
    if verdict is Verdict.ACCEPTED:
        raise _accepted_already(chosen, batch_id)
    if not dry_run:
        accept(url, chosen, batch_id, reason)
    return Acceptance(query_id, chosen, batch_id, verdict)


def accept(url: str, sink: SinkFacts, batch_id: int, reason: str) -> None:
    """
    Note that this batch may follow.

    :raises RecoveryError: QUERY_RUNNING, if the sink has moved since it was read; WRITER_GONE, NOTHING_TO_DO, if
        another person was quicker.
    """
    with holding(url, [sink]) as connection:
        refuse_gone(_as_it_is_in_tx(connection, sink))
        if is_accepted_in_tx(connection, sink.writer_id, batch_id):
            raise _accepted_already(sink, batch_id)
        note(connection, sink.writer_id, "accept", batch_id=batch_id, reason=reason.strip())


def _accepted_already(sink: SinkFacts, batch_id: int) -> RecoveryError:
    return RecoveryError.usual(
        "NOTHING_TO_DO",
        f"Batch {batch_id} of sink {sink.sink_name!r} has been accepted already, and Spark has not run it yet.",
        "Start the query; or withdraw it: page `recovering` of the documentation, When nothing can be proven. "
        "pgonce.interventions has who accepted it, and why.",
    )


def retire_sink(
    query: str,
    url: str = "",
    *,
    sink: str | None = None,
    reason: str | None = None,
    dry_run: bool = False,
) -> Retirement:
    """
    Say that a sink will publish no more; its query is refused if it comes back.

    :raises RecoveryError: WRITER_GONE, QUERY_RUNNING.
    :raises OffsetsError: if no query or sink, or several, have that name.
    """
    query_id, _, chosen = _chosen_sink(url, query, sink)
    if not dry_run:
        with holding(url, [chosen]) as connection:
            put_out_of_the_way_in_tx(connection, [chosen], "retire", reason=reason)
    return Retirement(query_id, chosen)


def put_out_of_the_way_in_tx(connection: Connection, sinks: Sequence[SinkFacts], kind: str, **noted: Any) -> None:
    """
    Make the sinks, whose rows are locked, publish no more, so that they are not rivals of new queries.

    :param kind: ``retire``; or ``forget``, also for a sink that was retired.
    :param noted: the reason, and what else the ledger keeps of the decision.
    :raises RecoveryError: WRITER_GONE, if another person was quicker.
    """
    for sink in sinks:
        if kind != "forget" or not counts_as_feeder(connection, sink):
            refuse_gone(_as_it_is_in_tx(connection, sink))
        gone = update(writers).where(writers.c.writer_id == sink.writer_id)
        connection.execute(gone.values(retired_at=func.coalesce(writers.c.retired_at, func.clock_timestamp())))
        note(connection, sink.writer_id, kind, batch_id=sink.last_batch_id, **noted)


def counts_as_feeder(connection: Connection, sink: SinkFacts) -> bool:
    """Whether the sink's rows are still in its tables, as far as the ledger knows: it was not replaced or forgotten."""
    return bool(writers_in_tx(connection, COUNTS_AS_FEEDER, writers.c.writer_id == sink.writer_id))


def _as_it_is_in_tx(connection: Connection, sink: SinkFacts) -> SinkFacts:
    """The sink, whose row is locked, with what became of it since it was read."""
    fate = select(writers.c.replaced_by, writers.c.retired_at).where(writers.c.writer_id == sink.writer_id)
    replaced_by, retired_at = connection.execute(fate).one()
    return replace(sink, replaced_by=replaced_by, retired_at=retired_at)


def refuse_no_reason(reason: str) -> None:
    """:raises ConfigurationError: OPTION_MISSING, for a blank one."""
    if not reason.strip():
        raise ConfigurationError(
            "OPTION_MISSING",
            "No reason is given.",
            NOTHING_CHANGED,
            "Give one with --reason. The ledger keeps it.",
        )


def refuse_gone(sink: SinkFacts) -> None:
    """:raises RecoveryError: WRITER_GONE, for a sink that was replaced, retired or forgotten."""
    if not sink.is_living:
        raise RecoveryError.usual(
            "WRITER_GONE",
            f"The sink {sink.sink_name!r} of this query was {sink.fate}, and publishes no more.",
            "`pgonce status` shows which queries there are. pgonce.interventions has who retired or forgot one, and "
            "why.",
        )


def _chosen_sink(url: str, query: str, sink: str | None) -> tuple[str, str | None, SinkFacts]:
    """
    The query's id, where the ledger says that its checkpoint is, and the one sink that is meant.

    :raises RecoveryError: WRITER_GONE.
    """
    with reading(url) as connection:
        found, sinks = named_sinks(connection, query, sink)
        writer = the_writer(found, query)
        refuse_gone(sinks[0])
    return writer.query_id, writer.checkpoint_location, sinks[0]


def _refused_verdict(checkpoint: CheckpointFacts, sink: SinkFacts, batch_id: int) -> Verdict:
    """What the sink says to the batch without the acceptance; ACCEPTED, if there is one already."""
    start = next_start(checkpoint)
    if start.batch_id != batch_id:
        raise _not_needed(
            f"According to {checkpoint.location}, Spark runs batch {start.batch_id} next, not {batch_id}."
        )
    verdict = verdict_on(checkpoint, sink, start)
    if verdict not in ACCEPTABLE | {Verdict.ACCEPTED}:
        raise _not_needed(f"Batch {batch_id} would not be refused: {verdict.name}, {verdict.value}.")
    return verdict


def _not_needed(what: str) -> RecoveryError:
    return RecoveryError.usual(
        "NOTHING_TO_DO",
        what,
        "`pgonce doctor` says what happens at the next start. If the query's checkpoint is not where the ledger says, "
        "name it with --checkpoint.",
    )
