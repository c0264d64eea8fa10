"""
Write the metrics as Prometheus reads them.

Runs in ``pgonce serve``, once for each scrape, from what was seen last. Invariants: nothing is asked of Postgres for a
scrape; while the ledger cannot be read, what was true then is not shown as if it were true now; labels have a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pgonce.offsets_store.status.states import ENDED, STATES, QueryState
from pgonce.offsets_store.status.stored import PartitionLag

from .look import Key
from .reader import Snapshot

Partitions = Mapping[Key, Sequence[PartitionLag]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SERIES = ("query_id", "query", "sink")
# Queries in these states vanish after a while; the others still run, or need a person.
_AT_REST = ("stopped", "quiet", *ENDED)
_GONE_AFTER = timedelta(days=1)


def text(snapshot: Snapshot, partitions: Partitions) -> bytes:
    """
    All metrics.

    :param partitions: the lag of each partition of each query and sink, where it is known.
    """
    return generate_latest(_Seen(snapshot, partitions, datetime.now(timezone.utc)))


class _Seen(Collector):
    def __init__(self, snapshot: Snapshot, partitions: Partitions, now: datetime) -> None:
        self._snapshot = snapshot
        self._partitions = partitions
        self._is_current = snapshot.at is not None and snapshot.trouble is None
        self._states = [state for state in snapshot.states if not _is_gone(state, now)]
        self._names = {state.query_id: state.query_name or "" for state in self._states}

    def collect(self) -> Iterable[Metric]:
        """The metrics, each with all its series."""
        yield _gauge("pgonce_up", "Whether the ledger could be read at the last look.", (), [((), self._is_current)])
        looks = CounterMetricFamily("pgonce_looks", "How often the ledger was read since pgonce serve started.")
        looks.add_metric((), self._snapshot.looks)
        yield looks
        seconds = self._snapshot.look_seconds
        yield _gauge("pgonce_look_seconds", "How long it took to read the ledger last.", (), [((), seconds)])
        yield from self._counters()
        if self._is_current:
            yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        counts = self._snapshot.counts
        sinks = [(state.query_id, state.sink_name) for state in self._states if state.sink_name is not None]
        for name, what, found in (
            ("pgonce_batches", "Batches that were published since pgonce serve started.", counts.batches),
            ("pgonce_rows", "Rows that were published since pgonce serve started.", counts.rows),
            ("pgonce_replays", "Replays that were skipped since pgonce serve started.", counts.replays),
        ):
            family = CounterMetricFamily(name, what, labels=_SERIES)
            for query_id, sink in sinks:
                family.add_metric((query_id, self._names[query_id], sink), found.get((query_id, sink), 0))
            yield family
        failures = CounterMetricFamily(
            "pgonce_failures", "Failures that were seen since pgonce serve started.", labels=(*_SERIES, "code")
        )
        for (query_id, sink_name, code), count in sorted(counts.failures.items(), key=str):
            if query_id in self._names:
                failures.add_metric((query_id, self._names[query_id], sink_name or "", code), count)
        yield failures
        commits = HistogramMetricFamily(
            "pgonce_commit_seconds",
            "How long commits took, from BEGIN to the batch's record; the COMMIT itself is not counted.",
            labels=_SERIES,
        )
        for query_id, sink in sinks:
            if (query_id, sink) in counts.commit_seconds:
                commits.add_metric((query_id, self._names[query_id], sink), *counts.commit_seconds[query_id, sink])
        yield commits

    def _gauges(self) -> Iterator[Metric]:
        states = self._states
        kinds = ((state, kind) for state in states for kind in STATES)
        yield _gauge(
            "pgonce_state",
            "1 for the state that the query is in, 0 for the others.",
            (*_SERIES, "state"),
            [((*_labels(state), kind), float(state.state == kind)) for state, kind in kinds],
        )
        yield _gauge(
            "pgonce_last_batch_timestamp_seconds",
            "When the newest batch was published.",
            _SERIES,
            [(_labels(state), state.published_at.timestamp()) for state in states if state.published_at is not None],
        )
        yield _gauge(
            "pgonce_dead_letters",
            "Rows that were put aside and are there still; at most 10000 are counted.",
            _SERIES,
            [(_labels(state), state.dead_letters) for state in states],
        )
        yield _gauge(
            "pgonce_lag_records",
            "Kafka records that are not published yet.",
            _SERIES,
            [(_labels(state), state.lag) for state in states if state.lag is not None],
        )
        yield _gauge(
            "pgonce_lag_seconds",
            "The age of the oldest Kafka record that is not published yet.",
            _SERIES,
            [(_labels(state), state.lag_seconds) for state in states if state.lag_seconds is not None],
        )
        yield from self._as_of_consumer_groups()

    def _as_of_consumer_groups(self) -> Iterator[Metric]:
        """
        The lag under the names that exporters of consumer groups use, with the query in the place of the group.

        Of several sinks, the one that is furthest behind counts.
        """
        records: dict[tuple[str, ...], float] = {}
        seconds: dict[tuple[str, ...], float] = {}
        for state in self._states:
            if state.state in ENDED:
                continue
            for row in self._partitions.get((state.query_id, state.sink_name or ""), ()):
                if row.topic is None or row.lag is None:
                    continue
                place = (state.query_name or state.query_id, row.topic, str(row.partition), state.query_id)
                records[place] = max(row.lag, records.get(place, 0))
                if row.lag_seconds is not None:
                    seconds[place] = max(row.lag_seconds, seconds.get(place, 0.0))
        labels = ("group", "topic", "partition", "query_id")
        for name, what, found in (
            ("kafka_consumergroup_group_lag", "Kafka records of a partition that are not published yet.", records),
            ("kafka_consumergroup_group_lag_seconds", "The age of the oldest of them.", seconds),
        ):
            yield _gauge(name, what, labels, found.items())


def _labels(state: QueryState) -> tuple[str, str, str]:
    return state.query_id, state.query_name or "", state.sink_name or ""


def _gauge(
    name: str, what: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family


def _is_gone(state: QueryState, now: datetime) -> bool:
    if state.state not in _AT_REST:
        return False
    last = max((when for when in (state.published_at, state.heard_at, state.state_since) if when), default=None)
    return last is None or now - last > _GONE_AFTER
