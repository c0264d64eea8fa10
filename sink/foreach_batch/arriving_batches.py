"""
Take a frame's rows on the driver, while tasks still make others.

Runs on the driver, or in the worker of a Connect server. Invariant: what arrives is read at once, even if it is needed
later: Spark sends it from the thread that schedules the tasks of the whole application, and a slow reader would hold
them all up.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from pgonce.offsets_store.errors import CommitError

from ..identity.from_server import is_connect
from ..spool import Spool

# A smaller batch has arrived in whole before any of it is written.
BEFORE_BEGIN_BYTES = 16 * 1024 * 1024
# What has arrived is kept, because a lost connection leads to a second try: up to this size in memory, the rest in a
# file.
IN_MEMORY_BYTES = 64 * 1024 * 1024


class ArrivingBatches:
    """
    The record batches of a frame, in the order in which tasks end; iterate over them as often as needed.

    Creating one runs the frame. Iterating waits for the rows that are still to come, and raises what Spark raised if
    its job has failed.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._changed = threading.Condition()
        form = _ArrowForm()
        self._arrived: Spool[pa.RecordBatch] = Spool(IN_MEMORY_BYTES, form.to_bytes, form.from_bytes)
        self._rows = 0
        self._at_end = False
        self._error: BaseException | None = None
        self._coming = _rows_of(frame)
        threading.Thread(target=self._take, name="pgonce-arriving-rows", daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """
        Wait, at most ``seconds``, until :data:`BEFORE_BEGIN_BYTES` or all rows are there; return whether they are.

        Raises what Spark raised if its job has failed.
        """
        with self._changed:
            is_enough = self._changed.wait_for(self._may_begin, seconds)
            at_end = self._at_end
        if at_end:
            self._raise_error()
        return is_enough

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number in itertools.count():
            with self._changed:
                while number == len(self._arrived) and not self._at_end:
                    self._changed.wait()
                if number == len(self._arrived):
                    break
            yield self._arrived[number]
        self._raise_error()

    def rows(self) -> int:
        """Wait for all rows, and return their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_end)
        self._raise_error()
        return self._rows

    def close(self) -> None:
        """The rows are no longer needed: cancel Spark's job if it is still running."""
        with self._changed:
            if self._at_end:
                return
        self._coming.cancel()

    def _may_begin(self) -> bool:
        return self._at_end or self._arrived.size >= BEFORE_BEGIN_BYTES

    def _raise_error(self) -> None:
        if isinstance(self._error, CommitError):
            raise self._error
        self._coming.raise_error()
        if self._error is not None:
            raise self._error

    def _take(self) -> None:
        try:
            for batch in self._coming.batches():
                self._keep(batch)
        except Exception as error:  # noqa: BLE001 (raised to those who wait for the rows)
            self._error = error
        with self._changed:
            self._at_end = True
            self._changed.notify_all()

    def _keep(self, batch: pa.RecordBatch) -> None:
        # Not under the lock: a file may be slow, and waiting threads need not know of the batch before it is written.
        self._arrived.add(batch, batch.nbytes)
        with self._changed:
            self._rows += batch.num_rows
            self._changed.notify_all()


class _ComingRows(Protocol):
    """The job that makes a frame's rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come, in a thread of its own."""
        ...

    def raise_error(self) -> None:
        """Once no more rows come: raise what Spark raised, if it did."""
        ...

    def cancel(self) -> None:
        """End the job."""
        ...


def _rows_of(frame: DataFrame) -> _ComingRows:
    if is_connect(frame):
        return _ServerRows(frame)
    # Needs a JVM in this process, which a client of a Connect server lacks.
    from .jvm_rows import JvmRows

    return JvmRows(frame)


class _ServerRows:
    """
    The operation of a Spark Connect server that makes a frame's rows; it starts with the first look at them.

    Rows are taken as Arrow, one record batch after the other, and never gathered into one table.
    """

    def __init__(self, frame: DataFrame) -> None:
        running = cast("Any", frame)
        self._client = running._session.client
        self._plan = running._plan.to_proto(self._client)
        self._observations = running._plan.observations
        self._tag = f"pgonce-{uuid.uuid4()}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come; raises what Spark raises."""
        # A client keeps tags by thread.
        self._client.add_tag(self._tag)
        try:
            # It yields the schema too. DataFrame.toArrow would gather all rows first.
            for part in self._client.to_table_as_iterator(self._plan, self._observations):
                if isinstance(part, pa.Table):
                    yield from part.to_batches()
        finally:
            self._client.remove_tag(self._tag)

    def raise_error(self) -> None:
        """Nothing more is known here than what :meth:`batches` has raised."""

    def cancel(self) -> None:
        """End the operation, and with it the stream of its rows."""
        # The server may be gone, and then there is nothing to end.
        with suppress(Exception):
            self._client.interrupt_tag(self._tag)


class _ArrowForm:
    """How record batches are written to a file and read from it: they have one schema, which is not written."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def to_bytes(self, batch: pa.RecordBatch) -> memoryview:
        self._schema = batch.schema
        return memoryview(batch.serialize())

    def from_bytes(self, body: bytes) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(body), self._schema)
