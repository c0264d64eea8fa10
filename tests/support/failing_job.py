"""
A job whose query is refused, as a user would write it: what it prints is what a user sees.

Runs in: a driver of its own, which ends by the error, as a script would. Before, the error is shown as a notebook
shows it. Its argument is JSON: ``url``, ``checkpoint``, the ``way`` in, and Spark's settings.
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
    pgonce.watch(spark, given["url"])
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load().select("value")
    writer = frame.writeStream.option("checkpointLocation", given["checkpoint"]).queryName("orders")
    print("BEGINS", flush=True)
    match given["way"]:
        case "sink":
            query = writer.format("pgonce").option("url", given["url"]).option("table", "events").start()
        case "writer":
            query = writer.foreachBatch(PostgresBatchWriter(given["url"], table="events")).start()
        case "function":
            function = transactional_batch(given["url"], name="events")(lambda batch, tx: tx.append(batch, "events"))
            query = writer.foreachBatch(function).start()
    try:
        query.awaitTermination()
    except Exception:
        print("SHOWN", flush=True)
        traceback.print_exc(file=sys.stdout)
        print("ENDS", flush=True)
        raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
