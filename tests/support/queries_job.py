"""
A driver with a query for each of some ways in, over one inbox.

Runs in: a process of its own, started by a test with the arguments of :func:`main` as JSON (:func:`arguments`).
Invariant: each query runs over all there is and ends, unless the driver is killed; why one has failed is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from support.inbox import events
from support.spark_session import started_session
from support.ways_in import WAYS, Sink


def arguments(inbox: Path, sinks: Mapping[str, Sink], settings: Mapping[str, str]) -> str:
    """What a driver is told: where the rows are, each way's sink, and Spark's settings."""
    given = {"inbox": str(inbox), "sinks": {name: asdict(sink) for name, sink in sinks.items()}, "settings": settings}
    return json.dumps(given)


def main(inbox: str, sinks: dict[str, dict[str, Any]], settings: dict[str, str]) -> None:
    """Run all queries at once."""
    session = started_session("pgonce-queries", settings)
    queries = [
        way.append(events(session, Path(inbox)), Sink(**sinks[way.name]))
        .queryName(way.name)
        .trigger(availableNow=True)
        .start()
        for way in WAYS
        if way.name in sinks
    ]
    for query in queries:
        try:
            query.awaitTermination()
            print(f"ended {query.name}", flush=True)
        except StreamingQueryException as error:
            print(f"failed {query.name}: {error}", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
