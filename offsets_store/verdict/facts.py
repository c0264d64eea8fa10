"""
What is known when a batch is judged: the batch itself, what the ledger says of its writer, and which rivals it has.

Pure: made in the commit, in recoveries and in tests. Invariant: what is unknown is None, and proves nothing. For a
query that is new to the ledger, a query that feeds the same sink or table is a rival, unless both are proven to read
different places (``reads``), and neither its name nor the location of its checkpoint suggests that it is the same query
with a new checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Literal
from uuid import UUID, uuid4

from ..offsets import Offsets, Span, furthest
from .reads import Reads, are_apart, reads_of, seen_in, shared

Guarantee = Literal["offsets", "ids"]
ReadBy = Literal["python", "pyarrow", "spark", "listener"]


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """
    One micro-batch, as its planner described it. Its sink has no name yet, because that may be the name of a table.

    ``offset_log`` is the text of ``offsets/N``, and ``previous_offset_log`` that of ``offsets/N-1``; None if they
    cannot be read. ``start`` is inclusive; it and ``end`` map a source's id to its offset. ``span`` has the positions
    of the rows, if they carry them. ``offsets_read_by`` says how the checkpoint was read; it is shown to people, and
    decides nothing.

    ``span`` and ``topic_ids`` may be learned after the rest, from the rows and from the brokers; they are None until
    then, as everything that is unknown. All else is given when the batch is made.
    """

    query_id: str
    run_id: str
    batch_id: int
    attempt: UUID = field(default_factory=uuid4)
    offset_log: str | None = None
    previous_offset_log: str | None = None
    start: Offsets | None = None
    end: Offsets | None = None
    stateful: bool
    query_name: str | None = None
    checkpoint_location: str | None = None
    guarantee: Guarantee = "offsets"
    span: Span | None = None
    topic_ids: dict[str, str] | None = None
    offsets_read_by: ReadBy | None = None

    def into(self, sink_name: str, tables: Mapping[str, int | None] | None = None) -> Batch:
        """The same batch, for this sink, which may write to these ``tables`` (qualified name to oid)."""
        planned = {each.name: getattr(self, each.name) for each in fields(PlannedBatch)}
        return Batch(sink_name=sink_name, tables=tables or {}, **planned)


@dataclass(frozen=True, kw_only=True)
class Batch(PlannedBatch):
    """
    One micro-batch for one sink: what is judged, published and recorded.

    It is still the batch that was planned, and has all its fields under the same names, so what needs no sink takes
    either. That includes :meth:`~PlannedBatch.into`, which returns the batch for the sink that it is given.

    ``tables`` are those that the sink may write to, with their oids (None for one that is to be created), as far as
    they are known before something is written. ``replaces_all`` says that all rows of these tables give way to those of
    each batch.
    """

    sink_name: str
    tables: Mapping[str, int | None] = field(default_factory=dict)
    replaces_all: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """The names that other writers of the same tables may have: the sink's, and its tables'."""
        return tuple(sorted({self.sink_name, *self.tables}))

    @property
    def table_oids(self) -> list[int]:
        """The oids of the tables that there are."""
        return [oid for oid in self.tables.values() if oid is not None]


@dataclass(frozen=True)
class Remedies:
    """What the user has allowed by hand for a query that the ledger does not know."""

    adopt_checkpoint: int | None = None
    replaces: str | None = None
    independent: bool = False


@dataclass(frozen=True)
class Recorded:
    """A row of the ledger's table ``batches``."""

    batch_id: int
    run_id: str
    attempt: UUID
    start: Offsets | None
    end: Offsets | None
    offset_log: str | None
    positions: Offsets | None = None
    topic_ids: dict[str, str] | None = None
    stateful: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Writer:
    """
    A row of the ledger's table ``writers``: a query that has published, and one sink of it.

    ``run_id`` is the owner. ``reads`` is None if not everything that the query has read is known. ``last`` is
    the record of the last batch, if it is kept. ``replaces_all`` says, of a neighbour, that its batches replace all
    rows of a table in question.
    """

    writer_id: int
    query_id: str
    sink_name: str
    query_name: str | None = None
    checkpoint_location: str | None = None
    run_id: str
    generation: int = 0
    last_batch_id: int
    end_offsets: Offsets | None
    guarantee: Guarantee = "offsets"
    replaces: str | None = None
    replaced_by: str | None = None
    created_at: datetime
    updated_at: datetime
    retired_at: datetime | None = None
    targets: dict[str, int] | None = None
    offsets_read_by: ReadBy | None = None
    reads: Reads | None = None
    last: Recorded | None = None
    replaces_all: bool = False

    @property
    def is_living(self) -> bool:
        """Whether it may publish more: it was neither replaced nor retired."""
        return self.replaced_by is None and self.retired_at is None

    @property
    def end(self) -> Offsets | None:
        """Where its last batch ended; the listener may have filled that in only in the batch's record."""
        return self.end_offsets or (self.last.end if self.last else None)

    @property
    def stored_to(self) -> Offsets | None:
        """How far its rows are stored. If they carry positions, a batch that was run again may end before that."""
        positions = self.last.positions if self.last else None
        return self.end if positions is None else furthest(self.end, positions)

    @property
    def stateful(self) -> bool | None:
        """Whether the query keeps state, by the record of its newest batch; None if that does not say."""
        # A batch that is judged by its id is recorded as a stateful query's, because this was not checked.
        return self.last.stateful if self.last and self.guarantee != "ids" else None

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that it has read, as far as they are known."""
        return (self.last.topic_ids if self.last else None) or {}


@dataclass(frozen=True)
class Rival:
    """
    A writer of another query that may have written this one's rows; ``shares`` is the text that says why.

    ``other_sink`` is the name of its sink if that is another one, which writes to the same table.
    """

    writer: Writer
    shares: str
    other_sink: str | None = None

    @property
    def query_id(self) -> str:
        """The other query's id."""
        return self.writer.query_id


