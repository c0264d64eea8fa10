"""
A sink that does nothing, for what Spark and its Python workers cost.

Runs in the planner's worker, in tasks and in the commit worker. Invariant: every row is handed to Python as Arrow, as
it is to pgonce, and is dropped there; so any time beyond this is the sink's own.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Dropped(WriterCommitMessage):
    """A task's commit message."""

    rows: int


class NothingDataSource(DataSource):
    """``format("nothing")``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """What goes into ``format(...)``."""
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NothingWriter:  # noqa: ARG002
        """Spark asks for it twice in every batch."""
        return NothingWriter()


class NothingWriter(DataSourceStreamArrowWriter):
    """Drops every row."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Dropped:
        """In a task: count the rows, so that all of them are delivered."""
        return Dropped(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the commit worker: nothing to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the commit worker: nothing to undo."""


def nothing_for_each_batch(frame: DataFrame, batch_id: int) -> None:  # noqa: ARG001
    """A foreachBatch function that runs the frame and drops its rows, in the JVM."""
    frame.write.format("noop").mode("overwrite").save()
