"""
Bring a frame's rows to the driver, as Arrow, while tasks still make others, and keep them for a second try.

Runs on the driver, or in the worker of a Connect server. Invariants: rows are never turned into Python objects or
pandas on their way. What arrives is read at once, even if it is needed later: Spark sends it from the thread that
schedules the tasks of the whole application, and a slow reader would hold them all up. Any thread can read what is kept
while another one adds to it.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import CommitError
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..encoding.copy_encoder import CopyEncoder
from ..encoding.encoded_types import encoded_columns
from ..encoding.unfit_rows import UnfitRow, UnfitRows
from ..identity.from_server import is_connect
from ..options.destination import Destination
from ..options.position_columns import PositionColumns, written_type
from ..options.routes import Routes, most_dead_letters
from ..positions import not_stored, reach, refuse_outside, span_of
from ..read_rows import RowReader
from ..writing.rows import Rows

if TYPE_CHECKING:
    from .jvm_rows import JvmRows


@contextmanager
def arriving_rows(
    frame: DataFrame,
    reader: RowReader,
    destination: Destination | Routes,
    positions: PositionColumns | None = None,
    batch: PlannedBatch | None = None,
) -> Iterator[Rows]:
    """
    Run the frame, and wait for enough of its rows to begin with; the others are encoded as they arrive.

    They are encoded again as often as a commit needs. Rows come in no particular order. ``bodies`` and ``count`` raise
    what Spark raises. If the block fails, Spark's job is cancelled, because its rows are no longer needed.

    :param reader: reads them as ``destination`` says.
    :param positions: the columns that say where in Kafka each row comes from; bodies raise POSITION_COLUMNS for
        a row that has none, or one that is not in the range of ``batch``.
    :param batch: the batch whose rows they are; Spark's own page names it.
    :raises TypeMappingError: before any job runs, for a type that Postgres cannot hold.
    :raises ConfigurationError: POSITION_COLUMNS, before any job runs.
    """
    if positions:
        positions.check(reader.struct_type)
    written = written_type(reader.struct_type, positions, destination)
    into = destination.sink_name if isinstance(destination, Routes) else destination.table
    arriving = ArrivingBatches(frame, f"pgonce: batch {batch.batch_id} into {into}" if batch else None)
    try:
        arriving.wait()
        yield _Frame(arriving, reader, written, positions, batch, most_dead_letters(destination)).rows()
    except BaseException:
        arriving.close()
        raise


@dataclass(frozen=True)
class _Frame:
    """
    The rows that are ``arriving``; their columns ``written`` go into the target.

    Rows that cannot be encoded, at most ``most_aside``, are ``put_aside``: those that the last complete run of
    :meth:`bodies` has found, of these rows or of those at or past what is ``stored``. With None, the first one raises.
    """

    arriving: ArrivingBatches
    reader: RowReader
    written: StructType
    positions: PositionColumns | None
    batch: PlannedBatch | None
    most_aside: int | None
    stored: Offsets | None = None
    put_aside: list[UnfitRow] = field(default_factory=list, repr=False, compare=False)

    def rows(self) -> Rows:
        """What a commit needs to know about them."""
        return Rows(
            encoded_columns(self.written),
            self.count,
            self.bodies,
            "arrow",
            unfit=lambda: tuple(self.put_aside),
            positions=self.positions,
            since=lambda stored: replace(self, stored=stored).rows(),
        )

    def count(self) -> int:
        """Wait for all rows, and return their number, without those that are put aside."""
        arrived = self._count if self.stored or self.reader.drops_rows else self.arriving.rows()
        return arrived - len(self.put_aside)

    @cached_property
    def _count(self) -> int:
        # Where bodies were read to their end, they were counted.
        return sum(part.num_rows for part in self._parts())

    def bodies(self) -> Iterator[bytes]:
        """The rows as they arrive."""
        unfit = UnfitRows(self.most_aside, self.positions)
        encoder = CopyEncoder(self.written)
        for part in self._parts():
            body, _ = unfit.encode_others(encoder, part)
            yield body
        # Only now: a try that failed on its way has found only some, and a second one finds them again.
        self.put_aside[:] = unfit.rows
        vars(self)["_count"] = encoder.rows + len(unfit.rows)

    def _parts(self) -> Iterator[pa.RecordBatch]:
        for part in map(self.reader.read, self.arriving):
            if self.positions is None:
                yield part
                continue
            places = self.positions.of(part)
            if self.batch is not None and self.batch.span is not None:
                (source_id,) = self.batch.span.next
                refuse_outside(span_of(source_id, reach([places])), self.batch)
            yield part.filter(not_stored(places, self.stored)) if self.stored else part


# A smaller batch has arrived in whole before any of it is written.
BEFORE_BEGIN_BYTES = 16 * 1024 * 1024
# What has arrived is kept, because a lost connection leads to a second try: up to this size in memory, the rest in a
# file.
IN_MEMORY_BYTES = 64 * 1024 * 1024


class ArrivingBatches:
    """
    The record batches of a frame, in the order in which tasks end; iterate over them as often as needed.

    Creating one runs the frame, in a job of this ``title`` on Spark's own page. Iterating waits for the rows that are
    still to come, and raises what Spark raised if its job has failed.
    """

    def __init__(self, frame: DataFrame, title: str | None = None) -> None:
        self._changed = threading.Condition()
        self._arrived = Spool(IN_MEMORY_BYTES)
        self._rows = 0
        self._at_end = False
        self._error: BaseException | None = None
        self._coming = _rows_of(frame, title)
        threading.Thread(target=self._take, name="pgonce-arriving-rows", daemon=True).start()

    def wait(self) -> None:
        """Wait until :data:`BEFORE_BEGIN_BYTES` or all rows are there; raises what Spark raised if its job failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_end or self._arrived.size >= BEFORE_BEGIN_BYTES)
            at_end = self._at_end
        if at_end:
            self._raise_error()

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

    def _raise_error(self) -> None:
        if isinstance(self._error, CommitError):
            raise self._error
        self._coming.raise_error()
        if self._error is not None:
            raise self._error

    def _take(self) -> None:
        try:
            for batch in self._coming.batches():
                # Not under the lock: a file may be slow, and waiting threads need not know of the batch before it is
                # written.
                self._arrived.add(batch)
                with self._changed:
                    self._rows += batch.num_rows
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 (raised to those who wait for the rows)
            self._error = error
        with self._changed:
            self._at_end = True
            self._changed.notify_all()


