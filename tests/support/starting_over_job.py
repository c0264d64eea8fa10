"""
A driver whose queries all start over in place of earlier ones, for a test that kills it.

Runs in: a process of its own, started by a test with a JSON object. Invariant: a query for each way in, over one inbox;
it runs until it is killed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.inbox import events
from support.spark_session import started_session
from support.ways_in import WAYS, Sink, WayIn


def ways() -> list[WayIn]:
    """The ways in that can start over: those that write to one table."""
    return [way for way in WAYS if "function" not in way.name]


def sink_of(way: WayIn, url: str, directory: str | Path, start: str, replaces: str | None = None) -> Sink:
    """The way's own table, and its checkpoint of this start; with ``replaces`` it starts over."""
    over = {"start_over": "truncate", "replaces": replaces} if replaces else {}
    return Sink(url, f"events_{way.name}", str(Path(directory) / start / way.name), over)


def main(url: str, inbox: str, directory: str, settings: dict[str, str], replaces: dict[str, str]) -> None:
    """Start all queries, and wait for them for ever."""
    session = started_session("pgonce-starting-over", settings)
    queries = [
        way.append(events(session, Path(inbox)), sink_of(way, url, directory, "second", replaces[way.name]))
        .trigger(processingTime="500 milliseconds")
        .start()
        for way in ways()
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
