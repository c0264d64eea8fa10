"""
Bring a frame's rows from the driver's JVM.

Runs on the driver of a classic session. Invariant: what Spark says of a job that failed is asked for in the thread that
waits for the rows.
"""

from __future__ import annotations

import html
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.traceback_utils import SCCallSiteSync

try:
    from pyspark.util import local_connect_and_auth
except ImportError:  # PySpark 3.5
    from pyspark.java_gateway import local_connect_and_auth  # type: ignore[attr-defined, no-redef, unused-ignore]

_DESCRIPTION = "spark.job.description"


class JvmRows:
    """
    The job that makes a frame's rows, and the socket on which they come; creating it starts the job.

    :param title: what Spark's own page says of the job, before what it would say by itself.
    """

    def __init__(self, frame: DataFrame, title: str | None = None) -> None:
        running = cast("Any", frame)
        self._context = running._sc
        self._tag = f"pgonce-{uuid.uuid4()}"
        # As Spark's own _collect_as_arrow does, up to the point where it would wait for the last row.
        self._context.addJobTag(self._tag)
        try:
            with SCCallSiteSync(self._context), _described(self._context, title):
                address, secret, self._server = running._jdf.collectAsArrowToPython()
        finally:
            self._context.removeJobTag(self._tag)
        self._stream, self._socket = local_connect_and_auth(address, secret)
        # The first row may take any time.
        self._socket.settimeout(None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come; the connection is closed behind the last one."""
        try:
            yield from pa.ipc.open_stream(self._stream)
            # The right order of the batches follows, and Spark fails if it is not read.
            self._stream.read()
        finally:
            with suppress(OSError):
                self._stream.close()
            self._socket.close()

    def raise_error(self) -> None:
        """Once no more rows come: raise what Spark raised, if it did."""
        # Asked in the caller's thread, because Spark would keep one more thread of its own for any other.
        if self._server is not None:
            with unwrap_spark_exception():
                self._server.getResult()
            self._server = None

    def cancel(self) -> None:
        """End the job, and wake the thread that reads."""
        self._context.cancelJobsWithTag(self._tag)
        with suppress(OSError):
            # A socket that is only closed would not wake the thread that reads from it.
            self._socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def _described(context: Any, title: str | None) -> Iterator[None]:
    """Put the title before the description that jobs have which this thread starts."""
    if title is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    # The page reads it as HTML, and a table's name may look like a tag.
    context.setLocalProperty(_DESCRIPTION, "; ".join(filter(None, (html.escape(title, quote=False), before))))
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)
