"""
Streams whose password expires while they run, by every way in and every transport.

Runs in: a driver of its own. Its first argument is a file with JSON: url, folders, and Spark's settings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.spark_session import started_session

from pgonce import (
    OffsetsListener,
    OffsetsStore,
    PostgresBatchWriter,
    transactional_batch,
)

SOURCE = "support.rotating_password:asked"
# A function that runs a command, as docs/security.md shows.
BY_COMMAND = "support.rotating_password:from_a_command"


def main(given):
    """Run one query for each way in, all at once."""
    spark = started_session("tokens", given["spark"])
    listener = OffsetsListener(given["url"], password_from=SOURCE)
    spark.streams.addListener(listener)
    queries = [start(spark, given, way) for way in given["ways"]]
    for query in queries:
        query.awaitTermination()
    listener.close()
    print("STATUS", len(OffsetsStore(given["url"], password_from=SOURCE).status()))
    spark.stop()


def start(spark, given, way):
    """A query of many batches, one for each file."""
    url, source = given["url"], BY_COMMAND if way == "writer" else SOURCE
    frame = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", 1).json(given["source"])
    writer = frame.repartition(2).writeStream.option("checkpointLocation", f"{given['folder']}/{way}")
    if way == "writer":
        writer = writer.foreachBatch(PostgresBatchWriter(url, table=way, retry_timeout=120, password_from=source))
    elif way == "function":

        @transactional_batch(url, name=way, retry_timeout=120, password_from=source)
        def write(batch, tx):
            tx.append(batch, "function")

        writer = writer.foreachBatch(write)
    else:
        writer = writer.format("pgonce").options(
            url=url,
            table=way,
            inlineBytes="8388608" if way == "inline" else "0",
            receiver="auto" if way == "received" else "off",
            retryTimeout="120",
            passwordFrom=source,
        )
    return writer.queryName(way).trigger(availableNow=True).start()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
