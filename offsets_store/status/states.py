"""
Read what every query is doing, and what needs attention, from the views of the ledger that decide it.

Runs where a user or a program asks. Invariant: it only reads. The state of a query is decided in the view
``pgonce.queries`` and nowhere else, so psql, the shell, the page and the metrics agree.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from sqlalchemy import Boolean, Connection, column, func, literal_column, select, table, text

from ..ledger import SCHEMA
from ..ledger.session import reading
from .figures import UNKNOWN, age_text
from .stored import StoredWriter

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class QueryState:
    """
    What one query and one of its sinks are doing. Each field is a column of the view ``pgonce.queries``.

    ``state`` is one of :data:`STATES`, and ``because`` says what it was concluded from. ``lag`` counts Kafka records
    that are not published yet, and ``lag_seconds`` is the age of the oldest of them, which only a broker tells.
    ``last_lag`` is the lag that was known last, at ``lag_measured_at``, however long ago that was. The ``failure_``
    fields, ``failed_batch_id``, ``failures`` and ``failing_since`` say what went wrong since the last published batch.
    ``severity`` is ``critical`` or ``warning`` if the state needs attention, and ``help`` says what to do. What is
    unknown is None, never 0.
    """

    query_id: str
    query_name: str | None
    sink_name: str | None
    state: str
    because: str
    state_since: datetime | None
    batch_id: int | None
    published_at: datetime | None
    rows: int | None
    transport: str | None
    rows_per_second: float | None
    usual_interval_seconds: float | None
    lag: int | None
    lag_seconds: float | None
    retention_used_percent: float | None
    last_lag: int | None
    lag_measured_at: datetime | None
    failure_code: str | None
    failure_message: str | None
    failed_batch_id: int | None
    failures: int | None
    failing_since: datetime | None
    waits_for: str | None
    run_id: str | None
    created_at: datetime
    heard_at: datetime | None
    dead_letters: int
    replays: int
    severity: str | None
    help: str | None


STATES = {
    "refused": "a batch failed, and none has been published since",
    "expiring": "unread records will soon be deleted by the topic's retention, or have been",
    "stuck": "records wait, and nothing shows that the query runs",
    "gone": "its driver ended, or its listener fell silent, before it was stopped",
    "waiting": "the session of its commit waits for another session, or for standbys",
    "lagging": "it runs, and does not catch up",
    "starting": "it runs, and has published nothing yet",
    "running": "it runs",
    "idle": "it runs, and Spark finds nothing to read",
    "quiet": "it is idle or gone: no listener hears it, and it has no session",
    "stopped": "its listener heard it end without an error",
    "retired": "a person has said that it publishes no more",
    "replaced": "another query has taken its place",
}
"""What each state means; those that need attention most come first."""
TONES: Mapping[str, str] = {
    "refused": "bad", "expiring": "bad", "stuck": "bad", "gone": "bad", "waiting": "warn", "lagging": "warn",
    "starting": "good", "running": "good", "idle": "calm", "quiet": "still", "stopped": "still", "retired": "over",
    "replaced": "over",
}  # fmt: skip
"""How serious each state is: bad, warn, good, calm (good, and nothing to do), still (unknown or at rest), or over."""
_PLACES = {state: place for place, state in enumerate(STATES)}
ENDED = ("retired", "replaced")
"""The states of queries that publish no more."""


def tone_of(state: str) -> str:
    """How serious a state is, as in :data:`TONES`; one that a newer ledger has and this code does not know is still."""
    return TONES.get(state, "still")


def place_of(state: str) -> int:
    """The place of a state among all: those that need attention most come first, and unknown ones last."""
    return _PLACES.get(state, len(_PLACES))


def name_of(one: QueryState | Finding | StoredWriter) -> str:
    """The name of its query; the beginning of the query's id if it has none."""
    return one.query_name or one.query_id[:8]


def line_of(query: QueryState, now: datetime) -> str:
    """What it does, and where it stands, for one line."""
    batch = (
        "no batch" if query.batch_id is None else f"batch {query.batch_id:,} {age_text(query.published_at, now)} ago"
    )
    lag = UNKNOWN if query.lag is None else f"{query.lag:,}"
    return f"{name_of(query)} into {query.sink_name or UNKNOWN} is {query.state}, {batch}, lag {lag}"


def _beyond(query: QueryState, max_age: float | None, max_lag: int | None, now: datetime) -> Iterator[str]:
    # An idle query may rest; an unknown lag is too much, because it may be.
    if max_age is not None and query.state != "idle":
        if query.published_at is None:
            yield "nothing was published"
        elif (now - query.published_at).total_seconds() > max_age:
            yield f"its last batch is {age_text(query.published_at, now)} old"
    if max_lag is not None and (query.lag is None or query.lag > max_lag):
        yield "its lag is unknown" if query.lag is None else f"its lag is {query.lag:,} records"


