"""
Tell where each query stands, and where a new one may go on.

Runs where a user or a program asks: on the driver, in a notebook, behind the command line. Invariant: it only reads,
and each answer comes from one snapshot of the ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone

from ..errors import ConnectError, LedgerError, bad_option
from ..kafka.partitions import partitions_of
from ..kafka.settings import brokers
from ..ledger.session import reading
from ..postgres.connect import engine_for
from ..postgres.postgres_url import PostgresUrl
from ..postgres.translate import passes
from .dead_letters import StoredLetter, as_letters, letters_of
from .ends import (
    RecordOffsets,
    Status,
    has_reached,
    kafka_end,
    lag_of,
    living_writers,
    parse_records,
    starting_offsets_json,
)
from .failures import StoredFailure, stored_failures
from .measure import measure_partitions
from .read_stored import newest_batches, newest_progress, stored_writers, writers_of
from .states import Finding, MeasuredLag, QueryState, read_states
from .stored import StoredBatch, StoredWriter, the_writer, where_to_resume

# Between two looks of wait_for; the function in SQL has the same pauses.
LONGEST_PAUSE_SECONDS = 0.1


class OffsetsStore:
    """
    The stored offsets of a database.

    ``query`` is always a query's id or its name. Every method may raise ConnectError, LedgerError (there is no ledger,
    or this code cannot read it), and OffsetsError (the question has no single answer).

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param password_from: ``module:function`` that returns the password for each new connection.
    :raises ConfigurationError: BAD_URL, or a source of passwords that cannot be read.
    """

    def __init__(self, url: str = "", *, password_from: str | None = None) -> None:
        self._url = PostgresUrl(url, password_from)
        # Raises at once if the connection string cannot be read.
        engine_for(self._url)

    def queries(self) -> list[StoredWriter]:
        """One entry a writer (a query and one of its sinks), by name and sink; replaced ones too."""
        with reading(self._url) as connection:
            return stored_writers(connection)

    def states(self, measured: Sequence[MeasuredLag] = ()) -> list[QueryState]:
        """
        What every query is doing: one entry a query and sink, by name, also if it has published nothing yet.

        :param measured: what :meth:`measured_lag` has found; it counts for the states too.
        """
        return read_states(self._url, measured)[0]

    def health(self, measured: Sequence[MeasuredLag] = ()) -> list[Finding]:
        """What needs attention, what is critical first; empty if all is well."""
        return read_states(self._url, measured)[1]

    def measured_lag(self, bootstrap_servers: str, kafka_options: Mapping[str, str] | None = None) -> list[MeasuredLag]:
        """
        How far queries are behind these brokers, in records, in seconds, and against the topic's retention.

        Queries that read other brokers' topics, or something else than Kafka, are left out.

        :raises ConfigurationError: NOT_INSTALLED.
        """
        kafka = brokers(bootstrap_servers, kafka_options)
        return [one.total for one in measure_partitions(self._url, kafka)] if kafka else []

    def failures(self, since: datetime | None = None, query: str | None = None) -> list[StoredFailure]:
        """
        What went wrong, across queries, the newest first: the newest hundred of each query are kept.

        :param since: only what was seen at this time or later; a time without a zone is this machine's.
        """
        with reading(self._url) as connection:
            return stored_failures(connection, since.astimezone() if since else None, query)

    def latest(self, query: str, sink: str | None = None) -> StoredWriter:
        """Where a query stands; ``sink`` is needed if it has several."""
        with reading(self._url) as connection:
            return the_writer(writers_of(connection, query, sink), query)

    def history(
        self, query: str, sink: str | None = None, limit: int = 20, since: datetime | None = None
    ) -> list[StoredBatch]:
        """
        The newest ``limit`` published batches of a query, newest first: of all its sinks, or of ``sink``.

        :param since: only batches that were published since then, with a zone.
        """
        with reading(self._url) as connection:
            return newest_batches(connection, writers_of(connection, query, sink), limit, since)

    def dead_letters(
        self,
        query: str,
        sink: str | None = None,
        limit: int = 20,
        *,
        code: str | None = None,
        ids: Collection[int] = (),
    ) -> list[StoredLetter]:
        """
        The newest ``limit`` rows that a query has put aside (``deadLetters``), newest first.

        :param code: only those with this SQLSTATE, or this code of pgonce.
        :param ids: only these, if any are given.
        """
        with reading(self._url) as connection:
            keys = [(writer.query_id, writer.sink_name) for writer in writers_of(connection, query, sink)]
            return as_letters(connection, letters_of(keys, ids=ids, code=code, newest=limit))

    def starting_offsets(
        self,
        query: str,
        sink: str | None = None,
        bootstrap_servers: str | None = None,
        kafka_options: Mapping[str, str] | None = None,
    ) -> str:
        """
        The JSON text that Spark's Kafka source takes as ``startingOffsets``, for a new checkpoint.

        Spark wants every partition named. If partitions may have been added since, give ``bootstrap_servers``, and they
        are named too, from their earliest offset.

        :raises OffsetsError: if the query does not read exactly one source, Kafka, from one place.
        :raises ConfigurationError: NOT_INSTALLED.
        """
        kafka = brokers(bootstrap_servers, kafka_options)
        with reading(self._url) as connection:
            end = kafka_end(where_to_resume(writers_of(connection, query, sink), query))
        if kafka is None:
            return starting_offsets_json(end)
        return starting_offsets_json(end, partitions_of({topic for topic, _ in end}, kafka))

    def status_of(self, query: str, sink: str | None = None) -> list[Status]:
        """
        The writers of a query, each with its lag by topic and partition (Kafka), or by source, in one snapshot.

        The newest offsets are those of the newest progress event that an OffsetsListener has stored. If that event is
        older than ten minutes, the lag is unknown.
        """
        with reading(self._url) as connection:
            chosen = writers_of(connection, query, sink)
            newest = newest_progress(connection, [chosen[0].query_id]).get(chosen[0].query_id)
        return [(writer, lag_of(writer, newest, datetime.now(timezone.utc))) for writer in chosen]

    def wait_for(self, query: str, offsets: RecordOffsets, timeout: float = 10, sink: str | None = None) -> bool:
        """
        Wait until the rows of these Kafka records are in Postgres, to read your own writes.

        ``offsets`` are those of the records, as a producer returns them: ``{"orders": {0: 41}}``. Of several sinks, all
        have to hold the rows, or ``sink``. Each look at the ledger is a short transaction of its own; one that fails
        for a reason that passes, such as a lost connection, is followed by others.

        :param timeout: seconds; 0 looks once.
        :return: whether the rows are in. After the timeout it is False.
        :raises ConfigurationError: BAD_OPTION, for other ``offsets``, or a ``timeout`` that is not a number.
        :raises ConnectError: if Postgres was unavailable at the last look; LedgerError, if the ledger was locked then.
        """
        records = parse_records(offsets)
        if math.isnan(timeout):
            raise bad_option("BAD_OPTION", "The timeout is not a number (nan).", "Give seconds; 0 looks once.")
        until = time.monotonic() + timeout
        pauses = [0.005, 0.01, 0.02, 0.05, LONGEST_PAUSE_SECONDS]
        while True:
            is_over = time.monotonic() >= until
            try:
                with reading(self._url) as connection:
                    found = living_writers(writers_of(connection, query, sink), query)
            except (ConnectError, LedgerError) as error:
                if is_over or not passes(error):
                    raise
            else:
                if has_reached(found, records):
                    return True
                if is_over:
                    return False
            time.sleep(max(0, min(until - time.monotonic(), pauses.pop(0) if len(pauses) > 1 else pauses[0])))

    def status(self) -> list[Status]:
        """Every writer with its lag, as far as progress events tell it, in one snapshot."""
        with reading(self._url) as connection:
            known = stored_writers(connection)
            newest = newest_progress(connection, [writer.query_id for writer in known])
        now = datetime.now(timezone.utc)
        return [(writer, lag_of(writer, newest.get(writer.query_id), now)) for writer in known]
