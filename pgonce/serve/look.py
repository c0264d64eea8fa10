"""
Look at the ledger once: what all queries are doing, and what has happened since the look before.

Runs in ``pgonce serve``. Invariant: two statements in one snapshot, however many queries there are. The second one
reads only what is new: each writer's batches by their key, each query's progress events by their index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.status.failures import StoredFailure
from pgonce.offsets_store.status.in_json import from_json, time_of
from pgonce.offsets_store.status.states import (
    Activity,
    Finding,
    MeasuredLag,
    QueryState,
    activity,
    of_states,
    urgent_first,
    use_measured,
)

Key = tuple[str, str]
"""A query's id and the name of its sink."""

HISTORY_MINUTES = 60
# Failures of a day are shown, and the newest of them if there are more.
_FAILURES_SINCE = timedelta(days=1)
_MOST_FAILURES = 500
# A transaction that began earlier may commit later: what is this much older than the newest is read again.
_OVERLAP = timedelta(minutes=1)


@dataclass(frozen=True)
class SeenFailure(StoredFailure):
    """A failure with its key, by which it is known again."""

    failure_id: int


@dataclass(frozen=True)
class NewBatch:
    """A batch that was published since the look before; ``commit_seconds`` as in StoredBatch."""

    key: Key
    rows: int
    committed_at: datetime
    commit_seconds: float


@dataclass(frozen=True)
class NewEvent:
    """A progress event that was stored since the look before, with how long the batch took."""

    query_id: str
    progress_at: datetime
    batch_seconds: float | None


@dataclass(frozen=True)
class Place:
    """How far a writer's batches have been read."""

    writer_id: int
    generation: int
    batch_id: int


@dataclass(frozen=True)
class Known:
    """What was read up to now, so that the next look reads what came after it."""

    began_at: datetime
    places: Mapping[Key, Place]
    heard: Mapping[str, datetime]
    failed_at: datetime


@dataclass(frozen=True)
class Look:
    """What one look has found; ``activity`` is that of the last hour, in the first look alone."""

    at: datetime
    states: Sequence[QueryState]
    findings: Sequence[Finding]
    batches: Sequence[NewBatch]
    events: Sequence[NewEvent]
    failures: Sequence[SeenFailure]
    known: Known
    activity: Sequence[Activity] = field(default=())


_NOW = text("""
SELECT 'at' AS kind, to_jsonb(statement_timestamp()) AS found
UNION ALL SELECT 'state', to_jsonb(q) FROM pgonce.queries AS q
UNION ALL SELECT 'finding', to_jsonb(h) FROM pgonce.health AS h WHERE NOT h.is_state
""")

# OFFSET 0 has each writer's rows read by their index; without it, Postgres 18 read all batches of all writers.
# A writer that was not known at the look before has all its batches read. The first look reads none: counting begins.
_SINCE = text("""
WITH known AS (
    SELECT * FROM unnest(CAST(:writer_ids AS bigint[]), CAST(:generations AS integer[]), CAST(:batch_ids AS bigint[]))
        AS k (writer_id, generation, batch_id)
), heard AS (
    SELECT * FROM unnest(CAST(:query_ids AS text[]), CAST(:heard AS timestamptz[])) AS h (query_id, progress_at)
)
SELECT 'place' AS kind, jsonb_build_object(
    'query_id', w.query_id, 'sink_name', w.sink_name, 'writer_id', w.writer_id, 'generation', w.generation,
    'batch_id', coalesce(w.last_batch_id, -1)) AS found
FROM pgonce.writers AS w
UNION ALL
SELECT 'batch', jsonb_build_object(
    'query_id', w.query_id, 'sink_name', w.sink_name, 'rows', b.rows, 'committed_at', b.committed_at,
    'commit_seconds', extract(epoch FROM b.committed_at - b.begun_at)::double precision)
FROM pgonce.writers AS w
LEFT JOIN known AS k USING (writer_id)
CROSS JOIN LATERAL (
    SELECT b.rows, b.committed_at, b.begun_at FROM pgonce.batches AS b
    WHERE b.writer_id = w.writer_id
        AND (b.generation, b.batch_id) > (coalesce(k.generation, -1), coalesce(k.batch_id, -1))
    OFFSET 0
) AS b
WHERE CAST(:counts AS boolean) AND (w.generation, w.last_batch_id) IS DISTINCT FROM (k.generation, k.batch_id)
UNION ALL
SELECT 'event', jsonb_build_object(
    'query_id', w.query_id, 'progress_at', p.progress_at,
    'batch_ms', p.durations_ms -> 'addBatch')
FROM (SELECT DISTINCT query_id FROM pgonce.writers) AS w
LEFT JOIN heard AS h USING (query_id)
CROSS JOIN LATERAL (
    SELECT p.progress_at, p.durations_ms FROM pgonce.progress AS p
    WHERE p.query_id = w.query_id AND p.progress_at > coalesce(h.progress_at, CAST(:began_at AS timestamptz))
    OFFSET 0
) AS p
WHERE CAST(:counts AS boolean)
UNION ALL
(SELECT 'failure', to_jsonb(f) FROM pgonce.failures AS f
WHERE f.last_at > :failed_at ORDER BY f.last_at DESC LIMIT :most_failures)
""")


