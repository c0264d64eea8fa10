"""
Record what a person decides about a query: one batch may follow, a sink publishes no more, or the query is forgotten.

Runs in the commands ``pgonce accept``, ``retire``, ``forget`` and ``serve``. Invariant: only the batch that Spark runs
next can be accepted, and only where it would be refused otherwise: an acceptance that was left unused would let a later
batch through. No row of the target is touched, no record of the ledger is deleted, and the ledger keeps who said what,
and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import Connection, func, select, text, update

from ..checkpoint.files import open_location, open_recorded
from ..checkpoint.writer import CheckpointWriter
from ..errors import CheckpointError, ConfigurationError, RecoveryError
from ..ledger.lock import is_accepted_in_tx
from ..ledger.session import reading
from ..ledger.tables import writers
from ..postgres.text import QUALIFIED_NAME
from ..status.decisions import decisions_on
from ..status.store import OffsetsStore
from ..verdict.decide import ACCEPTABLE, Verdict
from .fence import QUIET_SECONDS, StoppedQuery, holding, note, refuse_running
from .next_start import next_start, verdict_on
from .read_stopped_query import read_checkpoint, read_neighbours, read_sinks
from .stopped_query import NOTHING_CHANGED, CheckpointFacts, SinkFacts, no_checkpoint

# Records of this many batches are read besides the newest ones: as many as Spark keeps in a checkpoint.
_LOOK_BACK = 100


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
            "its end. Nothing proves that no row is lost or doubled.",
        ]


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
    person: str | None = None,
    dry_run: bool = False,
) -> Acceptance:
    """
    Let one batch of a query (its id or name) through, once, with any verdict.

    :param checkpoint_location: the query's checkpoint, where it is not the one that the ledger has noted.
    :param person: who decided it, if more is known than the database role.
    :raises ConfigurationError: NO_REASON.
    :raises RecoveryError: WRITER_GONE, ALREADY_ACCEPTED, ACCEPT_NOT_NEEDED, RECOVERY_RUNNING.
    :raises CheckpointError: OTHER_CHECKPOINT; or where the checkpoint that was given cannot be read.
    :raises OffsetsError: if no query or sink, or several, have that name.
    """
    refuse_no_reason(reason)
    query_id, recorded, chosen = _chosen_sink(url, query, sink)
    with reading(url) as connection:
        refuse_gone(connection, chosen)
        if batch_id in chosen.accepted:
            raise _accepted_already(connection, chosen, batch_id)
    checkpoint = _read_if_possible(checkpoint_location, recorded)
    verdict = _refused_verdict(query_id, checkpoint, chosen, batch_id)
    if not dry_run:
        accept(url, chosen, batch_id, reason, person)
    return Acceptance(query_id, chosen, batch_id, verdict)


def accept(url: str, sink: SinkFacts, batch_id: int, reason: str, person: str | None = None) -> None:
    """
    Note that this batch may follow.

    :raises RecoveryError: RECOVERY_RUNNING, if the sink has moved since it was read; WRITER_GONE, ALREADY_ACCEPTED, if
        another person was quicker.
    """
    with holding(url, [sink]) as connection:
        refuse_gone(connection, _as_it_is_in_tx(connection, sink))
        if is_accepted_in_tx(connection, sink.writer_id, batch_id):
            raise _accepted_already(connection, sink, batch_id)
        note(connection, sink.writer_id, "accept", batch_id=batch_id, reason=reason.strip(), person=person)


def _accepted_already(connection: Connection, sink: SinkFacts, batch_id: int) -> RecoveryError:
    found = [one for one in decisions_on(connection, sink.writer_id, ["accept"]) if one.batch_id == batch_id]
    return RecoveryError(
        "ALREADY_ACCEPTED",
        f"Batch {batch_id} of sink {sink.sink_name!r} has been accepted already, and Spark has not run it yet."
        + (f" It was {found[-1].says}." if found else ""),
        NOTHING_CHANGED,
        "Start the query.",
    )


def retire_sink(
    query: str,
    url: str = "",
    *,
    sink: str | None = None,
    reason: str | None = None,
    person: str | None = None,
    dry_run: bool = False,
) -> Retirement:
    """
    Say that a sink will publish no more; its query is refused if it comes back.

    :param person: who decided it, if more is known than the database role.
    :raises RecoveryError: WRITER_GONE, RECOVERY_RUNNING.
    :raises OffsetsError: if no query or sink, or several, have that name.
    """
    query_id, _, chosen = _chosen_sink(url, query, sink)
    with reading(url) as connection:
        refuse_gone(connection, chosen)
    if not dry_run:
        put_out_of_the_way(url, [chosen], "retire", reason, person)
    return Retirement(query_id, chosen)


def put_out_of_the_way(
    url: str, sinks: Sequence[SinkFacts], kind: str, reason: str | None, person: str | None = None
) -> None:
    """
    Make the sinks publish no more, so that they are not rivals of new queries.

    :raises RecoveryError: RECOVERY_RUNNING, if a sink has moved since it was read; WRITER_GONE, if another person was
        quicker.
    """
    with holding(url, sinks) as connection:
        for sink in sinks:
            refuse_gone(connection, _as_it_is_in_tx(connection, sink))
            gone = update(writers).where(writers.c.writer_id == sink.writer_id)
            connection.execute(gone.values(retired_at=func.clock_timestamp()))
            note(connection, sink.writer_id, kind, batch_id=sink.last_batch_id, reason=reason, person=person)


def _as_it_is_in_tx(connection: Connection, sink: SinkFacts) -> SinkFacts:
    """The sink, whose row is locked, with what became of it since it was read."""
    fate = select(writers.c.replaced_by, writers.c.retired_at).where(writers.c.writer_id == sink.writer_id)
    replaced_by, retired_at = connection.execute(fate).one()
    return replace(sink, replaced_by=replaced_by, retired_at=retired_at)


def refuse_no_reason(reason: str) -> None:
    """:raises ConfigurationError: NO_REASON, for a blank one."""
    if not reason.strip():
        raise ConfigurationError(
            "NO_REASON",
            "No reason is given.",
            NOTHING_CHANGED,
            "Give one with --reason. The ledger keeps it.",
        )


def refuse_gone(connection: Connection, sink: SinkFacts) -> None:
    """:raises RecoveryError: WRITER_GONE, for a sink that was replaced, retired or forgotten, and by whom."""
    if not sink.is_living:
        found = [] if sink.replaced_by else decisions_on(connection, sink.writer_id, ["retire", "forget"])
        raise RecoveryError(
            "WRITER_GONE",
            f"The sink {sink.sink_name!r} of this query was {found[-1].says if found else sink.fate}"
            f"{'. It' if found else ', and'} publishes no more.",
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
    """The checkpoint that a person has named; else the one that the ledger has noted, None if it is not there."""
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

    :param checkpoint: None if it cannot be read; then only a batch past the next one is surely refused.
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
        raise _not_needed(
            f"According to {checkpoint.location}, Spark runs batch {start.batch_id} next, not {batch_id}."
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


@dataclass(frozen=True)
class Forgetting:
    """
    What is forgotten, or would be.

    ``tables`` has the tables that each sink has written to, as SQL names them; none if they are unknown. ``others``
    has the other queries that feed each sink.
    """

    query_id: str
    query_name: str | None
    sinks: tuple[SinkFacts, ...]
    tables: Mapping[str, tuple[str, ...]]
    others: Mapping[str, tuple[str, ...]]


def forget_query(
    query: str,
    url: str = "",
    *,
    reason: str,
    sink: str | None = None,
    dry_run: bool = False,
    quiet_seconds: float = QUIET_SECONDS,
    wait_seconds: float = 0,
) -> Forgetting:
    """
    Take a query (its id or name) out of the way of new ones: with all its sinks, or with ``sink`` alone.

    :raises ConfigurationError: NO_REASON.
    :raises RecoveryError: RECOVERY_RUNNING; WRITER_GONE, where all of it is gone already.
    :raises OffsetsError: if no query, or several, have that name, or it has no such sink.
    """
    refuse_no_reason(reason)
    found = [writer for writer, _ in OffsetsStore(url).status_of(query, sink)]
    with reading(url) as connection:
        named = {writer.sink_name for writer in found}
        sinks = [known for known in read_sinks(connection, found[0].query_id) if known.sink_name in named]
        living = tuple(known for known in sinks if known.is_living)
        forgetting = Forgetting(
            found[0].query_id,
            found[0].query_name,
            living,
            {known.sink_name: _tables(connection, known) for known in living},
            {known.sink_name: _others(connection, known, found[0].query_id) for known in living},
        )
        if not living:
            refuse_gone(connection, sinks[0])
    if not dry_run:
        query_id = found[0].query_id
        checkpoint = _checkpoint(found[0].checkpoint_location, query_id)
        refuse_running(StoppedQuery(url, query_id, living, quiet_seconds, wait_seconds, *checkpoint))
        put_out_of_the_way(url, living, "forget", reason)
    return forgetting


# By oid, or by the text of the name. Never by a cast to regclass: a sink may have any name.
_TABLES = text(
    f"SELECT {QUALIFIED_NAME} FROM pg_catalog.pg_class AS c "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    f"WHERE c.relkind IN ('r', 'p') AND (c.oid::bigint = ANY(:oids) OR {QUALIFIED_NAME} = ANY(:names)) "
    "ORDER BY 1"
)


def _tables(connection: Connection, sink: SinkFacts) -> tuple[str, ...]:
    """The tables that a sink has written to, as SQL names them: those that it recorded, and the one of its name."""
    targets = _targets(connection, sink)
    found = connection.execute(_TABLES, {"oids": list(targets.values()), "names": [sink.sink_name, *targets]})
    return tuple(found.scalars())


def _targets(connection: Connection, sink: SinkFacts) -> dict[str, int]:
    recorded = select(writers.c.targets).where(writers.c.writer_id == sink.writer_id)
    return connection.execute(recorded).scalar_one() or {}


def _others(connection: Connection, sink: SinkFacts, query_id: str) -> tuple[str, ...]:
    """The other queries that feed the sink, or one of its tables."""
    fed = read_neighbours(connection)
    others = [other for name in (sink.sink_name, *_targets(connection, sink)) for other in fed.get(name, ())]
    return tuple(
        dict.fromkeys(
            f"{other.query_id} ({other.query_name or 'no name'})" for other in others if other.query_id != query_id
        )
    )


def _checkpoint(location: str | None, query_id: str) -> tuple[CheckpointWriter | None, CheckpointFacts | None]:
    """The query's checkpoint, which shows whether it runs; None if it is gone, or another query's is there."""
    with suppress(CheckpointError):
        files = open_recorded(location)
        facts = read_checkpoint(files)
        if facts.query_id == query_id:
            return CheckpointWriter(files), facts
    return None, None
