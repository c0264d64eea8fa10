"""
Which queries feed the two tables that are to be exchanged, and under which names do they go on?

Runs in the command ``pgonce swap``. Invariant: a writer goes on with the table that has its rows, whatever that table
is called: its next batch is refused until the query is told the new name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, select, update

from ..ledger.feeders import feeders_in_tx
from ..ledger.neighbours import NEIGHBOURS
from ..ledger.tables import batches, interventions, writers
from ..offsets.compare import Offsets
from ..offsets.positions import furthest
from ..postgres.connect import driver_connection
from .caught_up import Reach
from .described_table import Table


@dataclass(frozen=True)
class Feeding:
    """
    A living writer of one of the tables. ``oid`` is the table that has its rows.

    ``swapped_from`` is its sink's name before a swap after which it has not published anything. ``swap`` is the newest
    swap of its table, None if there was none, or if that has undone the one before.
    """

    writer_id: int
    query_id: str
    query_name: str | None
    sink_name: str
    oid: int
    last_batch_id: int
    reach: Reach
    targets: dict[str, int]
    swapped_from: str | None
    swap: str | None

    @property
    def label(self) -> str:
        """The query as people know it."""
        return f"query {self.query_id} ({self.query_name or 'no name'}), sink {self.sink_name!r}"


def feeding(connection: Connection, table: Table, *, lock: bool = False) -> list[Feeding]:
    """The living writers of a table, in the order of their keys; with their rows locked, if that is wanted."""
    found = feeders_in_tx(driver_connection(connection), table.oid, table.qualified_name, lock=lock)
    ids = [feeder.writer_id for feeder in found]
    rows = connection.execute(NEIGHBOURS.where(writers.c.writer_id.in_(ids)).order_by(writers.c.writer_id))
    return [_feeding(connection, row, table.oid) for row in rows.mappings().all()]


def _feeding(connection: Connection, row: RowMapping, oid: int) -> Feeding:
    newest = (
        select(interventions.c.details)
        .where(interventions.c.writer_id == row["writer_id"], interventions.c.kind == "swap")
        .order_by(interventions.c.intervention_id.desc())
        .limit(1)
    )
    details = connection.execute(newest).scalar_one_or_none()
    end = row["end_offsets"] or row["last_end"]
    return Feeding(
        row["writer_id"],
        row["query_id"],
        row["query_name"],
        row["sink_name"],
        oid,
        row["last_batch_id"],
        Reach(
            end if row["positions"] is None else furthest(end, row["positions"]),
            row["topic_ids"] or {},
            _start(connection, row["writer_id"]),
        ),
        row["targets"] or {},
        row["swapped_from"],
        None if not details or details["back"] else details["swap"],
    )


def _start(connection: Connection, writer_id: int) -> Offsets | None:
    """
    Where the first batch of the rows of a table began, which may be that of a query whose place the writer took.

    None where that is not recorded, or not any more; or where the query has run with another sink before.
    """
    seen = set()
    while writer_id not in seen:
        seen.add(writer_id)
        writer = connection.execute(select(writers).where(writers.c.writer_id == writer_id)).one()
        over = select(interventions.c.intervention_id).where(
            interventions.c.writer_id == writer_id, interventions.c.kind == "start-over"
        )
        if writer.replaces is None or connection.execute(over.limit(1)).one_or_none():
            break
        earlier = select(writers.c.writer_id).where(
            writers.c.query_id == writer.replaces, writers.c.replaced_by == writer.query_id
        )
        found = connection.execute(earlier).scalars().all()
        if len(found) != 1:
            return None
        writer_id = found[0]
    first = select(batches.c.start_offsets).where(
        batches.c.writer_id == writer_id,
        batches.c.generation == 0,
        batches.c.batch_id == 0,
        # Another sink has written that one's rows.
        batches.c.transport != "adopted",
    )
    start: Offsets | None = connection.execute(first).scalar_one_or_none()
    return start


def refused_feeding(
    connection: Connection, living: Sequence[Feeding], new: Sequence[Feeding], names: dict[int, str]
) -> list[str]:
    """Why these writers cannot go on with their tables under other ``names``, in words."""
    if not living and not new:
        return ["pgonce feeds neither of them; to exchange tables of others, rename them"]
    both = {feeder.writer_id for feeder in living} & {feeder.writer_id for feeder in new}
    queries = {feeder.query_id for feeder in living} & {feeder.query_id for feeder in new}
    reasons = [f"query {query} feeds both of them" for query in sorted(queries)]
    reasons += [
        f"{feeder.label} writes to several tables in one transaction: {', '.join(feeder.targets)}"
        for feeder in (*living, *new)
        if len(feeder.targets) > 1 and feeder.writer_id not in both
    ]
    return reasons + _known_under_both(connection, (*living, *new), names)


def _known_under_both(connection: Connection, feeders: Sequence[Feeding], names: dict[int, str]) -> list[str]:
    """The queries that have a retired or replaced writer of the name under which they would go on."""
    found = connection.execute(
        select(writers.c.query_id, writers.c.sink_name)
        .where(writers.c.query_id.in_([feeder.query_id for feeder in feeders]))
        .where(writers.c.sink_name.in_(list(names.values())))
        .where(writers.c.writer_id.not_in([feeder.writer_id for feeder in feeders]))
    )
    return [f"query {row.query_id} has fed {row.sink_name}, too, before it was retired there" for row in found]


def follow(connection: Connection, feeder: Feeding, names: dict[int, str]) -> str:
    """
    Let a writer go on with its table under the name that it has now, and return its sink's name.

    :param names: the new qualified name of each table.
    """
    one, other = names.values()
    sink = {one: other, other: one}.get(feeder.sink_name, feeder.sink_name)
    connection.execute(
        update(writers)
        .where(writers.c.writer_id == feeder.writer_id)
        .values(sink_name=sink, targets={names[feeder.oid]: feeder.oid}, swapped_from=feeder.sink_name)
    )
    return sink
