"""
The driver under test: a query for each workload, kept running as a supervisor would keep it.

Runs in: a process of its own, started by the laboratory with a JSON object (:class:`Subject`). Invariant: it knows of
no fault; a query that fails is started again as it is, one that was told that another driver goes on is left stopped,
and every end is written down.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.seams import lower_thresholds
from chaos.sources import Stream
from chaos.workloads import WORKLOADS, Place
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.queries_job import waiting_when_told
from support.spark_session import started_session
from support.supervised_query import SupervisedJob, SupervisedQuery

_TRIGGER = "100 milliseconds"
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Subject(SupervisedJob):
    """What to run: ``urls`` by workload; ``settings`` are Spark's; ``can_wait`` names those whose tasks can be held."""

    source: dict[str, Any]
    urls: dict[str, str]
    settings: dict[str, str]
    can_wait: tuple[str, ...] = ()


def checkpoint_of(directory: str | Path, workload: str) -> Path:
    """The checkpoint of a workload's query."""
    return Path(directory) / "checkpoints" / workload


def _supervised(session: SparkSession, subject: Subject, name: str) -> SupervisedQuery:
    workload = WORKLOADS[name]
    place = Place(subject.urls[name], workload.table, str(checkpoint_of(subject.directory, name)))
    tasks = waiting_when_told(str(subject.sign(f"tasks-{name}"))) if name in subject.can_wait else None

    def start(files_a_batch: int = 20, **trigger: Any) -> StreamingQuery:
        return workload.start(Stream(session, subject.source, trigger, files_a_batch, tasks), place)

    return SupervisedQuery(name, start, subject.diary)


def _finish(query: SupervisedQuery) -> None:
    """
    Run it over all that is left, however many tries that takes.

    In real time a query has no end, and is told to finish when all its rows are there.
    """
    if WORKLOADS[query.name].in_real_time:
        with suppress(Exception):
            query.query.stop()  # type: ignore[union-attr]
        return
    # What is left may be a good deal, where faults have kept it waiting.
    if not query.finish(10, files_a_batch=500):
        raise RuntimeError(f"{query.name} does not come to its end")


def main(subject: Subject) -> None:
    """Look after all queries until the sign ``finish`` is there, then bring each to its end."""
    lower_thresholds(Path(subject.directory))
    session = started_session("pgonce-chaos", subject.settings)
    queries = [_supervised(session, subject, name) for name in subject.urls]
    while not subject.sign("finish").exists():
        if subject.sign("revive").exists():
            subject.sign("revive").unlink()
            for query in queries:
                query.revive()
        for query in queries:
            query.look_after(processingTime=_TRIGGER)
        time.sleep(_PAUSE_SECONDS)
    for query in queries:
        _finish(query)
    session.stop()


if __name__ == "__main__":
    main(Subject(**json.loads(sys.argv[1])))
