"""
Say in one line whether all is well: of the whole process, or of one query.

Pure: runs in ``pgonce serve``, for probes and sensors. Invariant: what was asked and is unknown is not well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.ledger.writers import is_meant
from pgonce.offsets_store.log_lines import one_line
from pgonce.offsets_store.status.figures import duration_text
from pgonce.offsets_store.status.states import judged, line_of, own_findings

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
    """Whether a query is well, as ``pgonce health`` judges it."""
    meant = [state for state in snapshot.states if is_meant(query, state.query_id, state.query_name)]
    meant = [state for state in meant if state.query_id == query] or meant
    meant = [state for state in meant if sink is None or state.sink_name == sink]
    if not meant:
        return _not_well(f"no query is called {query!r}" + (f" with sink {sink!r}" if sink is not None else ""))
    found = own_findings(snapshot.findings, meant)
    is_well, judgements = judged(meant, found, max_age, max_lag, now)
    said = ["; ".join([line_of(one, now), *whys]) for one, whys in judgements]
    line = "; ".join([*said, *(f"{one.finding}: {one.what}" for one in found)])
    if not is_well:
        return _not_well(line)
    return Health(True, one_line(f"{'warning' if found else 'ok'}: {line}"))


def _not_well(line: str) -> Health:
    return Health(False, one_line(line[0].upper() + line[1:]))
