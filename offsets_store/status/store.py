"""
Where does each query stand, and where may a new one go on?

Runs wherever somebody asks: on the driver, in a notebook, behind the command line. Invariant: it only reads, each
answer in one snapshot of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy.exc
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, desc, func, or_, select, true

from pgonce.offsets_store.ledger.migrations import require_ledger
from pgonce.offsets_store.ledger.tables import batches, progress, replays, target_changes, writers
from pgonce.offsets_store.offsets.compare import kafka_partitions
from pgonce.offsets_store.offsets.positions import furthest
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import checked_out, engine_for
from pgonce.offsets_store.postgres.translate import driver_error, ledger_error
from pgonce.offsets_store.status.find_writer import find_writers, the_writer, where_to_resume
from pgonce.offsets_store.status.kafka_broker import ends_of, partitions_of
from pgonce.offsets_store.status.lag import Newest, lag_of, newest_of_progress
from pgonce.offsets_store.status.starting_offsets import kafka_end, starting_offsets_json
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter

Status = tuple[StoredWriter, list[PartitionLag]]


class OffsetsStore:
    """
    The stored offsets of a database.

    ``query`` is a query's id or its name everywhere. Every method raises ConnectError, LedgerError (there is no
    ledger, or not one that this code can read), and OffsetsError where the question has no single answer.

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :raises ConfigurationError: BAD_URL.
    """

    def __init__(self, url: str = "") -> None:
        # Said at once where the connection string cannot be read.
        engine_for(url)
        self._url = url

    def queries(self) -> list[StoredWriter]:
        """One entry a writer (a query and one of its sinks), replaced ones included, by name and sink."""
        with self._reading() as connection:
            return _writers(connection)

    def latest(self, query: str, sink: str | None = None) -> StoredWriter:
        """Where a query stands; ``sink`` is needed where it has several."""
        with self._reading() as connection:
            return the_writer(_writers_of(connection, query, sink), query)

    def history(self, query: str, sink: str | None = None, limit: int = 20) -> list[StoredBatch]:
        """The newest ``limit`` published batches of a query, newest first, all its sinks unless one is named."""
        with self._reading() as connection:
            chosen = _writers_of(connection, query, sink)
            wanted = and_(
                writers.c.query_id == chosen[0].query_id,
                writers.c.sink_name.in_([writer.sink_name for writer in chosen]),
            )
            return [StoredBatch(**row._mapping) for row in connection.execute(_newest_batches(wanted, limit))]

    def starting_offsets(self, query: str, sink: str | None = None, bootstrap_servers: str | None = None) -> str:
        """
        The JSON text that Spark's Kafka source takes as ``startingOffsets``, for a new checkpoint.

        Spark wants every partition named: give ``bootstrap_servers`` where partitions may have been added since, and
        they are named too, from their earliest offset.

        :raises OffsetsError: where the query does not read exactly one source, Kafka, from one place.
        :raises ConfigurationError: NO_KAFKA_CLIENT.
        """
        with self._reading() as connection:
            end = kafka_end(where_to_resume(_writers_of(connection, query, sink), query))
        if bootstrap_servers is None:
            return starting_offsets_json(end)
        return starting_offsets_json(end, partitions_of({topic for topic, _ in end}, bootstrap_servers))

    def lag(self, query: str, sink: str | None = None, bootstrap_servers: str | None = None) -> list[PartitionLag]:
        """
        How far a query is behind: one row a sink, topic and partition (Kafka), or a source otherwise.

        The newest offsets are the broker's where ``bootstrap_servers`` is given, else those of the newest progress
        event that an OffsetsListener has stored.

        :raises ConfigurationError: NO_KAFKA_CLIENT.
        """
        return [row for _, rows in self.status_of(query, sink, bootstrap_servers) for row in rows]

    def status_of(self, query: str, sink: str | None = None, bootstrap_servers: str | None = None) -> list[Status]:
        """The writers of a query, each with its lag as :meth:`lag` gives it, in one snapshot of the ledger."""
        with self._reading() as connection:
            chosen = _writers_of(connection, query, sink)
            newest = _newest_progress(connection, [chosen[0].query_id]).get(chosen[0].query_id)
        if bootstrap_servers is not None:
            topics = {topic for writer in chosen for topic, _ in kafka_partitions(writer.end_offsets or {})}
            kafka = ends_of(topics, bootstrap_servers)
            newest = Newest(kafka, newest.other if newest else {}, datetime.now(UTC))
        return [(writer, lag_of(writer, newest)) for writer in chosen]

    def status(self) -> list[Status]:
        """Every writer with its lag as far as progress events tell, in one snapshot."""
        with self._reading() as connection:
            known = _writers(connection)
            newest = _newest_progress(connection, [writer.query_id for writer in known])
        return [(writer, lag_of(writer, newest.get(writer.query_id))) for writer in known]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with checked_out(self._url) as pooled:
                connection = pooled.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with connection.begin():
                    raw = connection.connection.driver_connection
                    assert isinstance(raw, psycopg.Connection)  # noqa: S101 (narrows the type)
                    enter_in_tx(raw)
                    require_ledger(raw)
                    yield connection
        except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
            cause = driver_error(error)
            if cause is None:
                raise
            raise ledger_error(cause, "reading the ledger") from error


_last = batches.alias("last")
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
        # The listener fills the batch's record even where the next commit keeps it from the writer's row.
        func.coalesce(writers.c.end_offsets, _last.c.end_offsets).label("end_offsets"),
        _last.c.positions.label("stored_positions"),
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
    )
    .select_from(
        writers.outerjoin(
            _last,
            and_(
                _last.c.writer_id == writers.c.writer_id,
                _last.c.generation == writers.c.generation,
                _last.c.batch_id == writers.c.last_batch_id,
            ),
        )
    )
    .order_by(writers.c.query_name.nulls_last(), writers.c.query_id, writers.c.sink_name)
)


def _newest_batches(wanted: ColumnElement[bool], limit: int) -> Select[Any]:
    # Of each writer by its key, which is quick however many records there are; there is no index on the time.
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
    return (
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
        )
        .join_from(writers, newest, true())
        .where(wanted)
        .order_by(desc(newest.c.committed_at), desc(newest.c.batch_id))
        .limit(limit)
    )


def _writers(connection: Connection) -> list[StoredWriter]:
    return _as_stored(connection.execute(_WRITERS))


def _as_stored(rows: Iterable[Row[Any]]) -> list[StoredWriter]:
    found = []
    for row in rows:
        values = dict(row._mapping)
        positions = values.pop("stored_positions")
        if positions is not None:
            values["end_offsets"] = furthest(values["end_offsets"], positions) or None
        found.append(StoredWriter(**values))
    return found


def _writers_of(connection: Connection, query: str, sink: str | None) -> list[StoredWriter]:
    # Only the query's own first: replays and events are counted for each writer that is read.
    ids = select(_named.c.query_id).where(or_(_named.c.query_id == query, _named.c.query_name == query))
    own = _as_stored(connection.execute(_WRITERS.where(writers.c.query_id.in_(ids))))
    return find_writers(own or _writers(connection), query, sink)


def _newest_progress(connection: Connection, query_ids: list[str]) -> dict[str, Newest]:
    # Not DISTINCT ON or row_number(): both read all events of all queries, to keep one of each.
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
