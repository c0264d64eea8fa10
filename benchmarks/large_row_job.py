"""
Write one row of many megabytes in one batch, and print whether it was stored whole or refused with an error.

Runs as a driver of its own, because a row that is too large may end it: `python large_row_job.py URL DIR
WAY:TYPE:MEGABYTES...`. Invariant: a size counts as stored only if Postgres says that the row has as many bytes as were
sent; each outcome is one line of JSON, printed before the next size is tried.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pgonce import BatchTransaction, PostgresBatchWriter, transactional_batch

MEGABYTE = 1_000_000
_LONGEST_SECONDS = 600
# What the column is in Postgres, how the row's text becomes its value, and how many bytes of it Postgres has.
TYPES = {
    "text": ("text", "note", "octet_length(note)"),
    "bytea": ("bytea", "CAST(note AS binary) AS note", "octet_length(note)"),
    "jsonb": ("jsonb", "named_struct('said', note) AS note", "octet_length(note ->> 'said')"),
}
WAYS = ("inline", "staged", "receiver", "PostgresBatchWriter", "transactional_batch")


def main(arguments: list[str]) -> int:
    """Exit code 0: every outcome is printed, a refusal too."""
    url, directory, *cases = arguments
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", f"{directory}/local")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for case in cases:
        way, kind, megabytes = case.split(":")
        print(json.dumps(_tried(spark, url, Path(directory), way, kind, float(megabytes))), flush=True)
    spark.stop()
    return 0


def _tried(spark: SparkSession, url: str, directory: Path, way: str, kind: str, megabytes: float) -> dict[str, Any]:
    name = f"{way}_{kind}_{megabytes:g}".replace(".", "_").lower()
    column, expression, stored = TYPES[kind]
    size = int(megabytes * MEGABYTE)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {name}".encode())
        # Not compressed: all bytes are written, as those of a picture or of an encrypted text would be.
        connection.execute(f"CREATE TABLE {name} (id bigint, note {column})".encode())
        connection.execute(f"ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL".encode())
    peaks = Peaks()
    began = time.perf_counter()
    with peaks:
        error = _run(spark, url, directory / name, way, name, expression, size)
    took = time.perf_counter() - began
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(f"SELECT id, {stored} FROM {name}".encode()).fetchall()
        connection.execute(f"DROP TABLE {name}".encode())
    outcome = "stored" if found == [(0, size)] else "refused" if error and not found else f"WRONG: {found}"
    case = {"way": way, "type": kind, "megabytes": megabytes}
    return {**case, "outcome": outcome, "error": error, "seconds": took, **peaks.megabytes}


def _run(spark: SparkSession, url: str, checkpoint: Path, way: str, table: str, expression: str, size: int) -> str:
    """The first words of the error, or nothing."""
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
    # Made from the row, so that it is not a constant that Spark folds into its plan.
    note = f"repeat(char(97 + CAST(value AS int) % 26), {size}) AS note"
    rows = source.selectExpr("value AS id", note).selectExpr("id", expression)
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint))
    # One batch: the next one would only come after an hour.
    query = _way(writer, url, table, way).trigger(processingTime="1 hour").start()
    try:
        until = time.monotonic() + _LONGEST_SECONDS
        while query.exception() is None and query.lastProgress is None:
            if time.monotonic() > until:
                return f"not done in {_LONGEST_SECONDS} s"
            time.sleep(0.05)
        said = query.exception()
    finally:
        query.stop()
    return "" if said is None else in_short(str(said))


def in_short(said: str) -> str:
    """The line of an error that says what happened."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = "pgonce.", "OutOfMemory", "Error:", "Exception:"
    telling = [line for line in lines if any(word in line for word in words)]
    return " | ".join(dict.fromkeys([*lines[:1], *telling]))[:1500]


def _way(writer: DataStreamWriter, url: str, table: str, way: str) -> DataStreamWriter:
    options = {"url": url, "table": table}
    sinks: dict[str, Callable[[], DataStreamWriter]] = {
        "inline": lambda: writer.format("pgonce").options(**options, inlineBytes=str(1 << 30), receiver="off"),
        "staged": lambda: writer.format("pgonce").options(**options, receiver="off"),
        "receiver": lambda: writer.format("pgonce").options(**options, receiver="auto"),
        "PostgresBatchWriter": lambda: writer.foreachBatch(PostgresBatchWriter(url, table=table)),
        "transactional_batch": lambda: writer.foreachBatch(_function(url, table)),
    }
    return sinks[way]()


def _function(url: str, table: str) -> Callable[[DataFrame, int], None]:
    @transactional_batch(url, name=table)
    def append(batch: DataFrame, tx: BatchTransaction) -> None:
        tx.append(batch, table)

    return append


class Peaks:
    """The largest resident size, in MB, of the JVM and of any Python process while a block runs."""

    def __init__(self) -> None:
        self.megabytes = {"jvm_mb": 0.0, "python_mb": 0.0}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.05):
            own = psutil.Process()
            for process in [own, *own.children(recursive=True)]:
                try:
                    kind = "jvm_mb" if process.name() == "java" else "python_mb"
                    size = process.memory_info().rss / 1e6
                except psutil.Error:
                    continue
                self.megabytes[kind] = max(self.megabytes[kind], round(size))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
