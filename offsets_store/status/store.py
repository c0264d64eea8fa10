"""
Where does each query stand, and where may a new one go on?

Runs wherever somebody asks: on the driver, in a notebook, behind the command line. Invariant: it only reads, and each
answer comes from one snapshot of the ledger.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pgonce.offsets_store.kafka_broker import ends_of, partitions_of
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.offsets.compare import kafka_topics
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.batch_jobs import StoredJob, newest_jobs
from pgonce.offsets_store.status.find_writer import the_writer, where_to_resume
from pgonce.offsets_store.status.lag import Newest, Status, lag_of
from pgonce.offsets_store.status.read_stored import newest_batches, newest_progress, stored_writers, writers_of
from pgonce.offsets_store.status.starting_offsets import kafka_end, starting_offsets_json
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter


class OffsetsStore:
    """
    The stored offsets of a database.

    ``query`` is always a query's id or its name. Every method may raise ConnectError, LedgerError (there is no ledger,
    or this code cannot read it), and OffsetsError (the question has no single answer).

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :raises ConfigurationError: BAD_URL.
    """

    def __init__(self, url: str = "") -> None:
        # Raises at once if the connection string cannot be read.
        engine_for(url)
        self._url = url

    def queries(self) -> list[StoredWriter]:
        """One entry a writer (a query and one of its sinks), by name and sink; replaced ones too."""
        with reading(self._url) as connection:
            return stored_writers(connection)

    def latest(self, query: str, sink: str | None = None) -> StoredWriter:
        """Where a query stands; ``sink`` is needed if it has several."""
        with reading(self._url) as connection:
            return the_writer(writers_of(connection, query, sink), query)

    def history(self, query: str, sink: str | None = None, limit: int = 20) -> list[StoredBatch]:
        """The newest ``limit`` published batches of a query, newest first: of all its sinks, or of ``sink``."""
        with reading(self._url) as connection:
            return newest_batches(connection, writers_of(connection, query, sink), limit)

    def batch_jobs(self, sink: str | None = None, batch_key: str | None = None, limit: int = 20) -> list[StoredJob]:
        """The newest ``limit`` batch jobs that were published; of one sink, or under one key, if these are given."""
        with reading(self._url) as connection:
            return newest_jobs(connection, limit, sink, batch_key)

    def starting_offsets(self, query: str, sink: str | None = None, bootstrap_servers: str | None = None) -> str:
        """
        The JSON text that Spark's Kafka source takes as ``startingOffsets``, for a new checkpoint.

        Spark wants every partition named. If partitions may have been added since, give ``bootstrap_servers``, and they
        are named too, from their earliest offset.

        :raises OffsetsError: where the query does not read exactly one source, Kafka, from one place.
        :raises ConfigurationError: NO_KAFKA_CLIENT.
        """
        with reading(self._url) as connection:
            end = kafka_end(where_to_resume(writers_of(connection, query, sink), query))
        if bootstrap_servers is None:
            return starting_offsets_json(end)
        return starting_offsets_json(end, partitions_of({topic for topic, _ in end}, bootstrap_servers))

    def lag(self, query: str, sink: str | None = None, bootstrap_servers: str | None = None) -> list[PartitionLag]:
        """
        How far a query is behind: one row a sink and topic and partition (Kafka), or a sink and source otherwise.

        The newest offsets are the broker's if ``bootstrap_servers`` is given, else those of the newest progress event
        that an OffsetsListener has stored.

        :raises ConfigurationError: NO_KAFKA_CLIENT.
        """
        return [row for _, rows in self.status_of(query, sink, bootstrap_servers) for row in rows]

    def status_of(self, query: str, sink: str | None = None, bootstrap_servers: str | None = None) -> list[Status]:
        """The writers of a query, each with its lag as :meth:`lag` gives it, in one snapshot of the ledger."""
        with reading(self._url) as connection:
            chosen = writers_of(connection, query, sink)
            newest = newest_progress(connection, [chosen[0].query_id]).get(chosen[0].query_id)
        if bootstrap_servers is not None:
            topics = {topic for writer in chosen for topic in kafka_topics(writer.end_offsets or {})}
            kafka = ends_of(topics, bootstrap_servers)
            newest = Newest(kafka, newest.other if newest else {}, datetime.now(UTC))
        return [(writer, lag_of(writer, newest)) for writer in chosen]

    def status(self) -> list[Status]:
        """Every writer with its lag, as far as progress events tell it, in one snapshot."""
        with reading(self._url) as connection:
            known = stored_writers(connection)
            newest = newest_progress(connection, [writer.query_id for writer in known])
        return [(writer, lag_of(writer, newest.get(writer.query_id))) for writer in known]
