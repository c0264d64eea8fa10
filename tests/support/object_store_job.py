"""
A driver with two queries whose checkpoints are in an object store: one writes by the sink, one in foreachBatch.

Runs in: a process of its own, started by a test with a JSON object. Invariant: each query runs over all there is and
ends, unless the driver is killed; why one has failed is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from support.inbox import events
from support.spark_session import started_session
from support.ways_in import WAYS as ALL_WAYS
from support.ways_in import Sink

WAYS = {way.name: way for way in ALL_WAYS if way.name in {"staged", "writer_append"}}


def sink_of(name: str, url: str, store: str) -> Sink:
    """A way's own table, and its checkpoint in the store."""
    return Sink(url, f"events_{name}", f"{store}/checkpoints/{name}")


def main(url: str, inbox: str, store: str, settings: dict[str, str]) -> None:
    """Run both queries at once."""
    session = started_session("pgonce-object-store", settings)
    queries = []
    for name, way in WAYS.items():
        stream = way.append(events(session, Path(inbox)), sink_of(name, url, store))
        queries.append((name, stream.queryName(name).trigger(availableNow=True).start()))
    for name, query in queries:
        try:
            query.awaitTermination()
            print(f"ended {name}", flush=True)
        except StreamingQueryException as error:
            print(f"failed {name}: {error}", flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
