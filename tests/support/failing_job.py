"""
A job whose query is refused, as a user would write it: what it prints is what a user sees.

Runs in: a driver of its own. Its argument is JSON: ``url``, ``checkpoint``, the ``way`` in, whether it ``watches``,
Spark's settings, and how it ends: a ``script`` lets the error out, a ``notebook`` prints its traceback, as one would.
"""

from __future__ import annotations

import json
import sys
import traceback

from support.spark_session import started_session

import pgonce
from pgonce import PostgresBatchWriter, transactional_batch


def main(given):
    """Run the query until it fails."""
    spark = started_session("failing", given["spark"], "WARN")
    if given["watches"]:
        pgonce.watch(spark, given["url"])
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load().select("value")
    writer = frame.writeStream.option("checkpointLocation", given["checkpoint"]).queryName("orders")
    print("BEGINS", flush=True)
    print("BEGINS", file=sys.stderr, flush=True)
    match given["way"]:
        case "sink":
            query = writer.format("pgonce").option("url", given["url"]).option("table", "events").start()
        case "planner":
            query = writer.format("pgonce").option("url", given["url"]).option("table", "missing").start()
        case "writer":
            query = writer.foreachBatch(PostgresBatchWriter(given["url"], table="events")).start()
        case "function":
            function = transactional_batch(given["url"], name="events")(lambda batch, tx: tx.append(batch, "events"))
            query = writer.foreachBatch(function).start()
    if given["ends"] == "script":
        query.awaitTermination()
        return
    try:
        query.awaitTermination()
    except Exception:
        print("SHOWN", flush=True)
        traceback.print_exc(file=sys.stdout)
        print("EXPLAINED", flush=True)
        print(pgonce.explain(query))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
