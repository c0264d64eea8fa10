"""
The driver that is killed while it follows a change feed: one query for each way in, in one Spark application.

Runs in: a process of its own, started by a test with a JSON object (:class:`Job`). Invariant: it follows the feed until
it is killed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from support.followed_feed import DEBEZIUM, envelopes, followed
from support.spark_session import started_session


@dataclass(frozen=True)
class Job:
    """What to read and where to write; ``settings`` are Spark's, ``records`` is how many a batch has."""

    url: str
    directory: str
    settings: dict[str, str]
    servers: str
    topic: str
    records: int
    ways: tuple[str, ...]

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))


def main(job: Job) -> None:
    """Start all queries, and wait for the first that fails."""
    session = started_session("pgonce-feed", job.settings)
    for way in job.ways:
        changes = envelopes(session, job.servers, job.topic, job.records)
        stream = followed(way, changes, job.url, Path(job.directory), **DEBEZIUM)
        stream.trigger(processingTime="0 seconds").start()
    session.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
