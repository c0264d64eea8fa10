"""
Say in one line whether all is well: of the whole process, or of one query.

Pure: runs in ``pgonce serve``, for probes and sensors. Invariant: what was asked and is unknown is not well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.ledger.writers import is_meant
from pgonce.offsets_store.log_lines import one_line
from pgonce.offsets_store.status.figures import duration_text
from pgonce.offsets_store.status.states import ENDED, Finding, QueryState, beyond, line_of

from .reader import Snapshot

_OLDEST_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class Health:
    """Whether all is well, and the line that says so."""

    is_well: bool
    line: str


def parse_count(text: str) -> int:
    """
    A number of records.

    :raises ConfigurationError: BAD_OPTION.
    """
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise bad_option("BAD_OPTION", f"{text[:50]!r} is not a number of records.", "Write a whole number.")
    return int(text)


def of_process(snapshot: Snapshot, now: datetime, every: float) -> Health:
    """Whether the ledger is being read."""
    trouble = snapshot.trouble
    if trouble is not None:
        return _not_well(
            f"the ledger cannot be read since {trouble.since:%H:%M:%S} UTC: [{trouble.code}] {trouble.text}"
        )
    if snapshot.at is None:
        return _not_well("the ledger was not read yet")
    age = (now - snapshot.at).total_seconds()
    if age > max(_OLDEST_LOOK_SECONDS, 3 * every):
        return _not_well(f"the ledger was last read {duration_text(age)} ago")
    read = f"{len(snapshot.states)} queries, read {duration_text(age)} ago"
    if not snapshot.findings:
        return Health(True, f"ok: {read}")
    # The process is well, so this is no 503; what it has found is said too.
    found = f"{snapshot.critical} critical of {len(snapshot.findings)} findings (pgonce health)"
    return Health(True, f"the ledger is read: {read}; {found}")


def of_query(
    snapshot: Snapshot, now: datetime, query: str, sink: str | None, max_age: float | None, max_lag: int | None
) -> Health:
    """
    Whether nothing critical was found of a query, and it keeps within these bounds, as ``pgonce health`` says it.

    :param max_age: seconds since its last batch; a query that is heard to be idle may be older.
    :param max_lag: records that are not published yet.
    """
    meant = [state for state in snapshot.states if is_meant(query, state.query_id, state.query_name)]
    found = [state for state in meant if state.query_id == query] or meant
    found = [state for state in found if sink is None or state.sink_name == sink]
    # A query that was replaced usually has the name of the one that took its place.
    found = [state for state in found if state.state not in ENDED] or found
    if not found:
        return _not_well(f"no query is called {query!r}" + (f" with sink {sink!r}" if sink is not None else ""))
    judged = [_judge(state, snapshot.findings, now, max_age, max_lag) for state in found]
    ill = [one for one in judged if not one.is_well]
    return next((one for one in [*ill, *judged] if not one.line.startswith("ok")), judged[0])


def _judge(
    state: QueryState, findings: Sequence[Finding], now: datetime, max_age: float | None, max_lag: int | None
) -> Health:
    own = [one for one in findings if one.query_id == state.query_id and one.sink_name in (None, state.sink_name)]
    critical = [f"{one.finding}: {one.what}" for one in own if one.severity == "critical"]
    if ill := [*critical, *beyond(state, max_age, max_lag, now)]:
        return _not_well(f"{line_of(state, now)}; {ill[0]}")
    warned = [f"{one.finding}: {one.what}" for one in own]
    return Health(True, one_line("; ".join([f"{'warning' if own else 'ok'}: {line_of(state, now)}", *warned])))


def _not_well(line: str) -> Health:
    return Health(False, one_line(line[0].upper() + line[1:]))
