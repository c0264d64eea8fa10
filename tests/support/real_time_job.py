"""
A driver with one query in real-time or continuous mode, which runs until it is killed.

Runs in: a process of its own. Its argument is JSON: ``url``, ``servers``, ``topic``, ``checkpoint``, ``trigger`` (the
keyword arguments of start_real_time for it), and Spark's ``spark`` settings.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import functions as f
from support.spark_session import started_session

import pgonce


def source_of(servers, topic):
    """The options of the source that reads this topic from its first record on."""
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}


def rows(records):
    """The position, and the number that the record is."""
    number = f.col("value").cast("string").cast("long").alias("id")
    return records.select("topic", "partition", "offset", number)


def main(given):
    """Start the query and wait for its end."""
    spark = started_session("real-time", given["spark"], "ERROR")
    query = pgonce.start_real_time(
        spark,
        kafka=source_of(given["servers"], given["topic"]),
        rows=rows,
        url=given["url"],
        table="numbers",
        checkpoint_location=given["checkpoint"],
        **given["trigger"],
    )
    print("STARTED", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
