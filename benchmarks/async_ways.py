"""
The ways in that are compared with asynchronous progress tracking.

Runs on the driver. Invariant: each of them is exactly-once with it, or writes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from contenders import BATCH_WRITER, INLINE, Contender, Place
from pyspark.sql.streaming.readwriter import DataStreamWriter

WRITER = BATCH_WRITER
SOURCE = INLINE


def asynchronous(contender: Contender, interval_ms: int) -> Contender:
    """The same contender, which uses foreachBatch, with asynchronous progress tracking."""

    def write(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
        return (
            contender.write(writer, place)
            .option("asyncProgressTrackingEnabled", "true")
            .option("asyncProgressTrackingCheckpointIntervalMs", str(interval_ms))
            .option("_asyncProgressTrackingOverrideSinkSupportCheck", "true")
        )

    table = contender.table and f"{contender.table}_{interval_ms}"
    return replace(contender, name=f"{contender.name}, async {interval_ms} ms", write=write, table=table)
