"""
Load what a driver of the tests loads: a session, and a few small streaming queries of the kinds that tests run.

Runs in: a driver of its own, once (:mod:`spark_classes`), which keeps the classes that its JVM has loaded. Invariant:
it needs nothing but pyspark, and leaves nothing behind.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, window


def run(directory: Path) -> None:
    """Run queries over files: one into a function, one with state, and one into nothing."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.appName("typical")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    inbox = directory / "inbox"
    inbox.mkdir()
    for number in range(2):
        rows = [{"id": n, "name": f"name {n}", "tags": ["a"], "at": "2026-01-01T00:00:00Z"} for n in range(10)]
        (inbox / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    stream = (
        session.readStream.schema("id bigint, name string, tags array<string>, at timestamp")
        .option("maxFilesPerTrigger", 1)
        .json(str(inbox))
    )
    counts = stream.withWatermark("at", "1 minute").groupBy(window(col("at"), "1 minute"), "name").count()
    for number, (frame, mode) in enumerate([(stream, "append"), (counts, "update"), (counts, "append")]):
        written = frame.writeStream.outputMode(mode).option(
            "checkpointLocation", str(directory / f"checkpoint{number}")
        )
        written.trigger(availableNow=True).foreachBatch(_collect).start().awaitTermination()
    into_nothing = stream.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    into_nothing.trigger(availableNow=True).start().awaitTermination()
    session.stop()


def _collect(batch: DataFrame, _batch_id: int) -> None:
    # PySpark 3.5 has no toArrow.
    batch.toArrow() if hasattr(batch, "toArrow") else batch.toPandas()
    batch.count()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary))