@dataclass(frozen=True)
class Ledger:
    """
    The ledger's records of this writer and batch, read under the writer's lock.

    ``same_id`` is the record of this batch id, ``previous`` that of the batch before it; ``was_owner`` tells whether
    this run ever owned the writer; ``skipped_by`` is the attempt in which this run skipped this batch id.
    """

    writer: Writer | None = None
    same_id: Recorded | None = None
    previous: Recorded | None = None
    was_owner: bool = False
    skipped_by: UUID | None = None
    rivals: tuple[Rival, ...] = ()

    @property
    def last(self) -> Recorded | None:
        """The record of the writer's last batch."""
        return self.writer.last if self.writer else None

    def rival(self, query_id: str | None) -> Rival | None:
        """The rival of that query."""
        return next((rival for rival in self.rivals if rival.query_id == query_id), None)


def rivals_of(batch: Batch, neighbours: tuple[Writer, ...], replaces: str | None) -> tuple[Rival, ...]:
    """
    The rivals of a query whose first batch this is, among the writers that feed the same sink or table.

    The query that it ``replaces`` is always among them.

    The first is the one that is most probably this query with its old checkpoint. If a query is replaced, doubt alone
    makes none of the others a rival, because they have worked at the same time as the replaced one and can do so with
    this one. They cannot if each batch of this query, and none of the replaced one, replaces all rows of the table; or
    if this query also reads what is not Kafka's: only a query whose sources are all Kafka's can be replaced.
    """
    found = []
    doubt_counts = replaces is None or (bool(batch.end) and reads_of(batch.end) is None)
    # Of a query that is replaced, the others have worked at the same time as that one.
    others_lose = batch.replaces_all and not any(w.query_id == replaces and w.replaces_all for w in neighbours)
    for other in neighbours:
        sink = None if other.sink_name == batch.sink_name else other.sink_name
        # A replaced query may have fed one table by several sinks.
        if sink is not None and other.query_id == replaces:
            continue
        shares = what_speaks_against(batch, other, doubt_counts=doubt_counts)
        if other.query_id == replaces and not shares:
            shares = "named by replaces"
        if shares in ("", _DOUBT) and (others_lose or (replaces is None and other.replaces_all)):
            shares = "each batch of one of them replaces all rows of the table, also those of the other"
        if shares:
            found.append(Rival(other, shares, other_sink=sink))
    return tuple(sorted(found, key=lambda rival: (not rival.shares.startswith(_SAME_PLACE), rival.shares == _DOUBT)))


_SAME_PLACE = "the same checkpoint location"
_DOUBT = "nothing proves that it reads something else"


def what_speaks_against(batch: Batch, other: Writer, *, doubt_counts: bool = True) -> str:
    """The text that says why both queries may write the same rows; empty if it is proven that they do not."""
    reasons = []
    if batch.checkpoint_location and other.checkpoint_location == batch.checkpoint_location:
        reasons.append(f"{_SAME_PLACE} {batch.checkpoint_location}")
    if batch.query_name and other.query_name == batch.query_name:
        reasons.append(f"the same query name {batch.query_name!r}")
    # Older code does not record what is read; it only moves the offsets.
    theirs = (other.reads or Reads()).and_also(seen_in(other.stored_to))
    reasons += shared(seen_in(batch.end), theirs)
    if doubt_counts and not reasons and not are_apart(reads_of(batch.end), other.reads and theirs):
        reasons.append(_DOUBT)
    return " and ".join(reasons)
