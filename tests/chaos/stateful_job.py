"""
The driver of the tests of queries that keep state: one query for each kind of state and way in, over one inbox.

Runs in: a process of its own, started by a test with a JSON object (:class:`Job`). Invariant: what a query's table must
hold follows from the ids in the inbox alone; the time of a row is its id in seconds, an hour later.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from support.inbox import events
from support.spark_session import started_session
from support.ways_in import WAYS, Sink, WayIn

KEYS, WINDOW, DELAY, APART = 7, 10, 25, 15
# The first watermark is 1970; a row of that very moment would be late.
_BEGINNING = 3600
# Spark waits ten seconds, which no setting changes, for the worker that says what a transformWithState keeps.
_WORKER_CAME_LATE = "Python worker failed to connect back"
_STATE_STORE = "spark.sql.streaming.stateStore."
_CHANGELOG = f"{_STATE_STORE}rocksdb.changelogCheckpointing.enabled"
ON_ROCKSDB = {
    f"{_STATE_STORE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
}


@dataclass(frozen=True)
class Job:
    """
    What to run: ``settings`` are Spark's, ``queries`` are names of :data:`SUBJECTS`; those in ``with_changelog`` write
    the changes of their state down, the others snapshots. A job that ``ends`` does so when all rows are through.
    """

    url: str
    inbox: str
    directory: str
    settings: dict[str, str]
    queries: Sequence[str]
    with_changelog: Sequence[str]
    ends: bool

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))


class Ranks(StatefulProcessor):
    """How many rows of a key have come so far, with each row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the counter."""
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Count a batch's rows of one key, in the order of their ids."""
        (count,) = self._count.get() or (0,)
        for row in sorted(rows, key=lambda row: row.id):
            count += 1
            yield Row(id=row.id, n=count)
        self._count.update((count,))

    def close(self) -> None:
        """Nothing is held."""


def _timed(rows: DataFrame) -> DataFrame:
    return rows.select("id", f.timestamp_seconds(f.col("id") + _BEGINNING).alias("at")).withWatermark(
        "at", f"{DELAY} seconds"
    )


def _deduplicated(rows: DataFrame, _: DataFrame) -> DataFrame:
    parts = _timed(rows).withColumn("id", f.expr(f"id DIV {KEYS}"))
    return parts.dropDuplicatesWithinWatermark(["id"]).select("id")


def _joined(rows: DataFrame, others: DataFrame) -> DataFrame:
    one, other = _timed(rows), _timed(others).toDF("other", "other_at")
    close = f.expr(f"id = other + {APART} AND at BETWEEN other_at AND other_at + INTERVAL {APART} SECONDS")
    return one.join(other, close).select("id", "other")


def _ranked(rows: DataFrame, _: DataFrame) -> DataFrame:
    keyed = rows.select("id", (f.col("id") % KEYS).alias("k")).groupBy("k")
    return keyed.transformWithState(Ranks(), "id bigint, n bigint", "Append", "None")


def _windowed(rows: DataFrame, _: DataFrame) -> DataFrame:
    counts = _timed(rows).groupBy(f.window("at", f"{WINDOW} seconds")).agg(f.count("*"), f.sum("id"))
    return counts.select(f.unix_seconds("window.start") - _BEGINNING, "count(1)", "sum(id)").toDF("id", "n", "total")


def _summed(rows: DataFrame, _: DataFrame) -> DataFrame:
    keyed = rows.select("id", (f.col("id") % KEYS).alias("k")).groupBy("k").agg(f.count("*"), f.sum("id"))
    return keyed.toDF("id", "n", "total")


