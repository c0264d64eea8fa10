"""
One of two drivers that work on the same checkpoints: a query for each way in, until each has ended or is told to.

Runs in: a process of its own, started by a test with a JSON object (:class:`Contest`). Invariant: how a query ended is
in a file, in the words of its own StreamingQueryException, before the driver goes on.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chaos.driver_job import sink_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery
from support.inbox import events
from support.spark_session import started_session
from support.ways_in import WAYS, WayIn


@dataclass(frozen=True)
class Contest:
    """What to run: ``name`` tells the drivers apart, ``settings`` are Spark's, ``lock_timeout`` is in seconds."""

    name: str
    url: str
    inbox: str
    directory: str
    settings: dict[str, str]
    lock_timeout: int

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))

    @property
    def signs(self) -> Path:
        """
        The folder of files through which test and driver speak.

        The driver touches ``ready`` and waits for ``go``; ``ended-<way>`` says how a query ended; ``stop`` stops all.
        """
        return Path(self.directory) / "signs" / self.name

    def ending(self, way: WayIn) -> str | None:
        """How the way's query ended; None while it goes on."""
        file = self.signs / f"ended-{way.name}"
        return file.read_text() if file.exists() else None


def main(contest: Contest) -> None:
    """Start all queries when told, and note how each one ends."""
    session = started_session(f"pgonce-contest-{contest.name}", contest.settings)
    (contest.signs / "ready").touch()
    while not (contest.signs / "go").exists():
        time.sleep(0.005)
    running: dict[str, StreamingQuery] = {}
    for way in WAYS:
        sink = replace(sink_of(way, contest.url, contest.directory), settings={"lock_timeout": contest.lock_timeout})
        try:
            stream = way.append(events(session, Path(contest.inbox)), sink)
            running[way.name] = stream.trigger(processingTime="200 milliseconds").start()
        except (PySparkException, Py4JJavaError) as refused:
            _note(contest, way.name, f"start: {refused}")
    while running:
        stopping = (contest.signs / "stop").exists()
        for name, query in list(running.items()):
            if stopping:
                query.stop()
            if not query.isActive:
                _note(contest, name, str(query.exception() or "stopped"))
                del running[name]
        time.sleep(0.05)
    session.stop()


def _note(contest: Contest, way: str, ending: str) -> None:
    unseen = contest.signs / f".ended-{way}"
    unseen.write_text(ending)
    unseen.rename(contest.signs / f"ended-{way}")


if __name__ == "__main__":
    main(Contest(**json.loads(sys.argv[1])))
