"""
A driver whose batches are watched: by OpenTelemetry, by the log, and on Spark's own page.

Runs in: a process of its own, with OpenTelemetry configured by the environment, as `opentelemetry-instrument` does.
Its argument is JSON: a connection string, Spark's settings, and a folder for checkpoints and rows.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from opentelemetry import trace
from pyspark.sql import DataFrame
from support.spark_session import started_session

from pgonce import BatchTransaction, PostgresBatchWriter, transactional_batch


def main(url: str, settings: dict[str, str], folder: str) -> None:
    """Write the same two rows by each way in, and print how Spark's page would describe the jobs."""
    session = started_session("watched", settings)
    source = Path(folder, "source")
    source.mkdir()
    (source / "1.json").write_text('{"id": 1}\n{"id": 2}')
    frame = session.readStream.schema("id long").json(str(source))
    writer = PostgresBatchWriter(url, table='"<i>events"', independent=True)

    def in_a_span(batch: DataFrame, batch_id: int) -> None:
        with trace.get_tracer("program").start_as_current_span("program's own"):
            writer(batch, batch_id)
        batch.count()

    @transactional_batch(url, name="by function", independent=True)
    def by_function(batch: DataFrame, tx: BatchTransaction) -> None:
        tx.append(batch, "by_function")

    def run(name: str, written: Any) -> None:
        placed = written.option("checkpointLocation", str(Path(folder, name))).queryName(name)
        placed.trigger(availableNow=True).start().awaitTermination()

    run("in_a_span", frame.writeStream.foreachBatch(in_a_span))
    run("by_function", frame.writeStream.foreachBatch(by_function))
    by_format = {"url": url, "table": "by_format", "independent": "true"}
    run("by_format", frame.writeStream.format("pgonce").options(**by_format))
    job = {"url": url, "table": "by_job", "batchKey": "monday"}
    session.read.schema("id long").json(str(source)).write.format("pgonce").options(**job).mode("append").save()
    print("JOBS", json.dumps(descriptions(session)), flush=True)
    # The test ends it, when Spark's workers have sent what they know.
    signal.pause()


def descriptions(session: Any) -> list[str]:
    """What the page says of each job that it describes, in the order in which they were started."""
    listed = session.sparkContext._jsc.sc().statusStore().jobsList(None)  # noqa: SLF001 (Python has no list of jobs)
    jobs = [listed.apply(number) for number in range(listed.size())]
    told = sorted((job.jobId(), job.description()) for job in jobs)
    return [said.get() for _, said in told if said.isDefined()]


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
