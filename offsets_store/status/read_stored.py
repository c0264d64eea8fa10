"""
Read writers, batches and progress events from the ledger, for people.

Runs wherever somebody asks. Invariant: it only reads. The writer that a person means, by a query's name, its id, or the
beginning of its id, is the only one possible; else an OffsetsError lists all. A writer that was replaced is never taken
for the one that took its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Result, desc, func, select, true

from ..errors import UNCHANGED, LedgerError, OffsetsError, PgonceError
from ..ledger.named_query import is_meant, meant_by
from ..ledger.neighbours import IS_LIVING
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
from ..offsets.compare import same
from ..offsets.positions import furthest
from .ends import Newest, newest_of_progress
from .stored import StoredBatch, StoredWriter

_named = writers.alias("named")
_WRITERS = (
    select(
        writers.c.query_id,
        writers.c.query_name,
        writers.c.sink_name,
        writers.c.checkpoint_location,
        writers.c.run_id,
        writers.c.generation,
        writers.c.last_batch_id.label("batch_id"),
        # The listener fills in the batch's record even if the next commit keeps it from the writer's row.
        func.coalesce(writers.c.end_offsets, last_batches.c.end_offsets).label("end_offsets"),
        last_batches.c.positions.label("stored_positions"),
        writers.c.guarantee,
        select(func.count()).where(replays.c.writer_id == writers.c.writer_id).scalar_subquery().label("replays"),
        select(func.count())
        .where(progress.c.query_id == writers.c.query_id, progress.c.disagreement.is_not(None))
        .scalar_subquery()
        .label("disagreements"),
        writers.c.replaces,
        writers.c.replaced_by,
        writers.c.retired_at,
        writers.c.created_at,
        writers.c.updated_at,
        writers.c.targets,
        select(func.concat("batch ", target_changes.c.batch_id, ": ", target_changes.c.change))
        .where(target_changes.c.writer_id == writers.c.writer_id)
        .order_by(desc(target_changes.c.noticed_at))
        .limit(1)
        .scalar_subquery()
        .label("target_change"),
        last_batches.c.counts,
        writers.c.offsets_read_by,
    )
    .select_from(writers_and_last_batches)
    .order_by(writers.c.query_name.nulls_last(), writers.c.query_id, writers.c.sink_name)
)


def stored_writers(connection: Connection) -> list[StoredWriter]:
    """Every writer of the ledger, replaced ones included, by name and sink."""
    return _as_stored(connection.execute(_WRITERS))


def writers_of(connection: Connection, query: str, sink: str | None) -> list[StoredWriter]:
    """
    The writers of a query, by its id, the beginning of its id, or its name; with ``sink``, only that one.

    :raises OffsetsError: QUERY_NOT_FOUND, QUERY_AMBIGUOUS, SINK_NOT_FOUND.
    """
    # First only the query's own writers, because replays and events are counted for each writer that is read.
    ids = select(_named.c.query_id).where(meant_by(query, _named.c.query_id, _named.c.query_name))
    own = _as_stored(connection.execute(_WRITERS.where(writers.c.query_id.in_(ids))))
    return find_writers(own or stored_writers(connection), query, sink)


def _as_stored(rows: Result[Any]) -> list[StoredWriter]:
    found = []
    for row in rows.mappings():
        values = dict(row)
        positions = values.pop("stored_positions")
        if positions is not None:
            values["end_offsets"] = furthest(values["end_offsets"], positions) or None
        found.append(StoredWriter(**values))
    return found


def newest_batches(connection: Connection, chosen: Sequence[StoredWriter], limit: int) -> list[StoredBatch]:
    """The newest ``limit`` batches that the chosen writers of one query have published, the newest first."""
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
    found = (
        select(
            writers.c.query_id,
            writers.c.sink_name,
            newest.c.generation,
            newest.c.batch_id,
            newest.c.run_id,
            newest.c.start_offsets,
            newest.c.end_offsets,
            newest.c.rows,
            newest.c.dropped_rows,
            newest.c.transport,
            skipped.scalar_subquery().label("replays"),
            newest.c.committed_at,
            newest.c.counts,
            newest.c.tables,
        )
        .join_from(writers, newest, true())
        .where(
            writers.c.query_id == chosen[0].query_id,
            writers.c.sink_name.in_([writer.sink_name for writer in chosen]),
        )
        .order_by(desc(newest.c.committed_at), desc(newest.c.batch_id))
        .limit(limit)
    )
    return [StoredBatch(**row) for row in connection.execute(found).mappings()]


def newest_progress(connection: Connection, query_ids: list[str]) -> dict[str, Newest]:
    """The newest offsets that a progress event told of each query, by its id; none where no event told any."""
    # Not DISTINCT ON or row_number(): both would read all events of all queries, to keep one of each query.
    newest = (
        select(progress.c.latest_offsets, progress.c.progress_at)
        .where(progress.c.query_id == writers.c.query_id)
        .order_by(desc(progress.c.progress_at), desc(progress.c.batch_id))
        .limit(1)
        .lateral("newest")
    )
    heard = select(writers.c.query_id, newest).join_from(writers, newest, true())
    return {
        row.query_id: newest_of_progress(row.latest_offsets, row.progress_at)
        for row in connection.execute(heard.where(writers.c.query_id.in_(query_ids)))
        if row.latest_offsets is not None
    }


def find_writers(writers: Sequence[StoredWriter], query: str, sink: str | None = None) -> list[StoredWriter]:
    """
    The writers of a query, by its id, the beginning of its id, or its name; with ``sink``, only that one.

    :raises OffsetsError: QUERY_NOT_FOUND, QUERY_AMBIGUOUS, SINK_NOT_FOUND.
    """
    found = [writer for writer in writers if writer.query_id == query] or _by_name(writers, query)
    if sink is None:
        return found
    chosen = [writer for writer in found if writer.sink_name == sink]
    if not chosen:
        raise OffsetsError(
            "SINK_NOT_FOUND",
            f"Query {query!r} has no sink {sink!r} in this ledger.",
            UNCHANGED,
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


def where_to_resume(found: Sequence[StoredWriter], query: str) -> StoredWriter:
    """
    A writer whose end is where the query may go on, for all its sinks.

    :raises OffsetsError: REPLACED, SINK_NEEDED.
    """
    living = [writer for writer in found if writer.replaced_by is None]
    if not living:
        successor = found[0].replaced_by
        raise OffsetsError(
            "REPLACED",
            f"Query {query!r} was replaced by query {successor}, which has continued from where it ended.",
            UNCHANGED,
            f"Ask for the offsets of {successor}.",
        )
    first = living[0]
    if any(not same(first.end_offsets, other.end_offsets) for other in living[1:]):
        raise _sink_needed(living, query, "several sinks that do not stand at the same offsets")
    return first


def _by_name(writers: Sequence[StoredWriter], name: str) -> list[StoredWriter]:
    named = [writer for writer in writers if is_meant(name, writer.query_id, writer.query_name)]
    # A query that took another's place usually has its name too; then only the new one can be meant.
    in_place = [writer for writer in named if writer.replaced_by is None]
    candidates = [writer for writer in in_place if writer.retired_at is None] or in_place or named
    ids = sorted({writer.query_id for writer in candidates})
    if len(ids) > 1:
        raise OffsetsError(
            "QUERY_AMBIGUOUS",
            f"{len(ids)} queries have the name {name!r}, or an id that begins so.",
            UNCHANGED,
            f"Give the id of one of them: {'; '.join(map(_described, candidates))}.",
        )
    if not ids:
        there = "; ".join(sorted({f"{writer.query_id} ({writer.query_name or 'no name'})" for writer in writers}))
        raise OffsetsError(
            "QUERY_NOT_FOUND",
            f"No query of this ledger has the name or id {name!r}, or an id that begins so.",
            UNCHANGED,
            f"It knows: {there}." if there else "It knows no query at all: nothing has been published yet.",
        )
    return [writer for writer in writers if writer.query_id == ids[0]]


def _sink_needed(found: Sequence[StoredWriter], query: str, what: str) -> OffsetsError:
    sinks = "; ".join(f"{writer.sink_name} (batch {writer.batch_id})" for writer in found)
    return OffsetsError(
        "SINK_NEEDED",
        f"Query {query!r} has {what}: {sinks}.",
        UNCHANGED,
        "Name one of them: sink=... in Python, --sink in the shell.",
    )


def _described(writer: StoredWriter) -> str:
    when = f"{writer.updated_at:%Y-%m-%d %H:%M}"
    return f"{writer.query_id} (sink {writer.sink_name}, last batch {writer.batch_id} at {when})"


def who_feeds(url: str, table: str, sink_name: str | None = None) -> list[StoredWriter]:
    """The living writers of a sink or of a table, whose name may lack its schema; none if they cannot be read."""
    try:
        with reading(url) as connection:
            known = stored_writers(connection)
    except PgonceError:
        return []
    return [
        writer
        for writer in known
        if writer.batch_id is not None and writer.replaced_by is None and writer.retired_at is None
        if writer.sink_name == sink_name
        or any(name == table or name.endswith(f".{table}") for name in (writer.sink_name, *(writer.targets or {})))
    ]


@dataclass(frozen=True)
class LastWritten:
    """
    One sink of a query: its last batch, and how that was written into each table, by the table's qualified name.

    ``tables`` is empty where no batch has recorded it.
    """

    sink_name: str
    batch_id: int
    tables: Mapping[str, Any]


def last_written(url: str, query_id: str) -> list[LastWritten]:
    """
    What the ledger has of each living sink of the query; nothing where there is no ledger.

    :raises LedgerError: where the ledger cannot be read.
    """
    found = select(writers.c.sink_name, writers.c.last_batch_id, writers.c.written_as).where(
        writers.c.query_id == query_id, IS_LIVING
    )
    try:
        with reading(url) as connection:
            rows = connection.execute(found.order_by(writers.c.sink_name)).all()
    except LedgerError as error:
        if error.code == "NO_LEDGER":
            return []
        raise
    return [LastWritten(row.sink_name, row.last_batch_id, _tables(row.written_as)) for row in rows]


def _tables(written_as: Any) -> Mapping[str, Any]:
    tables = written_as.get("tables") if isinstance(written_as, Mapping) else None
    return tables if isinstance(tables, Mapping) else {}
