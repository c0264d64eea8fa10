"""
Read all that the ledger has of one query and sink, in one statement: for a screen or a page that is read again often.

Runs where a user or a program asks. Invariant: it only reads, and it shows no statement of another session, which may
have values of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, text

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class RecentBatch:
    """One of the newest batches that were published."""

    batch_id: int
    generation: int
    rows: int
    dropped_rows: int
    transport: str
    counts: dict[str, int] | None
    replays: int
    committed_at: datetime
    commit_seconds: float | None = None


@dataclass(frozen=True)
class Position:
    """Where the query stands in one topic and partition, or in one source; ``lag`` is None where it is unknown."""

    source: str
    topic: str | None
    partition: int | None
    end_offset: Any
    latest_offset: Any
    lag: int | None


@dataclass(frozen=True)
class RecentFailure:
    """Something that went wrong, of this sink or of the whole query."""

    code: str
    message: str
    batch_id: int | None
    seen_by: str
    attempts: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class RecentLetter:
    """One of the newest dead letters, without the row."""

    dead_letter_id: int
    batch_id: int
    target: str
    column_name: str | None
    code: str
    message: str
    made_at: datetime


@dataclass(frozen=True)
class LockHolder:
    """A session for which a session of the query waits; ``since`` is when its transaction began."""

    pid: int
    application: str
    user: str | None
    state: str | None
    since: datetime | None


@dataclass(frozen=True)
class QueryDetails:
    """All that is known of one query and sink, the newest first; ``measured_at`` is when the latest offsets were."""

    checkpoint_location: str | None
    measured_at: datetime | None
    batches: tuple[RecentBatch, ...] = ()
    positions: tuple[Position, ...] = ()
    failures: tuple[RecentFailure, ...] = ()
    dead_letters: tuple[RecentLetter, ...] = ()
    lock_holders: tuple[LockHolder, ...] = ()


# A lag is a number only if the event that told the latest offsets is younger than ten minutes, as in pgonce.queries.
_EVERYTHING = text("""
SELECT w.checkpoint_location, p.progress_at AS measured_at,
       (SELECT jsonb_agg(to_jsonb(b)) FROM (
            SELECT b.batch_id, b.generation, b.rows, b.dropped_rows, b.transport, b.counts, b.committed_at,
                   extract(epoch FROM b.committed_at - b.begun_at)::double precision AS commit_seconds,
                   (SELECT count(*) FROM pgonce.replays AS r
                    WHERE r.writer_id = b.writer_id AND r.generation = b.generation AND r.batch_id = b.batch_id)
                       AS replays
            FROM pgonce.batches AS b WHERE b.writer_id = w.writer_id
            ORDER BY b.generation DESC, b.batch_id DESC LIMIT :newest
       ) AS b) AS batches,
       (SELECT jsonb_agg(to_jsonb(o) ORDER BY o.source, o.topic, o.partition) FROM (
            SELECT coalesce(e.source, '?') AS source, coalesce(e.topic, n.topic) AS topic,
                   coalesce(e.partition, n.partition) AS partition, e.end_offset,
                   coalesce(to_jsonb(n.next_offset), CASE WHEN e.topic IS NULL THEN p.latest_offsets -> e.source END)
                       AS latest_offset,
                   CASE WHEN e.topic IS NOT NULL AND p.progress_at > statement_timestamp() - interval '10 minutes'
                            AND n.next_offset >= (e.end_offset #>> '{}')::bigint
                        THEN n.next_offset - (e.end_offset #>> '{}')::bigint END AS lag
            FROM (SELECT * FROM pgonce.current_offsets AS e
                  WHERE e.query_id = w.query_id AND e.sink_name = w.sink_name) AS e
            FULL JOIN pgonce.kafka_offsets(p.latest_offsets) AS n ON n.topic = e.topic AND n.partition = e.partition
       ) AS o) AS positions,
       (SELECT jsonb_agg(to_jsonb(f)) FROM (
            SELECT f.code, f.message, f.batch_id, f.seen_by, f.attempts, f.first_at, f.last_at
            FROM pgonce.failures AS f
            WHERE f.query_id = k.query_id AND (f.sink_name = k.sink_name OR f.sink_name IS NULL OR k.sink_name IS NULL)
            ORDER BY f.last_at DESC, f.failure_id DESC LIMIT :newest
       ) AS f) AS failures,
       (SELECT jsonb_agg(to_jsonb(d)) FROM (
            SELECT d.dead_letter_id, d.batch_id, d.target, d.column_name, d.code, d.message, d.made_at
            FROM pgonce.dead_letters AS d WHERE d.query_id = k.query_id AND d.sink_name = k.sink_name
            ORDER BY d.batch_id DESC, d.dead_letter_id DESC LIMIT :newest
       ) AS d) AS dead_letters,
       (SELECT jsonb_agg(DISTINCT to_jsonb(h)) FROM (
            SELECT o.pid, o.application_name AS application, o.usename AS "user", o.state, o.xact_start AS since
            FROM pg_stat_activity AS a
            CROSS JOIN LATERAL unnest(pg_blocking_pids(a.pid)) AS holder (pid)
            JOIN pg_stat_activity AS o ON o.pid = holder.pid
            WHERE a.wait_event_type = 'Lock' AND a.datname = current_database() AND a.application_name IN (
                SELECT 'pgonce ' || w.run_id
                UNION ALL SELECT 'pgonce ' || m.run_id FROM pgonce.heartbeats AS m WHERE m.query_id = k.query_id)
       ) AS h) AS lock_holders
FROM (SELECT CAST(:query_id AS text) AS query_id, CAST(:sink_name AS text) AS sink_name) AS k
LEFT JOIN pgonce.writers AS w ON w.query_id = k.query_id AND w.sink_name = k.sink_name
LEFT JOIN LATERAL (
    SELECT p.progress_at, p.latest_offsets FROM pgonce.progress AS p
    WHERE p.query_id = w.query_id ORDER BY p.progress_at DESC, p.batch_id DESC LIMIT 1
) AS p ON true
""")


def query_details(connection: Connection, query_id: str, sink_name: str | None, newest: int = 10) -> QueryDetails:
    """
    All that is known of this query and sink; empty if nothing is.

    :param sink_name: None for a query that failed before its sink was known.
    :param newest: how many batches, failures and dead letters, at most.
    """
    asked = {"query_id": query_id, "sink_name": sink_name, "newest": newest}
    row = connection.execute(_EVERYTHING, asked).mappings().one()
    return QueryDetails(
        row["checkpoint_location"],
        row["measured_at"],
        _parts(RecentBatch, row["batches"]),
        _parts(Position, row["positions"]),
        _parts(RecentFailure, row["failures"]),
        _parts(RecentLetter, row["dead_letters"]),
        _parts(LockHolder, row["lock_holders"]),
    )


def _parts(of: type[_Part], rows: list[Mapping[str, Any]] | None) -> tuple[_Part, ...]:
    """Each object as a ``_Part``; what JSON has as text is a time where the field's name says so."""
    names = [field.name for field in fields(of)]  # type: ignore[arg-type]
    times = {name for name in names if name.endswith("_at") or name == "since"}
    return tuple(
        of(**{name: _time(value) if name in times else value for name, value in row.items()}) for row in rows or ()
    )


def _time(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)
