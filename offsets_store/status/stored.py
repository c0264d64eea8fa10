"""
What the ledger tells a reader: where a writer stands, what it has published, and how far it is behind.

Pure: runs where the ledger is read. Invariant: what is unknown is None, never 0 and never empty. The writer that a
person means, by a query's name, its id, or the beginning of its id, is the only one possible; else an OffsetsError
lists all. A writer that was replaced is never taken for the one that took its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

from ..errors import NotFoundError, OffsetsError
from ..ledger.writers import is_meant
from ..offsets import Offsets, kafka_positions, same
from ..verdict.facts import Guarantee


class CurrentOffset(NamedTuple):
    """Where one source, or one partition of a Kafka source, stands. Only Kafka has a topic and a partition."""

    source_id: str
    topic: str | None
    partition: int | None
    offset: Any


def as_current(offsets: Offsets) -> list[CurrentOffset]:
    """One row a topic and partition for Kafka, one a source otherwise, in order."""
    rows: list[CurrentOffset] = []
    # Spark's numbers first, and then names.
    for source_id in sorted(offsets, key=lambda one: (not one.isdecimal(), int(one) if one.isdecimal() else 0, one)):
        offset = offsets[source_id]
        partitions = [CurrentOffset(*position) for position in sorted(kafka_positions({source_id: offset}))]
        rows += partitions or [CurrentOffset(source_id, None, None, offset)]
    return rows


@dataclass(frozen=True)
class StoredWriter:
    """
    Where one writer stands: a streaming query and one sink of it.

    ``run_id`` is the owner, and ``batch_id`` the newest published batch. ``end_offsets`` says where that batch ended
    (source id to offset; a Kafka offset is the next one to read); None if it is unknown. If rows carry their
    positions, ``end_offsets`` reach as far as rows are stored, even if a batch that is run again ends before that.

    ``guarantee`` is ``offsets`` if a replay needs proof, and ``ids`` if only batch ids are compared, which is weaker.
    ``replays`` counts the proven replays that were skipped and are still recorded, and ``disagreements`` what the
    listener found to differ. A writer with ``replaced_by`` is an old one, whose place that query has taken. One with
    ``retired_at`` will publish no more. ``targets`` are the tables of the last batch, by qualified name, with their
    oids. ``target_change`` says at which batch one of them was last found to be another table than before, and how.
    ``counts`` says what became of the last batch's rows, as in :class:`StoredBatch`. ``offsets_read_by`` says how its
    checkpoint was read: by ``python`` (a disk), ``pyarrow`` or ``spark`` (another store); ``listener`` if it was not.
    ``transport`` says how the rows of the last batch came, as in ``pgonce.batches``; None if it is unknown.
    """

    query_id: str
    query_name: str | None
    sink_name: str
    checkpoint_location: str | None
    run_id: str | None
    generation: int
    batch_id: int | None
    end_offsets: Offsets | None
    guarantee: Guarantee
    replays: int
    disagreements: int
    replaces: str | None
    replaced_by: str | None
    retired_at: datetime | None
    created_at: datetime
    updated_at: datetime
    targets: dict[str, int] | None = None
    target_change: str | None = None
    counts: dict[str, int] | None = None
    offsets_read_by: str | None = None
    transport: str | None = None

    @property
    def is_living(self) -> bool:
        """Whether it may publish more: it was neither replaced nor retired."""
        return self.replaced_by is None and self.retired_at is None

    @property
    def positions(self) -> list[CurrentOffset]:
        """One row a topic and partition for Kafka, or one a source otherwise; none if the offsets are unknown."""
        return as_current(self.end_offsets or {})


def outcomes(counts: Mapping[str, int] | None) -> list[str]:
    """
    What became of rows, a text for each outcome that any row had.

    >>> outcomes({"written": 3, "passed_over": 1, "deleted": 0})
    ['3 written', '1 passed over']
    """
    return [f"{count} {outcome.replace('_', ' ')}" for outcome, count in (counts or {}).items() if count]


@dataclass(frozen=True)
class StoredBatch:
    """
    One published batch. Kafka's start offsets are inclusive, its end offsets exclusive; None if unknown.

    ``rows`` were published. ``dropped_rows`` were not, because an earlier batch had published them. If rows were
    applied by key, ``counts`` says what became of the published ones: written, deleted, superseded by a later change in
    the batch, passed_over because the table had something newer, not_found, or ignored. It also has unrouted, the
    number of rows that were dropped because their route is not in the list. ``tables`` has the number of rows of each
    table, if the sink writes to several.

    ``commit_seconds`` is the time from the BEGIN of its transaction to its record, the COMMIT itself not counted.
    ``batch_seconds`` is what Spark says of the batch (``addBatch``: reading, computing and committing), if a listener
    heard it.
    """

    query_id: str
    sink_name: str
    generation: int
    batch_id: int
    run_id: str
    start_offsets: Offsets | None
    end_offsets: Offsets | None
    rows: int
    dropped_rows: int
    transport: str
    replays: int
    committed_at: datetime
    commit_seconds: float
    counts: dict[str, int] | None = None
    tables: dict[str, int] | None = None
    batch_seconds: float | None = None


@dataclass(frozen=True)
class PartitionLag:
    """
    How far one topic and partition (Kafka), or one source otherwise, is behind.

    ``lag`` counts Kafka offsets, including transaction markers. It is None if either side is unknown, if the newest
    known offset is before the stored end, or if that was read more than ten minutes ago. ``measured_at`` is when
    ``latest_offset`` was read. ``lag_seconds`` is the age of the first unread record, which only a broker tells.
    """

    query_id: str
    sink_name: str
    source_id: str | None
    topic: str | None
    partition: int | None
    end_offset: Any
    latest_offset: Any
    lag: int | None
    measured_at: datetime | None
    lag_seconds: float | None = None


def find_writers(writers: Sequence[StoredWriter], query: str, sink: str | None = None) -> list[StoredWriter]:
    """
    The writers of a query, by its id, the beginning of its id, or its name; with ``sink``, only that one.

    If no query has the name, a sink may have it: then its writer, if that is the only living one.

    :raises OffsetsError: QUERY_NOT_FOUND, QUERY_AMBIGUOUS, SINK_NOT_FOUND.
    """
    found = [writer for writer in writers if writer.query_id == query] or _by_name(writers, query)
    if sink is None:
        return found
    chosen = [writer for writer in found if writer.sink_name == sink]
    if not chosen:
        raise NotFoundError.usual(
            "SINK_NOT_FOUND",
            f"Query {query!r} has no sink {sink!r} in this ledger.",
            f"Its sinks are: {'; '.join(writer.sink_name for writer in found)}.",
        )
    return chosen


def the_writer(found: Sequence[StoredWriter], query: str) -> StoredWriter:
    """
    The only writer of a query.

    :raises OffsetsError: SINK_NEEDED.
    """
    if len(found) > 1:
        raise _sink_needed(found, query, "several sinks")
    return found[0]


def last_to_publish(found: Sequence[StoredWriter]) -> StoredWriter:
    """
    The writer of a query that knows best where its checkpoint is: of the living ones, the one that published last.

    What the ledger has of a sink that was retired stays as it was, though the checkpoint moves.
    """
    living = [writer for writer in found if writer.is_living]
    return max(living or found, key=lambda writer: writer.updated_at)


def where_to_resume(found: Sequence[StoredWriter], query: str) -> StoredWriter:
    """
    A writer whose end is where the query may go on, for all its sinks.

    :raises OffsetsError: WRITER_GONE, SINK_NEEDED.
    """
    living = [writer for writer in found if writer.replaced_by is None]
    if not living:
        raise replaced(query, found[0].replaced_by)
    first = living[0]
    if any(not same(first.end_offsets, other.end_offsets) for other in living[1:]):
        raise _sink_needed(living, query, "several sinks that do not stand at the same offsets")
    return first


def replaced(query: str, successor: str | None) -> OffsetsError:
    """The error for a query whose place another one has taken."""
    return OffsetsError.usual(
        "WRITER_GONE",
        f"Query {query!r} was replaced by query {successor}, which has continued from where it ended.",
        f"Ask for {successor}.",
    )


def _by_name(writers: Sequence[StoredWriter], name: str) -> list[StoredWriter]:
    named = [writer for writer in writers if is_meant(name, writer.query_id, writer.query_name)]
    # A query that took another's place usually has its name too; then only the new one can be meant.
    in_place = [writer for writer in named if writer.replaced_by is None]
    candidates = [writer for writer in in_place if writer.retired_at is None] or in_place or named
    ids = sorted({writer.query_id for writer in candidates})
    if len(ids) > 1:
        raise NotFoundError.usual(
            "QUERY_AMBIGUOUS",
            f"{len(ids)} queries have the name {name!r}, or an id that begins so.",
            f"Give the id of one of them: {'; '.join(map(_described, candidates))}.",
        )
    if not ids:
        # A sink of this name, or a table of this name in any schema.
        into = [one for one in writers if f".{one.sink_name}".endswith(f".{name}") and one.is_living]
        if len(into) == 1:
            return into
        raise _not_found(writers, name, into)
    return [writer for writer in writers if writer.query_id == ids[0]]


_MOST_NAMES = 10


def _not_found(writers: Sequence[StoredWriter], name: str, into: Sequence[StoredWriter]) -> NotFoundError:
    if into:
        remedy = f"Several queries write into a sink of that name; give one of: {'; '.join(map(_described, into))}."
    elif not writers:
        remedy = "It knows no query at all: nothing has been published yet."
    else:
        names = sorted({writer.query_name or writer.query_id for writer in writers})
        known = [*names, *(writer.query_id for writer in writers), *(writer.sink_name for writer in writers)]
        near = get_close_matches(name, known, n=1)
        shown = "; ".join(names[:_MOST_NAMES])
        more = f"; and {len(names) - _MOST_NAMES} more (`pgonce status`)" if len(names) > _MOST_NAMES else ""
        remedy = f"{f'Did you mean {near[0]}? ' if near else ''}It knows: {shown}{more}."
    return NotFoundError.usual(
        "QUERY_NOT_FOUND",
        f"No query of this ledger has the name or id {name!r}, or an id that begins so.",
        remedy,
    )


def _sink_needed(found: Sequence[StoredWriter], query: str, what: str) -> NotFoundError:
    sinks = "; ".join(f"{writer.sink_name} (batch {writer.batch_id})" for writer in found)
    return NotFoundError.usual(
        "SINK_NEEDED",
        f"Query {query!r} has {what}: {sinks}.",
        "Name one of them: sink=... in Python, --sink in the shell.",
    )


def _described(writer: StoredWriter) -> str:
    when = f"{writer.updated_at:%Y-%m-%d %H:%M}"
    return f"{writer.query_id} (sink {writer.sink_name}, last batch {writer.batch_id} at {when})"
