"""
A driver with a query for each of some ways in, over one inbox, until each has ended or it is told to stop.

Runs in: a process of its own, started by a test with a JSON object (:class:`Job`). Invariant: the rows of a query stay
as they are, and how it ended is in a file, in the words of its own StreamingQueryException, before the driver goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery
from support.inbox import events
from support.passed_through import Batches, passed_through
from support.spark_session import started_session
from support.ways_in import WAYS, Sink, WayIn


@dataclass(frozen=True)
class Job:
    """
    What to run: ``sinks`` has the fields of each way's sink, and ``spark`` are Spark's settings.

    ``signs`` is the folder of files through which test and driver speak: the driver touches ``ready`` and waits for
    ``go``; ``ended-<way>`` says how a query ended; ``stop`` stops all. If ``tasks_wait``, a task waits while there is
    ``<way>/wait``, and says in ``<way>/waiting`` which process does.
    """

    signs: str
    inbox: str
    sinks: dict[str, dict[str, Any]]
    spark: Mapping[str, str]
    trigger: dict[str, Any]
    tasks_wait: bool = False

    def to_json(self) -> str:
        """As the driver's argument."""
        for way in self.sinks:
            (Path(self.signs) / way).mkdir(parents=True)
        return json.dumps(asdict(self))

    def sign(self, name: str) -> Path:
        """One of the files."""
        return Path(self.signs) / name

    def ending(self, way: str) -> str | None:
        """How the way's query ended, which is an empty text if it was not by a failure; None while it goes on."""
        file = self.sign(f"ended-{way}")
        return file.read_text() if file.exists() else None


def sink_of(way: WayIn, url: str, directory: str | Path, **settings: Any) -> Sink:
    """The way's own table and checkpoint."""
    return Sink(url, f"events_{way.name}", str(Path(directory) / "checkpoints" / way.name), settings)


def sinks_of(ways: Iterable[WayIn], url: str, directory: str | Path, **settings: Any) -> dict[str, dict[str, Any]]:
    """Those of several ways, as a job is told."""
    return {way.name: asdict(sink_of(way, url, directory, **settings)) for way in ways}


def waiting_when_told(folder: str) -> Callable[[Batches], Batches]:
    """Hold a task's rows back while there is a file ``wait``; ``waiting`` tells which process does."""

    def hold(batches: Batches) -> Batches:
        for batch in batches:
            while (Path(folder) / "wait").exists():
                (Path(folder) / "waiting").write_text(str(os.getpid()))
                time.sleep(0.02)
            yield batch

    return hold


def main(job: Job) -> None:
    """Start all queries when told, and note how each one ends."""
    session = started_session("pgonce-queries", job.spark)
    job.sign("ready").touch()
    while not job.sign("go").exists():
        time.sleep(0.005)
    running: dict[str, StreamingQuery] = {}
    for way in (way for way in WAYS if way.name in job.sinks):
        rows = events(session, Path(job.inbox))
        if job.tasks_wait:
            rows = passed_through(waiting_when_told(str(job.sign(way.name))), rows)
        try:
            stream = way.append(rows, Sink(**job.sinks[way.name])).queryName(way.name)
            running[way.name] = stream.trigger(**job.trigger).start()
        except (PySparkException, Py4JJavaError) as refused:
            _note(job, way.name, f"start: {refused}")
    while running:
        stopping = job.sign("stop").exists()
        for name, query in list(running.items()):
            if stopping:
                query.stop()
            if not query.isActive:
                _note(job, name, str(query.exception() or ""))
                del running[name]
        time.sleep(0.05)
    session.stop()


def _note(job: Job, way: str, ending: str) -> None:
    print(f"{way} ended: {ending}", flush=True)
    unseen = job.sign(f".ended-{way}")
    unseen.write_text(ending)
    unseen.rename(job.sign(f"ended-{way}"))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
