"""
The driver that is soaked: one query for each way in that it is given, triggered as often as Spark can.

Runs in: a process of its own, so that its growth is not mixed with the watcher's. Invariant: it keeps nothing of the
batches; the time of each goes to a file as soon as it is known.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pgonce import BatchTransaction, PostgresBatchWriter, transactional_batch

# Spark keeps this many progress reports. They are polled often enough to miss none at 2 ms a batch.
_KEPT_REPORTS = 1000
_POLL_SECONDS = 2.0
_COLUMNS = ("value AS id", "CAST(value % 10 AS int) AS kind", "concat('row ', CAST(value AS string)) AS note")

WAYS = ("writer", "inline", "staged", "function")


@dataclass(frozen=True)
class Job:
    """What to run; ``settings`` are Spark's, and ``directory`` is for checkpoints and the files of times."""

    url: str
    ways: tuple[str, ...]
    batches: int
    rows: int
    retain_batches: int
    directory: str
    settings: dict[str, str]

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))

    def times(self, way: str) -> Path:
        """The file of a way's times: for each batch a line with its number and Spark's ``triggerExecution`` in ms."""
        return Path(self.directory) / f"{way}.times"


def tables(way: str) -> str:
    """The DDL of a way's target; a transaction function also has totals."""
    ddl = f"CREATE TABLE soak_{way} (id bigint, kind integer, note text);"
    if way == "function":
        ddl += f"CREATE TABLE soak_{way}_totals (kind integer PRIMARY KEY, rows bigint);"
    return ddl


def _started(session: SparkSession, job: Job, way: str) -> StreamingQuery:
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", job.rows).option("numPartitions", 2)
    writer = source.load().selectExpr(*_COLUMNS).writeStream.queryName(way)
    writer = _STREAMS[way](writer, job).option("checkpointLocation", f"{job.directory}/checkpoint-{way}")
    return writer.trigger(processingTime="0 seconds").start()


def _batch_writer(writer: DataStreamWriter, job: Job) -> DataStreamWriter:
    return writer.foreachBatch(PostgresBatchWriter(job.url, table="soak_writer", retain_batches=job.retain_batches))


def _data_source(table: str, inline_bytes: int) -> Callable[[DataStreamWriter, Job], DataStreamWriter]:
    def stream(writer: DataStreamWriter, job: Job) -> DataStreamWriter:
        options: dict[str, Any] = {"retainBatches": job.retain_batches, "inlineBytes": inline_bytes, "receiver": "off"}
        return writer.format("pgonce").option("url", job.url).option("table", table).options(**options)

    return stream


def _function(writer: DataStreamWriter, job: Job) -> DataStreamWriter:
    @transactional_batch(job.url, name="soak", retain_batches=job.retain_batches)
    def write(batch: DataFrame, tx: BatchTransaction) -> None:
        tx.append(batch, "soak_function")
        # Goes through a temporary table, as every upsert does.
        tx.upsert(batch.groupBy("kind").count().withColumnRenamed("count", "rows"), "soak_function_totals", ["kind"])
        tx.execute("UPDATE soak_function_totals SET rows = rows + 1 WHERE kind = %s", [0])

    return writer.foreachBatch(write)


_STREAMS: dict[str, Callable[[DataStreamWriter, Job], DataStreamWriter]] = {
    "writer": _batch_writer,
    "inline": _data_source("soak_inline", 1_000_000),
    "staged": _data_source("soak_staged", 0),
    "function": _function,
}


def main(job: Job) -> None:
    """Run every way for a number of batches and report that; go on until standard input, and so the watcher, ends."""
    threading.Thread(target=_end_with_the_watcher, daemon=True).start()
    builder = SparkSession.builder.appName("pgonce-soak")
    settings = {**job.settings, "spark.sql.streaming.numRecentProgressUpdates": str(_KEPT_REPORTS)}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    running = {way: _started(session, job, way) for way in job.ways}
    noted = dict.fromkeys(running, -1)
    while any(last < job.batches - 1 for last in noted.values()):
        time.sleep(_POLL_SECONDS)
        for way, query in running.items():
            if (error := query.exception()) is not None:
                raise error
            noted[way] = _note(query, job.times(way), noted[way])
    print("soaked", flush=True)
    threading.Event().wait()


def _end_with_the_watcher() -> None:
    sys.stdin.read()
    # Not sys.exit, which would end only this thread; the JVM ends when its own standard input does.
    os._exit(0)


def _note(query: StreamingQuery, times: Path, last: int) -> int:
    reports = [report for report in query.recentProgress if report.batchId > last and report.numInputRows]
    with times.open("a") as file:
        file.writelines(f"{report.batchId} {report.durationMs['triggerExecution']}\n" for report in reports)
    return max((report.batchId for report in reports), default=last)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Job(**{**given, "ways": tuple(given["ways"])}))
