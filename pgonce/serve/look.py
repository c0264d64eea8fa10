"""
Look at the ledger once: what all queries are doing, and what has happened since the look before.

Runs in ``pgonce serve``. Invariant: a few statements in one snapshot, as many however many queries there are. Only
what is new is read: each writer's batches by their key, failures by when they were seen last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, text

from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import failures as stored
from pgonce.offsets_store.status.failures import FAILURES, StoredFailure
from pgonce.offsets_store.status.states import (
    Finding,
    MeasuredLag,
    QueryState,
    findings,
    query_states,
    use_measured,
)

Key = tuple[str, str]
"""A query's id and the name of its sink."""

HISTORY_MINUTES = 60
# What failed within a day has a counter from the first look on. A look reads the newest failures if there are more.
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
class Known:
    """
    What was read up to now, so that the next look reads what came after it.

    ``places`` has, for each writer, its key, and the generation and the number of the last batch that was read.
    """

    began_at: datetime
    places: Sequence[tuple[int, int, int]]
    failed_at: datetime


@dataclass(frozen=True)
class Look:
    """What one look has found; ``earlier`` are the batches of the last hour before it, in the first look alone."""

    at: datetime
    states: Sequence[QueryState]
    findings: Sequence[Finding]
    batches: Sequence[NewBatch]
    earlier: Sequence[NewBatch]
    failures: Sequence[SeenFailure]
    known: Known


_PLACES = text("""
SELECT writer_id, generation, coalesce(last_batch_id, -1) FROM pgonce.writers
""")
# OFFSET 0 has each writer's rows read by their index; without it, Postgres 18 read all batches of all writers.
# A writer that was not known at the look before has all its batches read.
_BATCHES = text("""
WITH known AS (
    SELECT * FROM unnest(CAST(:writer_ids AS bigint[]), CAST(:generations AS integer[]), CAST(:batch_ids AS bigint[]))
        AS k (writer_id, generation, batch_id)
)
SELECT w.query_id, w.sink_name, b.rows, b.committed_at,
    extract(epoch FROM b.committed_at - b.begun_at)::double precision AS commit_seconds
FROM pgonce.writers AS w
LEFT JOIN known AS k USING (writer_id)
CROSS JOIN LATERAL (
    SELECT b.rows, b.committed_at, b.begun_at FROM pgonce.batches AS b
    WHERE b.writer_id = w.writer_id
        AND (b.generation, b.batch_id) > (coalesce(k.generation, -1), coalesce(k.batch_id, -1))
        AND b.committed_at > CAST(:since AS timestamptz)
    OFFSET 0
) AS b
WHERE (w.generation, w.last_batch_id) IS DISTINCT FROM (k.generation, k.batch_id)
""")


def look(url: str, known: Known | None, measured: Sequence[MeasuredLag] = ()) -> Look:
    """
    Look at the ledger.

    :param known: what the look before has left; None for the first one, at which counting begins.
    :param measured: the lag that was measured at the brokers.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    with reading(url) as connection:
        if measured:
            use_measured(connection, measured)
        at = connection.execute(select(func.statement_timestamp())).scalar_one()
        states = query_states(connection)
        began = known or Known(at, [], at - _FAILURES_SINCE)
        failures = _failures(connection, began.failed_at)
        return Look(
            at,
            states,
            findings(connection, states),
            _batches(connection, known.places) if known else [],
            [] if known else _batches(connection, [], at - timedelta(minutes=HISTORY_MINUTES)),
            failures,
            Known(
                began.began_at,
                [(writer_id, generation, number) for writer_id, generation, number in connection.execute(_PLACES)],
                max((began.failed_at, *(one.last_at - _OVERLAP for one in failures))),
            ),
        )


def _batches(
    connection: Connection, known: Sequence[tuple[int, int, int]], since: datetime | None = None
) -> list[NewBatch]:
    names = "writer_ids", "generations", "batch_ids"
    places = {name: [place[number] for place in known] for number, name in enumerate(names)}
    found = connection.execute(_BATCHES, {**places, "since": since or "-infinity"})
    return [NewBatch((query_id, sink), *new) for query_id, sink, *new in found]


def _failures(connection: Connection, since: datetime) -> list[SeenFailure]:
    """In the order in which they were first seen."""
    found = FAILURES.add_columns(stored.c.failure_id).where(stored.c.last_at > since).limit(_MOST_FAILURES)
    seen = (SeenFailure(**row) for row in connection.execute(found).mappings())
    return sorted(seen, key=lambda one: one.failure_id)
