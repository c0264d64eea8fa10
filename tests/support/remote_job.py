"""
A driver that starts and stops queries when it is told to, and says what becomes of them.

Runs in: a process of its own (:mod:`support.remote_driver`), which keeps what the driver, its JVM and its Python
workers print.
Invariant: it takes orders from files, prints a line for each thing that happened to a query, and does nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.gates import GATES, through_gates
from support.inbox import events, events_of_topic
from support.spark_session import started_session
from support.ways_in import WAYS, Sink

_WAYS = {way.name: way for way in WAYS}
# What becomes of the source's rows before they are written: the same rows, after a shuffle, or out of a state store.
_SHAPES = {
    "plain": lambda frame: frame,
    "shuffled": lambda frame: frame.repartition(4, "id"),
    "stateful": lambda frame: frame.dropDuplicates(["id"]),
}


def main(orders: Path, settings: dict[str, str]) -> None:
    """Obey until killed: ``NAME.start`` starts a query, ``NAME.stop`` stops it."""
    session = started_session("pgonce-stress", settings, "OFF")
    print("ready", flush=True)
    running: dict[str, StreamingQuery] = {}
    while True:
        for order in sorted(orders.iterdir()):
            name = order.stem
            if order.suffix == ".start":
                running[name] = _started(session, json.loads(order.read_text()))
                print(f"started {name}", flush=True)
            elif order.suffix == ".stop":
                running.pop(name).stop()
                print(f"stopped {name}", flush=True)
            else:
                continue
            order.unlink()
        for name in [name for name, query in running.items() if not query.isActive]:
            print(f"failed {name}: {running.pop(name).exception()}", flush=True)
        time.sleep(0.05)


def _started(session: SparkSession, order: dict[str, object]) -> StreamingQuery:
    sink = Sink(order["url"], order["table"], order["checkpoint"], order["settings"])
    topic = order["topic"]
    source = events_of_topic(session, *topic) if topic else events(session, Path(order["inbox"]))
    way, shaped = _WAYS[order["way"]], _SHAPES[order["shape"]](source)
    if way.in_foreach_batch and session.conf.get(GATES, None):
        shaped = through_gates(shaped)
    stream = way.append(shaped, sink)
    return stream.trigger(processingTime="200 milliseconds").start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
