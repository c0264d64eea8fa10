"""
Read writers, batches, batch jobs and progress events from the ledger, for people.

Runs where a user or a program asks. Invariant: it only reads, and JSON of a shape that pgonce does not write is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    RowMapping,
    Select,
    and_,
    any_,
    case,
    cast,
    desc,
    extract,
    func,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from ..errors import NoLedgerError
from ..ledger.session import reading
from ..ledger.tables import (
    batches,
    last_batches,
    progress,
    replays,
    target_changes,
    writers,
    writers_and_last_batches,
)
from ..ledger.writers import IS_LIVING, checked, meant_by
from ..offsets import Offsets, furthest
from .ends import Newest, newest_of_progress
from .stored import StoredBatch, StoredWriter, find_writers

_named = writers.alias("named")
WRITERS = (
    select(
        *(writers.c[each.name] for each in fields(StoredWriter) if each.name in {*writers.c.keys()} - {"end_offsets"}),
        writers.c.writer_id,
        writers.c.last_batch_id.label("batch_id"),
        # The listener fills in the batch's record even if the next commit keeps it from the writer's row.
        func.coalesce(writers.c.end_offsets, last_batches.c.end_offsets).label("end_offsets"),
        last_batches.c.positions.label("stored_positions"),
        select(func.count()).where(replays.c.writer_id == writers.c.writer_id).scalar_subquery().label("replays"),
        select(func.count())
        .where(progress.c.query_id == writers.c.query_id, progress.c.disagreement.is_not(None))
        .scalar_subquery()
        .label("disagreements"),
        select(func.concat("batch ", target_changes.c.batch_id, ": ", target_changes.c.change))
        .where(target_changes.c.writer_id == writers.c.writer_id)
        .order_by(desc(target_changes.c.noticed_at))
        .limit(1)
        .scalar_subquery()
        .label("target_change"),
        last_batches.c.counts,
        last_batches.c.transport,
    )
    .select_from(writers_and_last_batches)
    .order_by(writers.c.query_name.nulls_last(), writers.c.query_id, writers.c.sink_name)
)
"""Every writer, by name and sink, with what :func:`as_stored` needs."""


def stored_writers(connection: Connection) -> list[StoredWriter]:
    """Every writer of the ledger, replaced ones included, by name and sink."""
    return as_stored(connection, WRITERS)


def writers_of(connection: Connection, query: str, sink: str | None) -> list[StoredWriter]:
    """
    The writers of a query, by its id, the beginning of its id, or its name; with ``sink``, only that one.

    :raises OffsetsError: QUERY_NOT_FOUND, QUERY_AMBIGUOUS, SINK_NOT_FOUND.
    """
    # First only the query's own writers, because replays and events are counted for each writer that is read.
    ids = select(_named.c.query_id).where(meant_by(query, _named.c.query_id, _named.c.query_name))
    own = as_stored(connection, WRITERS.where(writers.c.query_id.in_(ids)))
    return find_writers(own or stored_writers(connection), query, sink)


def as_stored(connection: Connection, wanted: Select[Any]) -> list[StoredWriter]:
    """The rows of :data:`WRITERS`, or of a part of it, each with how far its tasks have stored rows."""
    rows = connection.execute(wanted).mappings().all()
    # In real-time and continuous mode, tasks go on between two records.
    of_tasks = task_positions(connection, [row["writer_id"] for row in rows])
    return [_stored_writer(row, of_tasks.get(row["writer_id"])) for row in rows]


def _stored_writer(row: RowMapping, of_tasks: Offsets | None) -> StoredWriter:
    values = checked(row)
    del values["writer_id"]
    positions = furthest(values.pop("stored_positions"), of_tasks)
    if positions:
        values["end_offsets"] = furthest(values["end_offsets"], positions) or None
    return StoredWriter(**values)


def newest_batches(
    connection: Connection, chosen: Sequence[StoredWriter], limit: int, since: datetime | None = None
) -> list[StoredBatch]:
    """The newest ``limit`` batches that the chosen writers of one query have published (``since``), newest first."""
    # Each writer's batches by their key: that is quick however many there are. There is no index on the time.
    newest = (
        select(batches)
        .where(batches.c.writer_id == writers.c.writer_id)
        .order_by(desc(batches.c.generation), desc(batches.c.batch_id))
        .limit(limit)
        .lateral("newest")
    )
    skipped = select(func.count()).where(
        replays.c.writer_id == newest.c.writer_id,
        replays.c.generation == newest.c.generation,
        replays.c.batch_id == newest.c.batch_id,
    )
    took = progress.c.durations_ms["addBatch"]
    heard = and_(
        progress.c.query_id == writers.c.query_id,
        progress.c.run_id == newest.c.run_id,
        progress.c.batch_id == newest.c.batch_id,
    )
    found = (
        select(
            writers.c.query_id,
            writers.c.sink_name,
            *(newest.c[each.name] for each in fields(StoredBatch) if each.name in newest.c),
            skipped.scalar_subquery().label("replays"),
            extract("epoch", newest.c.committed_at - newest.c.begun_at).cast(Double).label("commit_seconds"),
            case((func.jsonb_typeof(took) == "number", took.astext.cast(Double) / 1000)).label("batch_seconds"),
        )
        .select_from(writers.join(newest, true()).outerjoin(progress, heard))
        .where(
            writers.c.query_id == chosen[0].query_id,
            writers.c.sink_name.in_([writer.sink_name for writer in chosen]),
        )
        .order_by(desc(newest.c.committed_at), desc(newest.c.batch_id))
        .limit(limit)
    )
    if since is not None:
        found = found.where(newest.c.committed_at >= since)
    return [StoredBatch(**checked(row)) for row in connection.execute(found).mappings()]


def newest_progress(connection: Connection, query_ids: list[str]) -> dict[str, Newest]:
    """The newest offsets that a progress event told of each query, by its id; none if no event told any."""
    # Not DISTINCT ON or row_number(): both would read all events of all queries, to keep one of each query.
    newest = (
        select(progress.c.latest_offsets, progress.c.progress_at)
        .where(progress.c.query_id == writers.c.query_id)
        .order_by(desc(progress.c.progress_at), desc(progress.c.batch_id))
        .limit(1)
        .lateral("newest")
    )
    heard = select(writers.c.query_id, newest).join_from(writers, newest, true())
    rows = map(checked, connection.execute(heard.where(writers.c.query_id.in_(query_ids))).mappings())
    return {
        row["query_id"]: newest_of_progress(row["latest_offsets"], row["progress_at"])
        for row in rows
        if row["latest_offsets"] is not None
    }


@dataclass(frozen=True)
class LastWritten:
    """
    One sink of a query: its last batch, and how that was written into each table, by the table's qualified name.

    ``tables`` is empty where no batch has recorded it. ``oids`` are those of the tables that rows were written to.
    """

    sink_name: str
    batch_id: int
    tables: Mapping[str, Any]
    oids: Mapping[str, int] | None = None


def last_written(url: str, query_id: str) -> list[LastWritten]:
    """
    What the ledger has of each living sink of the query; nothing if there is no ledger.

    :raises LedgerError: if the ledger cannot be read.
    """
    found = select(writers.c.sink_name, writers.c.last_batch_id, writers.c.written_as, writers.c.targets).where(
        writers.c.query_id == query_id, IS_LIVING
    )
    try:
        with reading(url) as connection:
            rows = connection.execute(found.order_by(writers.c.sink_name)).all()
    except NoLedgerError:
        return []
    return [LastWritten(row.sink_name, row.last_batch_id, _tables(row.written_as), row.targets) for row in rows]


def _tables(written_as: Any) -> Mapping[str, Any]:
    tables = written_as.get("tables") if isinstance(written_as, Mapping) else None
    return tables if isinstance(tables, Mapping) else {}


def task_positions(connection: Connection, writer_ids: Sequence[int]) -> dict[int, Offsets]:
    """How far the tasks of those writers have stored rows that run in real time, or did so last."""
    if not writer_ids:
        return {}
    stored = select(writers.c.writer_id, func.pgonce.real_time_positions(writers.c.writer_id, type_=JSONB))
    # One array: of single parameters there are at most 65,535.
    found = connection.execute(stored.where(writers.c.writer_id == any_(cast(writer_ids, ARRAY(BigInteger)))))
    return {writer_id: positions for writer_id, positions in found if positions is not None}