def _expected_windows(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Those that the watermark has passed; all of their rows have come."""
    closed = (max(ids) - DELAY) // WINDOW
    starts = [number * WINDOW for number in range(closed)]
    return [(start, WINDOW, sum(range(start, start + WINDOW))) for start in starts]


@dataclass(frozen=True)
class Kind:
    """
    One kind of state: the query, the columns of its table, and what the table holds in the end, given the ids sent.

    ``accumulates`` tells that a row, once there, stays as it is; otherwise the table is kept equal to an aggregate.
    """

    frame: Callable[[DataFrame, DataFrame], DataFrame]
    columns: str
    expected: Callable[[Sequence[int]], list[tuple[int, ...]]]
    accumulates: bool = True


def _expected_keys(ids: Sequence[int]) -> list[tuple[int, ...]]:
    return [(key,) for key in sorted({number // KEYS for number in ids})]


KINDS = {
    "deduplicated": Kind(_deduplicated, "id bigint", _expected_keys),
    "joined": Kind(
        _joined, "id bigint, other bigint", lambda ids: [(number, number - APART) for number in ids if number >= APART]
    ),
    "ranked": Kind(_ranked, "id bigint, n bigint", lambda ids: [(number, number // KEYS + 1) for number in ids]),
    "windowed": Kind(_windowed, "id bigint, n bigint, total bigint", _expected_windows),
    "summed": Kind(
        _summed,
        "id bigint, n bigint, total bigint",
        lambda ids: [
            (key, len(of_key), sum(of_key))
            for key in range(KEYS)
            if (of_key := [number for number in ids if number % KEYS == key])
        ],
        accumulates=False,
    ),
}


@dataclass(frozen=True)
class Subject:
    """A query under test: one kind of state, over one way in."""

    kind: str
    way: WayIn

    @property
    def name(self) -> str:
        """Of the query, its table and its checkpoint."""
        return f"{self.kind}_{self.way.name}"

    def sink(self, url: str, directory: str | Path) -> Sink:
        """Its own table and checkpoint."""
        return Sink(url, self.name, str(Path(directory) / "checkpoints" / self.name))

    def stream(self, frame: DataFrame, sink: Sink) -> DataStreamWriter:
        """The query over what its kind makes of the inbox, ready to start."""
        writer = self.way.append if KINDS[self.kind].accumulates else self.way.totals
        more = () if KINDS[self.kind].accumulates else ("id",)
        return writer(frame, sink, *more).queryName(self.name)


def _subjects() -> Iterator[Subject]:
    for kind, what in KINDS.items():
        for way in WAYS:
            if way.name in {"inline", "writer_append"} or (way.upserts and not what.accumulates):
                yield Subject(kind, way)


SUBJECTS = tuple(_subjects())


def main(job: Job) -> None:
    """Start all queries, and run until this process is ended, or until all rows are through."""
    session = started_session("pgonce-stateful", job.settings)

    def started(subject: Subject) -> StreamingQuery:
        session.conf.set(_CHANGELOG, str(subject.name in job.with_changelog).lower())
        rows, others = (events(session, Path(job.inbox)) for _ in range(2))
        stream = subject.stream(KINDS[subject.kind].frame(rows, others), subject.sink(job.url, job.directory))
        trigger: dict[str, Any] = {"availableNow": True} if job.ends else {"processingTime": "0 seconds"}
        return stream.trigger(**trigger).start()

    running = {subject: started(subject) for subject in SUBJECTS if subject.name in job.queries}
    print("STARTED", flush=True)
    until = all if job.ends else any
    while not until(_has_ended(query) for query in running.values()):
        time.sleep(0.2)
        running |= {subject: started(subject) for subject, query in running.items() if _worker_came_late(query)}
    failed = [query for query in running.values() if query.exception() is not None]
    for query in failed:
        print(f"ENDED {query.name}: {query.exception()}", flush=True)
    sys.exit(bool(failed))


def _has_ended(query: StreamingQuery) -> bool:
    return not query.isActive and not _worker_came_late(query)


def _worker_came_late(query: StreamingQuery) -> bool:
    return _WORKER_CAME_LATE in str(query.exception())


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
