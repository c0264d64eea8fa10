"""
Stop a task on an executor until a test lets it go on.

Runs in: each Python of an executor, when it starts, if the driver's settings put this folder on its path
(:mod:`support.gates`). Invariant: nothing of a task is changed but when it goes on. Without a closed gate it stops
nowhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.task_writer import TaskWriter

# So that a test that fails leaves no task behind.
_LONGEST_SECONDS = 300.0
_FOLDER = Path(os.environ["PGONCE_GATES"])
_write = TaskWriter.write


def _gated(writer: TaskWriter, batches: Iterator[pa.RecordBatch]) -> Parcel:
    pass_gate("begun", "")
    parcel = _write(writer, batches)
    # Its rows are encoded, staged or sent, and no process has been told.
    pass_gate("done", "+".join(parcel.ways))
    return parcel


def pass_gate(moment: str, way: str) -> None:
    """Say that this task is there, and stop while its gate is closed."""
    context = TaskContext.get()
    assert context is not None
    query = _FOLDER / str(context.getLocalProperty("sql.streaming.queryId"))
    batch = context.getLocalProperty("streaming.sql.batchId")
    gate = f"{batch}.{moment}.{context.partitionId()}"
    query.mkdir(exist_ok=True)
    attempt = context.taskAttemptId()
    unseen = query / f".{gate}.{attempt}"
    unseen.write_text(f"{os.getpid()} {os.environ['SPARK_LOCAL_IP']} {way}")
    unseen.rename(query / f"{gate}.{attempt}.passed")
    until = time.monotonic() + _LONGEST_SECONDS
    while (query / f"{gate}.closed").exists() and time.monotonic() < until:
        time.sleep(0.02)


TaskWriter.write = _gated  # type: ignore[method-assign]
