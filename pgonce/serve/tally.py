"""
Count what the looks have found: rows a minute of the last hour, and counters for Prometheus.

Pure: runs in ``pgonce serve``. Invariants: a counter begins at 0 when the process begins, or when a query is first seen
later, and never goes backwards, whatever the ledger prunes or a restore takes back. The number of series has a bound.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .look import HISTORY_MINUTES, Key, Look, SeenFailure

# From a small commit on a quick disk to one of a very large batch, in seconds.
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.$]{0,99}")
_OTHER = "other"
# A query that fails in ever new ways must not make ever new series.
_MOST_CODES = 20
_KEPT_ATTEMPTS = 20_000


Seconds = tuple[list[tuple[str, float]], float]
"""How many took at most so many seconds, by the bound, and the sum of all seconds."""


@dataclass(frozen=True)
class Counts:
    """
    The counters as they were after one look, by query and sink; those of failures by query, sink and code.

    ``commit_seconds`` has, for each query and sink, how many commits took at most so many seconds, and the sum of the
    seconds.
    """

    batches: Mapping[Key, int]
    rows: Mapping[Key, int]
    replays: Mapping[Key, int]
    failures: Mapping[tuple[str, str | None, str], int]
    commit_seconds: Mapping[Key, Seconds]


class Histogram:
    """How many commits took how long."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """The number up to each bound, as Prometheus wants it."""
        bounds, total, found = [*map(str, BUCKETS), "+Inf"], 0, []
        for bound, count in zip(bounds, self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Tally:
    """What was counted since the process began. Only the reader's thread adds to it."""

    def __init__(self) -> None:
        self.batches: Counter[Key] = Counter()
        self.rows: Counter[Key] = Counter()
        self.replays: Counter[Key] = Counter()
        self.failures: Counter[tuple[str, str | None, str]] = Counter()
        self.commit_seconds: defaultdict[Key, Histogram] = defaultdict(Histogram)
        self._minutes: dict[Key, dict[int, int]] = {}
        self._lag: dict[Key, dict[int, int]] = {}
        self._recorded_replays: dict[Key, int] = {}
        self._attempts: dict[int, int] = {}
        self._is_first = True

    def add(self, look: Look) -> None:
        """Count what a look has found."""
        now = minute_of(look.at)
        for batch in (*look.earlier, *look.batches):
            minutes = self._minutes.setdefault(batch.key, {})
            # A clock may have been set back meanwhile.
            minute = min(minute_of(batch.committed_at), now)
            minutes[minute] = minutes.get(minute, 0) + batch.rows
        for batch in look.batches:
            self.batches[batch.key] += 1
            self.rows[batch.key] += batch.rows
            self.commit_seconds[batch.key].add(max(batch.commit_seconds, 0.0))
        self._add_states(look, now)
        for failure in look.failures:
            self._add_failure(look, failure)
        self._forget(look, now)
        self._is_first = False

    def _add_states(self, look: Look, now: int) -> None:
        for state in look.states:
            if state.sink_name is None:
                continue
            key = state.query_id, state.sink_name
            before = self._recorded_replays.get(key, state.replays if self._is_first else 0)
            # Records of old replays are pruned, so the number may fall.
            self.replays[key] += max(state.replays - before, 0)
            self._recorded_replays[key] = state.replays
            if state.lag is not None:
                lag = self._lag.setdefault(key, {})
                lag[now] = max(lag.get(now, 0), state.lag)

    def _add_failure(self, look: Look, failure: SeenFailure) -> None:
        # What failed before this process began, and was not seen since, has failed again.
        unseen = failure.attempts - 1 if failure.first_at < look.known.began_at else 0
        known = failure.attempts if self._is_first else self._attempts.get(failure.failure_id, unseen)
        self._attempts[failure.failure_id] = failure.attempts
        self.failures[failure.query_id, failure.sink_name, self._code_of(failure)] += max(failure.attempts - known, 0)

    def _code_of(self, failure: SeenFailure) -> str:
        code = failure.code if _CODE.fullmatch(failure.code) else _OTHER
        own = {known for query_id, _, known in self.failures if query_id == failure.query_id}
        return code if code in own or len(own) < _MOST_CODES else _OTHER

    def _forget(self, look: Look, now: int) -> None:
        """Drop what is no longer shown: minutes before the last hour, and queries without a record."""
        there: set[Key] = {(state.query_id, state.sink_name) for state in look.states if state.sink_name is not None}
        of_sinks: tuple[MutableMapping[Key, Any], ...] = (
            *(self._minutes, self._lag, self.batches, self.rows),
            *(self.replays, self._recorded_replays, self.commit_seconds),
        )
        for kept in of_sinks:
            for key in kept.keys() - there:
                del kept[key]
        for minutes in (*self._minutes.values(), *self._lag.values()):
            for minute in [minute for minute in minutes if minute <= now - HISTORY_MINUTES]:
                del minutes[minute]
        ids = {state.query_id for state in look.states}
        for series in [series for series in self.failures if series[0] not in ids]:
            del self.failures[series]
        # The ledger's ids grow, so those that are least have gone.
        for failure_id in sorted(self._attempts)[:-_KEPT_ATTEMPTS]:
            del self._attempts[failure_id]

    def counts(self) -> Counts:
        """A copy of the counters."""
        return Counts(
            dict(self.batches),
            dict(self.rows),
            dict(self.replays),
            dict(self.failures),
            {key: (one.cumulative(), one.sum) for key, one in self.commit_seconds.items()},
        )

    def rows_by_minute(self, at: datetime) -> dict[Key, tuple[int, ...]]:
        """The rows of each of the last minutes, the oldest first."""
        span = _last_minutes(at)
        return {key: tuple(rows.get(minute, 0) for minute in span) for key, rows in self._minutes.items() if rows}

    def lag_by_minute(self, at: datetime) -> dict[Key, tuple[int | None, ...]]:
        """The greatest lag of each of the last minutes, as far as it was seen."""
        span = _last_minutes(at)
        return {key: tuple(minutes.get(minute) for minute in span) for key, minutes in self._lag.items() if minutes}


def minute_of(when: datetime) -> int:
    """The minute in which this was, counted from 1970."""
    return int(when.timestamp() // 60)


def _last_minutes(at: datetime) -> range:
    return range(minute_of(at) - HISTORY_MINUTES + 1, minute_of(at) + 1)
