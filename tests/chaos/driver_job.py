"""
The driver that is put to the test: one query for each of some ways in, over one inbox, in one Spark application.

Runs in: a process of its own, started by a test with a JSON object (:class:`Job`). Invariant: what it does to its rows
is nothing; it only says how far they are, and waits or fails where the job says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pyspark import TaskContext
from support.inbox import events
from support.passed_through import Batches, passed_through
from support.spark_session import started_session
from support.ways_in import WAYS, Sink, WayIn


@dataclass(frozen=True)
class Job:
    """What to run: ``settings`` are Spark's, ``ways`` are names, ``tasks`` says what tasks do with the rows besides."""

    url: str
    inbox: str
    directory: str
    settings: dict[str, str]
    ways: list[str]
    tasks: Literal["wait_when_told", "fail_twice"]

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))


def sink_of(way: WayIn, url: str, directory: str | Path) -> Sink:
    """The way's own table and checkpoint."""
    return Sink(url, f"events_{way.name}", str(Path(directory) / "checkpoints" / way.name))


def signs(way: WayIn, directory: str | Path) -> Path:
    """The folder of empty files through which test and tasks speak."""
    return Path(directory) / "signs" / way.name


def waiting_when_told(folder: str) -> Callable[[Batches], Batches]:
    """Hold a task's rows back while there is a file ``wait``; ``waiting`` tells which process does."""

    def hold(batches: Batches) -> Batches:
        for batch in batches:
            while (Path(folder) / "wait").exists():
                (Path(folder) / "waiting").write_text(str(os.getpid()))
                time.sleep(0.02)
            yield batch

    return hold


def failing_twice(folder: str) -> Callable[[Batches], Batches]:
    """Fail a task's first two attempts, after their rows have gone on."""

    def fail(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        (Path(folder) / f"attempt-{attempt}").touch()
        yield from batches
        if attempt < 2:
            raise RuntimeError(f"attempt {attempt} fails, as it should")

    return fail


def main(job: Job) -> None:
    """Start all queries; one that may fail tasks ends when all rows are through, the other never does."""
    session = started_session("pgonce-chaos", job.settings)
    queries = []
    for way in (way for way in WAYS if way.name in job.ways):
        folder = str(signs(way, job.directory))
        tasks = waiting_when_told(folder) if job.tasks == "wait_when_told" else failing_twice(folder)
        stream = way.append(
            passed_through(tasks, events(session, Path(job.inbox))), sink_of(way, job.url, job.directory)
        )
        trigger = {"processingTime": "500 milliseconds"} if job.tasks == "wait_when_told" else {"availableNow": True}
        queries.append(stream.trigger(**trigger).start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
