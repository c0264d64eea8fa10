"""
A task's call to a receiver, and the rows that go over it.

Runs in tasks. Invariant: a row is held here until the receiver has said that it is kept, and only such rows count as
taken. A receiver that cannot be reached costs a process two seconds, once; one that is there and does not answer costs
it twenty, once a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from uuid import UUID

import pyarrow as pa

from ...identity.from_checkpoint import Origin
from ...positions import EncodedRows
from ..offer import Taken
from .calls import Doors, NotThereError, reached, silent
from .line import BROKEN, SILENCE_SECONDS, Line

_log = logging.getLogger("pgonce")

# One that did not answer may have been busy.
_SILENT_SECONDS = 60.0
# So much of its rows a task holds while the receiver has not said that they are kept.
UNACKNOWLEDGED_BYTES = 8 * 1024 * 1024
# So many answers fit into the buffers of any socket: the receiver must not have to wait until they are read.
_UNACKNOWLEDGED_BODIES = 64


class Call:
    """
    A task's call, which goes on while the task makes more rows.

    ``is_unreached`` says whether there is no line because no process was at any of the addresses; ``driver`` is the
    address or the name at which Spark's driver listens, if Spark has said so.

    :param token: of the batch.
    """

    def __init__(self, doors: Doors, token: UUID, driver: str | None = None) -> None:
        self._doors, self._token, self.driver = doors, token, driver
        self._line: Line | None = None
        self._is_unwanted = False
        self._lock = threading.Lock()
        self._calling: threading.Thread | None = None
        # An earlier call of this process may have found it out.
        self.is_unreached, at = silent.get(doors.secret, (False, -_SILENT_SECONDS))
        if self.is_unreached or time.monotonic() < at + _SILENT_SECONDS:
            return
        if doors.secret in reached:
            # A few milliseconds.
            self._dial()
        else:
            self._calling = threading.Thread(target=self._dial, name="pgonce-calling", daemon=True)
            self._calling.start()

    @property
    def is_answered(self) -> bool:
        """Whether there is a line already."""
        return self._line is not None

    def line(self) -> Line | None:
        """Wait for the line, which belongs to the caller then; None if there is none."""
        if self._calling:
            self._calling.join()
        with self._lock:
            line, self._line = self._line, None
        return line

    def drop(self) -> None:
        """It is not needed any more."""
        with self._lock:
            self._is_unwanted = True
            line, self._line = self._line, None
        if line:
            line.close()

    def send_rows(
        self, origin: Origin, partition_id: int, attempt_id: int, encoded: Iterator[tuple[EncodedRows, pa.RecordBatch]]
    ) -> Taken:
        """
        Send the attempt's rows, given encoded and as they came.

        If the receiver cannot be reached, breaks off or keeps no more, the other rows are for the caller: those that
        are left of what was sent, and what is left in ``encoded``.
        """
        line = self.line()
        if line is None:
            return Taken()
        with closing(line):
            window = _Window(line, self._doors)
            window.begin(
                token=str(self._token), origin=asdict(origin), partition_id=partition_id, attempt_id=attempt_id
            )
            # Errors while rows are encoded pass.
            while not window.is_closed and (given := next(encoded, None)):
                # An empty body would mean that no more come.
                if given[0].body:
                    window.send(*given)
            window.end()
        return Taken(window.kept, tuple(batch for batch, _ in window.held))

    def _dial(self) -> None:
        try:
            # One that is starting, which the first call has it do, answers after a second; on a busy host after many.
            line = self._doors.dial(SILENCE_SECONDS)
        except BaseException as error:  # noqa: BLE001 (a task that has no line stages its rows)
            self.is_unreached = isinstance(error, NotThereError)
            self._doors.note_silence(error, is_unreached=self.is_unreached)
            # That executors have not reached one, the commit says once.
            level = logging.INFO if self.is_unreached else logging.WARNING
            _log.log(level, "no rows of a task are received, because no receiver answers: %s", error)
            return
        with self._lock:
            if not self._is_unwanted:
                self._line = line
                return
        line.close()


class _Window:
    """
    A task's end of the line: ``held`` are the rows that were sent and are not acknowledged, in their order.

    ``kept`` counts those that are; ``is_closed`` if the receiver keeps no more, or the line has broken.
    """

    def __init__(self, line: Line, doors: Doors) -> None:
        self._line, self._doors = line, doors
        self._size = 0
        self.held: deque[tuple[pa.RecordBatch, int]] = deque()
        self.kept = 0
        self.is_closed = False

    def begin(self, **who: object) -> None:
        """Say whose rows come."""
        with self._closed_if_broken():
            self._line.say(say="rows", **who)
            self.is_closed = not self._line.hear()["taken"]

    def send(self, rows: EncodedRows, batch: pa.RecordBatch) -> None:
        """Send these rows, and wait if too many are not acknowledged."""
        # Held before anything can fail, because they are not given again.
        self.held.append((batch, rows.size))
        self._size += rows.size
        with self._closed_if_broken():
            self._line.send_rows(rows)
            while (self._size > UNACKNOWLEDGED_BYTES or len(self.held) > _UNACKNOWLEDGED_BODIES) and not self.is_closed:
                self._hear()

    def end(self) -> None:
        """Wait until all are acknowledged, and say that there are no more."""
        with self._closed_if_broken():
            while self.held and not self.is_closed:
                self._hear()
            if not self.is_closed:
                self._line.send_rows(EncodedRows(b"", 0))

    def _hear(self) -> None:
        self.is_closed = not self._line.hear()["kept"]
        if not self.is_closed:
            batch, size = self.held.popleft()
            self.kept += batch.num_rows
            self._size -= size

    @contextmanager
    def _closed_if_broken(self) -> Iterator[None]:
        try:
            yield
        except BROKEN as error:
            self._doors.note_silence(error)
            _log.warning("the rest of a partition is not received, because its receiver breaks off: %s", error)
            self.is_closed = True