Sort = Literal["name", "sink", "state", "batch", "age", "rate", "lag"]
SORTS: Mapping[str, Callable[[QueryState], Any]] = {
    "name": lambda state: name_of(state).casefold(),
    "sink": lambda state: (state.sink_name or "").casefold(),
    "state": lambda state: place_of(state.state),
    "batch": lambda state: None if state.batch_id is None else -state.batch_id,
    "age": lambda state: None if state.published_at is None else state.published_at.timestamp(),
    "rate": lambda state: None if state.rows_per_second is None else -state.rows_per_second,
    "lag": lambda state: None if state.lag is None else -state.lag,
}
"""By what queries can be sorted, so that those that a person looks for stand first: the oldest, the greatest."""


def in_order(states: Iterable[QueryState], by: str, *, reverse: bool = False) -> list[QueryState]:
    """The states by one of :data:`SORTS`, then by name; what is unknown stands at the end, also in reverse."""
    key, found = SORTS[by], sorted(states, key=lambda state: (state.query_name is None, name_of(state).casefold()))
    known = sorted((state for state in found if key(state) is not None), key=key, reverse=reverse)
    return [*known, *(state for state in found if key(state) is None)]


@dataclass(frozen=True)
class Finding:
    """
    Something that needs attention: one row of the view ``pgonce.health``.

    ``severity`` is ``critical`` or ``warning``. ``finding`` is the state of a query, or what else was found.
    ``help`` says what to do, or which command says more.
    """

    severity: str
    finding: str
    query_id: str
    query_name: str | None
    sink_name: str | None
    what: str
    since: datetime | None
    help: str


def own_findings(findings: Iterable[Finding], states: Iterable[QueryState]) -> list[Finding]:
    """Those of these sinks, and of their whole queries."""
    keys = {key for one in states for key in ((one.query_id, one.sink_name), (one.query_id, None))}
    return [one for one in findings if (one.query_id, one.sink_name) in keys]


def judged(
    meant: Sequence[QueryState], findings: Iterable[Finding], max_age: float | None, max_lag: int | None, now: datetime
) -> tuple[bool, list[tuple[QueryState, list[str]]]]:
    """
    Whether all is well: nothing critical was found, and no bound is exceeded; and which bounds each sink exceeds.

    :param max_age: seconds since the last batch.
    :param max_lag: records that are not published yet.
    """
    # A query that was replaced usually has the name of the one that took its place.
    found = [one for one in meant if one.state not in ENDED] or meant
    late = [(one, list(_beyond(one, max_age, max_lag, now))) for one in found]
    return not any(whys for _, whys in late) and all(one.severity != "critical" for one in findings), late


@dataclass(frozen=True)
class MeasuredLag:
    """How far one query and sink are behind their brokers: one row of ``pgonce.measured_lag``."""

    query_id: str
    sink_name: str
    lag: int | None
    lag_seconds: float | None
    retention_used_percent: float | None
    measured_at: datetime


def query_states(connection: Connection, query_ids: Sequence[str] | None = None) -> list[QueryState]:
    """
    What all queries are doing, or those with these ids, by name, id and sink.

    What :func:`use_measured` was given in this transaction counts.
    """
    view, names = _view(QueryState, "queries")
    found = select(*names).select_from(view).order_by(text("query_name NULLS LAST, query_id, sink_name"))
    if query_ids is not None:
        found = found.where(column("query_id").in_(query_ids))
    return [QueryState(**row) for row in connection.execute(found).mappings()]


def read_states(url: str, measured: Sequence[MeasuredLag] = ()) -> tuple[list[QueryState], list[Finding]]:
    """
    What all queries are doing, and what needs attention, at the same moment.

    :param measured: what was measured at brokers; it counts for the states.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    with reading(url) as connection:
        use_measured(connection, measured)
        states = query_states(connection)
        return states, findings(connection, states)


def findings(connection: Connection, states: Iterable[QueryState]) -> list[Finding]:
    """
    What needs attention, what is critical first, the oldest first: the view ``pgonce.health``.

    :param states: those of all queries, read in the same transaction, so that they need not be found out again.
    """
    view, names = _view(Finding, "health")
    others = select(*names).select_from(view).where(~literal_column("is_state", Boolean))
    found = [Finding(**row) for row in connection.execute(others).mappings()]
    for one in states:
        if one.severity is not None:
            whose = one.query_id, one.query_name, one.sink_name
            found.append(Finding(one.severity, one.state, *whose, one.because, one.state_since, one.help or ""))
    return sorted(found, key=_by_urgency)


def _by_urgency(one: Finding) -> tuple[str, bool, float, str, str]:
    since = one.since.timestamp() if one.since else 0.0
    return one.severity, one.since is None, since, one.query_id, one.sink_name or ""


def use_measured(connection: Connection, measured: Sequence[MeasuredLag]) -> None:
    """Let the views count what was ``measured`` here, until the transaction ends."""
    rows = json.dumps([dataclasses.asdict(one) for one in measured], default=datetime.isoformat)
    connection.execute(select(func.set_config("pgonce.measured_lag", rows, True)))


def _view(of: type[_Row], name: str) -> tuple[Any, list[Any]]:
    names = [field.name for field in dataclasses.fields(of)]  # type: ignore[arg-type]
    return table(name, *map(column, names), schema=SCHEMA), [literal_column(each) for each in names]
