"""
Report what became of a commit: one line in the log, a span for OpenTelemetry with how long it took, and a notification.

Runs around all tries of one commit, in the process that commits. Invariants: a line is written when Postgres has
answered, and nothing is asked for it. The notification is sent by the transaction that records the batch, so Postgres
delivers it only when that transaction is committed; a batch that is skipped sends none. The keys of a line are stable;
docs/watching.md has them. OpenTelemetry is spoken to only where the process has imported it; otherwise the user cannot
have said where spans go, and nothing is imported for it. None of its errors reaches the commit. What is told are names,
numbers and codes: no row, no connection string, and no words of an error.

The names of a span are those of the semantic conventions for database clients; our own begin with ``pgonce.``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from sqlalchemy import Connection

from ..errors import PgonceError
from ..ledger.published import Published
from ..log_lines import one_line
from ..postgres.connect import driver_connection
from ..postgres.one_trip import Statement, ask
from ..postgres.translate import driver_error
from .work import Done, Named, NotNowError, Outcome

_log = logging.getLogger("pgonce")


@contextmanager
def reported(what: Named, outcome: Outcome) -> Iterator[None]:
    """Run the block, which commits, and report what became of the batch if it was published or skipped."""
    began = time.monotonic()
    # The line is written inside the span, so that what collects lines finds the span that it belongs to.
    with _traced(what, outcome):
        yield
        if outcome.done and _log.isEnabledFor(logging.INFO):
            _say(what, outcome.done, time.monotonic() - began)


def _say(what: Named, done: Done, seconds: float) -> None:
    published = done.published
    told: dict[str, str | float | None] = {
        **what.keys,
        "sink": done.sink_name,
        "verdict": done.verdict,
        "rows": published.rows if published else 0 if done.is_skipped else None,
        "seconds": round(seconds, 4),
        "transport": published.transport if published else None,
    }
    # A user's layout may show them by themselves, and a name must not end a line there.
    keys = {key: one_line(value) if isinstance(value, str) else value for key, value in told.items()}
    _log.info("%s %s", "skipped" if done.is_skipped else "published", _in_text(keys), extra=keys)


def _in_text(keys: Mapping[str, str | float | None]) -> str:
    """``key=value`` for what is known; JSON's quotes around a value that would not end where it ends."""
    shown = {key: value for key, value in keys.items() if value is not None and key != "query_id"}
    return " ".join(f"{key}={_value_in_text(str(value))}" for key, value in shown.items())


def _value_in_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if set(value) & set(' "=') or not value else value


_OPERATION = "pgonce.commit"
_SYSTEM = {"db.system.name": "postgresql", "db.operation.name": _OPERATION}
_OWN = {
    "query": "pgonce.query",
    "query_id": "pgonce.query_id",
    "batch": "pgonce.batch_id",
    "batch_key": "pgonce.batch_key",
}


