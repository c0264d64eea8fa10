"""
Make the checkpoint of each run, inside the query's own location.

Runs on the driver, before the query starts. Invariant: the query keeps its id, which the location has, and each run
begins at the positions in the ledger, whatever checkpoints of older runs say.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from pgonce.offsets_store.checkpoint.files import open_location
from pgonce.offsets_store.checkpoint.log_entries import query_id_text
from pgonce.offsets_store.checkpoint.reader import REAL_TIME_RUNS, Checkpoint
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import NOTHING, NoCheckpointError, RefusedBatch

_log = logging.getLogger("pgonce")

# The newest of the older ones stays, for people who want to look at it.
_KEPT = 1


def query_id_of(location: str) -> str:
    """
    The id that the query keeps at this location: Spark's own if the query ran in micro-batches there, else a new one.

    :raises CheckpointError: if the location cannot be read or written.
    """
    try:
        return Checkpoint(location).query_id()
    except NoCheckpointError:
        _write_id(location, str(uuid4()), replace=False)
        # Of two drivers that start here for the first time, the one that was first has named the query.
        return Checkpoint(location).query_id()


def refuse_unknown_past(location: str) -> None:
    """
    Refuse a query that has run at this location, and of which the ledger knows nothing.

    :raises RefusedBatch: UNKNOWN.
    :raises CheckpointError: if the location cannot be read.
    """
    files = open_location(location)
    if files.names(REAL_TIME_RUNS) or files.names("offsets"):
        raise RefusedBatch(
            "UNKNOWN",
            f"A query has run with the checkpoint location {files.shown}, but this ledger does not know where its rows "
            "in this table end: the database was restored to a time before its first start, or url names another "
            "database, or the query wrote to a table of another name, or with another sink.",
            NOTHING,
            "Restore the database and start the query again. Or name the table, the database and sink_name as they "
            "were. If its records are to be read again from startingOffsets, give it a new checkpoint location.",
        )


def new_checkpoint(location: str, query_id: str) -> str:
    """
    A checkpoint without any batch, which Spark takes for one of this query.

    :raises CheckpointError: if it cannot be written.
    """
    checkpoint = f"{location.rstrip('/')}/{REAL_TIME_RUNS}/{time.time_ns()}"
    _write_id(checkpoint, query_id)
    return checkpoint


def _write_id(location: str, query_id: str, *, replace: bool = True) -> None:
    CheckpointWriter(location).write("metadata", query_id_text(query_id).encode(), replace=replace)


def remove_older(spark: SparkSession, location: str, newest: str) -> None:
    """Remove checkpoints of runs before the ``newest``, as far as that can be done: they are of no use."""
    context: Any = spark.sparkContext
    try:
        folder = context._jvm.org.apache.hadoop.fs.Path(f"{location.rstrip('/')}/{REAL_TIME_RUNS}")
        files = folder.getFileSystem(context._jsc.hadoopConfiguration())
        paths = sorted((status.getPath() for status in files.listStatus(folder)), key=lambda path: path.getName())
        # By name: a clock may have gone back.
        older = [path for path in paths if path.getName() != newest.rpartition("/")[2]]
        for path in older[: max(0, len(older) - _KEPT)]:
            files.delete(path, True)
    except Exception as error:  # noqa: BLE001 (Spark gives some errors of its file systems classes of its own)
        _log.info("checkpoints of older runs were not removed: %s", type(error).__name__)
