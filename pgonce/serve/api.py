"""
Answer programs with JSON, with the same facts as the page.

Runs in ``pgonce serve``. Invariant: the keys are stable: they are the fields of what ``OffsetsStore`` returns, and
those of docs/watching.md; what is unknown is null.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from starlette.responses import Response

from pgonce.offsets_store.ledger.writers import is_meant
from pgonce.offsets_store.status.details import QueryDetails
from pgonce.offsets_store.status.figures import encoded
from pgonce.offsets_store.status.states import QueryState

from .look import SeenFailure
from .pages import ledger_says
from .reader import Snapshot

# Postgres's message may repeat a key, or the value that was refused.
_HAVE_VALUES = ("row_data", "record_value", "message")


def answer(found: Mapping[str, Any], status: int = 200) -> Response:
    """One JSON document."""
    text = json.dumps(found, ensure_ascii=False, default=encoded, separators=(",", ":"))
    return Response(text + "\n", status, media_type="application/json")


def about(snapshot: Snapshot) -> dict[str, Any]:
    """When the ledger was read last, and why it cannot be read now, if so."""
    trouble = dataclasses.asdict(snapshot.trouble) if snapshot.trouble else None
    return {"read_at": snapshot.at, "trouble": trouble}


def queries(snapshot: Snapshot) -> dict[str, Any]:
    """All queries, with the rows of each of the last 60 minutes."""
    return {**about(snapshot), "queries": [_query(state, snapshot) for state in snapshot.states]}


def _query(state: QueryState, snapshot: Snapshot) -> dict[str, Any]:
    course = snapshot.rows_by_minute.get((state.query_id, state.sink_name or ""))
    return {**dataclasses.asdict(state), "rows_by_minute": course}


def one_query(snapshot: Snapshot, state: QueryState, found: QueryDetails, *, with_rows: bool) -> dict[str, Any]:
    """One query and sink, with its newest batches, partitions, sessions, failures and dead letters."""
    return {
        **about(snapshot),
        "query": _query(state, snapshot),
        "ledger_says": ledger_says(found, state),
        "batches": [dataclasses.asdict(batch) for batch in found.batches],
        "partitions": [dataclasses.asdict(row) for row in found.partitions],
        "sessions": [dataclasses.asdict(session) for session in found.sessions],
        "failures": [dataclasses.asdict(failure) for failure in failures_of(snapshot, state)],
        "dead_letters": [
            {key: value for key, value in dataclasses.asdict(letter).items() if with_rows or key not in _HAVE_VALUES}
            for letter in found.letters
        ],
        "dead_letter_codes": found.letter_codes,
    }


def failures_of(snapshot: Snapshot, state: QueryState) -> Sequence[SeenFailure]:
    """The failures of the last day that concern this query and sink, the newest first."""
    return [
        failure
        for failure in snapshot.failures
        if failure.query_id == state.query_id
        if failure.sink_name in (None, state.sink_name) or state.sink_name is None
    ]


def health(snapshot: Snapshot) -> dict[str, Any]:
    """What needs attention."""
    return {**about(snapshot), "findings": [dataclasses.asdict(finding) for finding in snapshot.findings]}


def failures(snapshot: Snapshot, query: str | None, since: datetime | None) -> dict[str, Any]:
    """What went wrong within a day, of all queries or one, the newest first."""
    chosen = [
        dataclasses.asdict(failure)
        for failure in snapshot.failures
        if query is None or is_meant(query, failure.query_id, failure.query_name)
        if since is None or failure.last_at >= since
    ]
    return {**about(snapshot), "failures": chosen}
