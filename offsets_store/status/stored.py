"""
What the ledger tells a reader: where a writer stands, what it has published, and how far it is behind.

Pure: runs wherever the ledger is read. Invariant: what is unknown is None, never 0 and never empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..offsets.compare import CurrentOffset, Offsets, as_current
from ..verdict.facts import Guarantee


@dataclass(frozen=True)
class StoredWriter:
    """
    Where one writer stands: a streaming query and one sink of it.

    ``run_id`` is the owner, and ``batch_id`` the newest published batch. ``end_offsets`` says where that batch ended
    (source id to offset; a Kafka offset is the next one to read); None where it is unknown. If rows carry their
    positions, ``end_offsets`` reach as far as rows are stored, even if a batch that is run again ends before that.

    ``guarantee`` is ``offsets`` if a replay needs proof, and ``ids`` if only batch ids are compared, which is weaker.
    ``replays`` counts the proven replays that were skipped and are still recorded, and ``disagreements`` what the
    listener found to differ. A writer with ``replaced_by`` is an old one, whose place that query has taken. One with
    ``retired_at`` will publish no more. ``targets`` are the tables of the last batch, by qualified name, with their
    oids. ``target_change`` says at which batch one of them was last found to be another table than before, and how.
    ``counts`` says what became of the last batch's rows, as in :class:`StoredBatch`. ``offsets_read_by`` says how its
    checkpoint was read: by ``python`` (a disk), ``pyarrow`` or ``spark`` (another store); ``listener`` if it was not.
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

    @property
    def positions(self) -> list[CurrentOffset]:
        """One row a topic and partition for Kafka, or one a source otherwise; none if the offsets are unknown."""
        return as_current(self.end_offsets or {})


@dataclass(frozen=True)
class StoredBatch:
    """
    One published batch. Kafka's start offsets are inclusive, its end offsets exclusive; None where unknown.

    ``rows`` were published. ``dropped_rows`` were not, because an earlier batch had published them. If rows were
    applied by key, ``counts`` says what became of the published ones: written, deleted, superseded by a later change in
    the batch, passed_over because the table had something newer, not_found, or ignored. It also has unrouted, the
    number of rows that were dropped because their route is not in the list. ``tables`` has the number of rows of each
    table, if the sink writes to several.
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
    counts: dict[str, int] | None = None
    tables: dict[str, int] | None = None


@dataclass(frozen=True)
class PartitionLag:
    """
    How far one topic and partition (Kafka), or one source otherwise, is behind.

    ``lag`` counts Kafka offsets, including transaction markers. It is None if either side is unknown, if the newest
    known offset is before the stored end, or if that was read more than ten minutes ago. ``measured_at`` is when
    ``latest_offset`` was read.
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
