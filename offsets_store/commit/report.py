"""
Report what became of a commit: one line in the log, and a span for OpenTelemetry.

Runs around all tries of one commit, in the process that commits. Invariant: a line is written when Postgres has
answered, and nothing is asked for it. The keys of a line are stable; docs/watching.md has them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..log_lines import one_line
from .telemetry import traced
from .work import Done, Named, Outcome

_log = logging.getLogger("pgonce")


@contextmanager
def reported(what: Named, outcome: Outcome) -> Iterator[None]:
    """Run the block, which commits, and report what became of the batch if it was published or skipped."""
    began = time.monotonic()
    # The line is written inside the span, so that what collects lines finds the span that it belongs to.
    with traced(what, outcome):
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
