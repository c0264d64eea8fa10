"""
The driver of the tests under asynchronous progress tracking: one query for each way to be exactly-once there.

Runs in: a process of its own, started by a test with a JSON object (:class:`Job`). Invariant: every query reads the
same topic and filters and multiplies its records in the same way, so that one rule says what its table must hold.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.spark_session import started_session

from pgonce import PostgresBatchWriter, recover_and_start, transactional_batch

POSITIONS = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Job:
    """What to run, and how: ``settings`` are Spark's."""

    url: str
    bootstrap_servers: str
    topic: str
    directory: str
    settings: dict[str, str]
    ways: tuple[str, ...]

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))


def selected(partition: int, offset: int) -> list[str]:
    """The rows that a record becomes: none in two of three, one or two otherwise; in partition 2 none of most."""
    if offset % 3 or (partition == 2 and offset % 50):
        return []
    return [f"{partition}-{offset}-{n}" for n in range(1 + offset % 2)]


def rows_of(records: DataFrame) -> DataFrame:
    """What :func:`selected` says, in Spark."""
    kept = records.where("offset % 3 = 0 AND (partition <> 2 OR offset % 50 = 0)")
    numbers = f.explode(f.sequence(f.lit(0), (f.col("offset") % 2).cast("int")))
    return kept.select(*POSITIONS, numbers.alias("n")).select(
        f.concat_ws("-", "partition", "offset", "n").alias("id"), *POSITIONS
    )


def _data_source(table: str, **options: str) -> Callable[[DataFrame, Job], DataStreamWriter]:
    def write(rows: DataFrame, job: Job) -> DataStreamWriter:
        stream = rows if "positionColumns" in options else rows.select("id")
        return stream.writeStream.format("pgonce").options(url=job.url, table=table, **options)

    return write


def _writer(table: str, *, by_position: bool) -> Callable[[DataFrame, Job], DataStreamWriter]:
    def write(rows: DataFrame, job: Job) -> DataStreamWriter:
        columns = {"position_columns": POSITIONS, "write_positions": False} if by_position else {}
        stream = rows if by_position else rows.select("id")
        return stream.writeStream.foreachBatch(PostgresBatchWriter(job.url, table=table, **columns))

    return write


def _function(table: str, *, by_position: bool) -> Callable[[DataFrame, Job], DataStreamWriter]:
    def write(rows: DataFrame, job: Job) -> DataStreamWriter:
        @transactional_batch(job.url, name=table, position_columns=POSITIONS if by_position else ())
        def insert(batch, tx):
            tx.append(batch.select("id"), table)

        return rows.writeStream.foreachBatch(insert)

    return write


# Each with its interval in milliseconds, and whether the checkpoint is repaired before it starts.
WAYS: dict[str, tuple[Callable[[DataFrame, Job], DataStreamWriter], int, bool]] = {
    "source_0": (_data_source("source_0"), 0, False),
    "source_positions": (
        _data_source("source_positions", positionColumns=",".join(POSITIONS), writePositions="false"), 1000, True
    ),
    "source_staged": (
        _data_source("source_staged", positionColumns=",".join(POSITIONS), inlineBytes="0", receiver="off"), 1000, True
    ),
    "source_received": (
        _data_source(
            "source_received", positionColumns=",".join(POSITIONS), writePositions="false", inlineBytes="0"
        ), 1000, True
    ),
    "writer_0": (_writer("writer_0", by_position=False), 0, False),
    "writer_1000": (_writer("writer_1000", by_position=False), 1000, True),
    "writer_positions": (_writer("writer_positions", by_position=True), 1000, False),
    "function_1000": (_function("function_1000", by_position=False), 1000, True),
    "function_positions": (_function("function_positions", by_position=True), 1000, False),
}  # fmt: skip


def main(job: Job) -> None:
    """Start all queries, and run until this process is ended."""
    session = started_session("pgonce-async", job.settings)
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("subscribe", job.topic)
        .option("startingOffsets", "latest")
        .load()
    )
    queries = []
    for name in job.ways:
        write, interval, repairs = WAYS[name]
        writer = (
            write(rows_of(records), job)
            .queryName(name)
            .option("asyncProgressTrackingEnabled", "true")
            .option("asyncProgressTrackingCheckpointIntervalMs", str(interval))
            .trigger(processingTime="0 seconds")
        )
        checkpoint = str(Path(job.directory) / name)
        if repairs:
            queries.append(recover_and_start(writer, checkpoint, job.url, quiet_seconds=0.2))
        else:
            allowed = {"_asyncProgressTrackingOverrideSinkSupportCheck": "true", "checkpointLocation": checkpoint}
            queries.append(writer.options(**allowed).start())
    print("STARTED", flush=True)
    while all(query.isActive for query in queries):
        time.sleep(0.2)
    for query in queries:
        if not query.isActive:
            print(f"ENDED {query.name}: {query.exception()}", flush=True)
    sys.exit(1)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Job(**given | {"ways": tuple(given["ways"])}))