def look(url: str, known: Known | None, measured: Sequence[MeasuredLag] = ()) -> Look:
    """
    Look at the ledger.

    :param known: what the look before has left; None for the first one.
    :param measured: the lag that was measured at the brokers.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    with reading(url) as connection:
        if measured:
            use_measured(connection, measured)
        now = _found(connection, _NOW, {})
        at = time_of(now["at"][0])
        began = known or Known(at, {}, {}, at - _FAILURES_SINCE)
        since = _found(connection, _SINCE, _parameters(began, counts=known is not None))
        lately = activity(connection, HISTORY_MINUTES) if known is None else []
    states = sorted((from_json(QueryState, row) for row in now["state"]), key=_by_name)
    failures = sorted((from_json(SeenFailure, row) for row in since["failure"]), key=lambda one: one.failure_id)
    events = [_event(row) for row in since["event"]]
    return Look(
        at,
        states,
        urgent_first([*of_states(states), *(from_json(Finding, row) for row in now["finding"])]),
        [
            NewBatch(_key(row), row["rows"], time_of(row["committed_at"]), row["commit_seconds"])
            for row in since["batch"]
        ],
        events,
        failures,
        Known(
            began.began_at,
            {_key(row): Place(row["writer_id"], row["generation"], row["batch_id"]) for row in since["place"]},
            {**began.heard, **_newest(events)},
            max((began.failed_at, *(one.last_at - _OVERLAP for one in failures))),
        ),
        lately,
    )


def _parameters(known: Known, *, counts: bool) -> dict[str, Any]:
    places = list(known.places.values())
    return {
        "writer_ids": [place.writer_id for place in places],
        "generations": [place.generation for place in places],
        "batch_ids": [place.batch_id for place in places],
        "query_ids": list(known.heard),
        "heard": list(known.heard.values()),
        "began_at": known.began_at,
        "failed_at": known.failed_at,
        "most_failures": _MOST_FAILURES,
        "counts": counts,
    }


def _found(connection: Connection, statement: Any, parameters: Mapping[str, Any]) -> dict[str, list[Any]]:
    kinds: dict[str, list[Any]] = {
        kind: [] for kind in ("at", "state", "finding", "place", "batch", "event", "failure")
    }
    for kind, found in connection.execute(statement, parameters):
        kinds[kind].append(found)
    return kinds


def _key(row: Mapping[str, Any]) -> Key:
    return row["query_id"], row["sink_name"]


def _event(row: Mapping[str, Any]) -> NewEvent:
    took = row["batch_ms"]
    seconds = took / 1000 if isinstance(took, (int, float)) and not isinstance(took, bool) else None
    return NewEvent(row["query_id"], time_of(row["progress_at"]), seconds)


def _newest(events: Sequence[NewEvent]) -> dict[str, datetime]:
    newest: dict[str, datetime] = {}
    for event in events:
        newest[event.query_id] = max(event.progress_at, newest.get(event.query_id, event.progress_at))
    return newest


def _by_name(state: QueryState) -> tuple[bool, str, str, str]:
    return state.query_name is None, state.query_name or "", state.query_id, state.sink_name or ""