@contextmanager
def _traced(what: Named, outcome: Outcome) -> Iterator[None]:
    """Run the block inside a span, which is the child of the caller's, or of the one that TRACEPARENT names."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield
        return
    span = _quietly(lambda: _begun(trace, what))
    began = time.monotonic()
    failure: BaseException | None = None
    try:
        # It is the parent of spans that the block begins, such as those of psycopg's own instrumentation.
        lasting = {"record_exception": False, "set_status_on_exception": False}
        with nullcontext() if span is None else trace.use_span(span, **lasting):
            yield
    except BaseException as error:
        failure = error
        raise
    finally:
        seconds = time.monotonic() - began
        ended = {**_SYSTEM, **_where(outcome), **_failed(failure)}
        _quietly(lambda: _end(trace, span, outcome, ended))
        _quietly(lambda: _measure(seconds, ended))


def _begun(trace: Any, what: Named) -> Any:
    own = {_OWN[key]: value for key, value in what.keys.items()}
    return trace.get_tracer("pgonce").start_span(
        _OPERATION, context=_from_environment(trace), kind=trace.SpanKind.CLIENT, attributes={**_SYSTEM, **own}
    )


def _from_environment(trace: Any) -> Any:
    """The context that TRACEPARENT and TRACESTATE name, where the caller has none: None is the caller's."""
    if "TRACEPARENT" not in os.environ or trace.get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    names = {name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")}
    return TraceContextTextMapPropagator().extract(names)


def _where(outcome: Outcome) -> dict[str, str]:
    published = outcome.done.published if outcome.done else outcome.sent
    tables = list(published.tables or published.targets or ()) if published else []
    found = {"db.namespace": outcome.database, "db.collection.name": tables[0] if len(tables) == 1 else None}
    return {name: value for name, value in found.items() if value}


def _failed(error: BaseException | None) -> dict[str, str]:
    if error is None or isinstance(error, NotNowError):
        return {}
    if not isinstance(error, PgonceError):
        return {"error.type": type(error).__qualname__}
    cause = driver_error(error.__context__) if error.__context__ else None
    sqlstate = cause.sqlstate if cause else None
    return {"error.type": error.code, **({"db.response.status_code": sqlstate} if sqlstate else {})}


def _end(trace: Any, span: Any, outcome: Outcome, ended: dict[str, str]) -> None:
    target = ended.get("db.collection.name") or ended.get("db.namespace")
    if target:
        span.update_name(f"{_OPERATION} {target}")
    span.set_attributes(ended)
    if sink_name := outcome.done.sink_name if outcome.done else outcome.sink_name:
        span.set_attribute("pgonce.sink", sink_name)
    if done := outcome.done:
        span.set_attribute("pgonce.verdict", done.verdict)
        if done.is_skipped:
            span.set_attribute("pgonce.rows", 0)
        elif done.published:
            span.set_attributes({"pgonce.rows": done.published.rows, "pgonce.transport": done.published.transport})
    if "error.type" in ended:
        span.set_status(trace.Status(trace.StatusCode.ERROR, ended["error.type"]))
    span.end()


def _measure(seconds: float, attributes: dict[str, str]) -> None:
    metrics: Any = sys.modules.get("opentelemetry.metrics")
    if metrics is not None:
        _durations(metrics.get_meter).record(seconds, attributes)


@cache
def _durations(get_meter: Callable[[str], Any]) -> Any:
    # Made once: it finds the user's provider even if that is set later, and a second one would be warned of.
    return get_meter("pgonce").create_histogram(
        "db.client.operation.duration",
        unit="s",
        description="Duration of database client operations.",
        # The conventions say which.
        explicit_bucket_boundaries_advisory=[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10],
    )


def _quietly(tell: Callable[[], Any]) -> Any:
    try:
        return tell()
    except Exception as error:  # noqa: BLE001 (a batch is not refused for what watches it)
        _log.debug("OpenTelemetry could not be told of a commit: %r", error)
        return None


# Postgres's own bound: NOTIFY_PAYLOAD_MAX_LENGTH, less the byte that ends the text.
_LONGEST_PAYLOAD = 7999

_NOTIFY = Statement("SELECT pg_catalog.pg_notify($1, $2)", "channel", "payload")


def notify_in_tx(connection: Connection, channel: str | None, published: Published, **what: Any) -> None:
    """Tell those who listen to ``channel``, if there is one, once this transaction is committed."""
    if channel is not None:
        said = payload({**what, "rows": published.rows, "tables": tables_of(published)})
        ask(driver_connection(connection), _NOTIFY, {"channel": channel, "payload": said})


def tables_of(published: Published) -> dict[str, int | None] | None:
    """How many rows went into each table; None if it is not known which tables these are."""
    if published.tables is not None:
        return dict(published.tables)
    names = list(published.targets or ())
    return dict.fromkeys(names, published.rows if len(names) == 1 else None) or None


def payload(what: dict[str, Any]) -> str:
    """JSON that Postgres takes: what makes it too long is null."""
    text = json.dumps(what)
    for name in ("tables", "query_name", "sink"):
        if len(text) <= _LONGEST_PAYLOAD:
            break
        text = json.dumps(what := {**what, name: None})
    return text