def _rows_of(frame: DataFrame, title: str | None) -> JvmRows | _ServerRows:
    if is_connect(frame):
        # A Connect client cannot name a job.
        return _ServerRows(frame)
    # Needs a JVM in this process, which a client of a Connect server lacks.
    from .jvm_rows import JvmRows

    return JvmRows(frame, title)


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


@dataclass(frozen=True)
class _InFile:
    """Where in the file the bytes of a record batch are."""

    start: int
    size: int


class Spool:
    """
    Record batches of one schema, in the order in which they were added: in memory up to a bound, the rest in a file.

    The file is unnamed, in the temporary directory. It is created for the first batch that needs it, and deleted with
    this object.

    :param in_memory_bytes: the batches up to this size, all together, stay in memory as they are.
    """

    def __init__(self, in_memory_bytes: int) -> None:
        self._in_memory_bytes = in_memory_bytes
        self._batches: list[pa.RecordBatch | _InFile] = []
        self._file: Any = None
        self._schema: pa.Schema | None = None
        self.size = 0
        """Bytes that were added so far."""

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if isinstance(batch, _InFile):
            # Not by seeking: another thread may be writing.
            body = os.pread(self._file.fileno(), batch.size, batch.start)
            return pa.ipc.read_record_batch(pa.py_buffer(body), self._schema)
        return batch

    def add(self, batch: pa.RecordBatch) -> None:
        """
        Add a record batch. Only one thread may do so at a time.

        :raises CommitError: DISK_FULL, if there is no room.
        """
        self.size += batch.nbytes
        fits = self.size <= self._in_memory_bytes
        self._batches.append(batch if fits else self._written(batch))

    def _written(self, batch: pa.RecordBatch) -> _InFile:
        # The schema, which is the same for all, is not written.
        self._schema = batch.schema
        body = memoryview(batch.serialize())
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="pgonce-", buffering=0)  # noqa: SIM115 (ends with this object)
            start = os.lseek(self._file.fileno(), 0, os.SEEK_END)
            written = 0
            while written < len(body):
                written += self._file.write(body[written:])
        except OSError as error:
            raise CommitError.usual(
                "DISK_FULL",
                "The batch is larger than what is kept in memory, and the rest could not be written to the driver's "
                f"temporary directory {tempfile.gettempdir()}: {error.strerror}.",
                "Make room there, or set TMPDIR to a larger disk, and start the query again.",
            ) from error
        return _InFile(start, len(body))
