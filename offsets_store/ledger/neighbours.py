"""
Which other queries feed the same sink, or one of its tables?

Runs in the commit of a writer that the ledger does not know yet, and in recoveries. Invariant: only a writer that has
published counts, and how far it has stored is taken from its rows' positions too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, and_, cast, exists, func, literal, or_, select
from sqlalchemy.dialects import postgresql

from ..offsets.positions import furthest
from ..verdict.facts import Batch
from ..verdict.reads import recorded_reads
from ..verdict.rivals import Neighbour
from .tables import last_batches, writers, writers_and_last_batches

# Writers that may publish, and have published. A first batch that was rolled back leaves nothing that counts.
IS_LIVING = and_(writers.c.last_batch_id.is_not(None), writers.c.replaced_by.is_(None), writers.c.retired_at.is_(None))
NEIGHBOURS = select(
    writers, last_batches.c.positions, last_batches.c.topic_ids, last_batches.c.end_offsets.label("last_end")
).select_from(writers_and_last_batches)


def neighbours_in_tx(connection: Connection, batch: Batch, replaces: str | None) -> tuple[Neighbour, ...]:
    """
    The other queries that feed this sink or its tables, and the one that is to be replaced, whatever became of it.

    A table that was renamed since is found by its oid, one that was created again by its name. A writer whose tables
    are not known before it writes to them is found once it has.
    """
    same_sink = writers.c.sink_name == batch.sink_name
    has_published = writers.c.last_batch_id.is_not(None)
    theirs = NEIGHBOURS.where(
        writers.c.query_id != batch.query_id,
        or_(
            and_(IS_LIVING, or_(same_sink, *_feeds(batch.tables))),
            and_(same_sink, has_published, writers.c.query_id == literal(replaces)),
        ),
    )
    return tuple(map(neighbour, connection.execute(theirs)))


def _feeds(tables: Mapping[str, int | None]) -> list[ColumnElement[bool]]:
    """The ways to find the writers of these tables."""
    if not tables:
        return []
    names, oids = list(tables), [oid for oid in tables.values() if oid is not None]
    written = func.jsonb_each_text(writers.c.targets).table_valued("key", "value")
    return [
        writers.c.sink_name.in_(names),
        writers.c.targets.has_any(postgresql.array(names)),
        exists().select_from(written).where(cast(written.c.value, BigInteger).in_(oids)),
    ]


def neighbour(row: Row[Any]) -> Neighbour:
    """A row of :data:`NEIGHBOURS`."""
    end = row.end_offsets or row.last_end
    return Neighbour(
        row.query_id,
        row.query_name,
        row.checkpoint_location,
        # A batch that was run again may end before what is stored.
        end if row.positions is None else furthest(end, row.positions),
        recorded_reads(row.sources),
        row.topic_ids,
        row.replaced_by,
        row.sink_name,
    )
