"""
Send the rows of a task to a receiver.

Runs in tasks. Invariant: a row is held here until the receiver has said that it is kept, and only such rows count as
taken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from ...positions import EncodedRows
from ..offer import Taken
from .line import BROKEN, Line

_log = logging.getLogger("pgonce")

# So much of its rows a task holds while the receiver has not said that they are kept.
UNACKNOWLEDGED_BYTES = 8 * 1024 * 1024
# So many answers fit into the buffers of any socket: the receiver must not have to wait until they are read.
_UNACKNOWLEDGED_BODIES = 64


def sent(
    line: Line, encoded: Iterator[tuple[EncodedRows, pa.RecordBatch]], note_broken: Callable[[BaseException], None]
) -> Taken:
    """
    Send these rows, given encoded and as they came, until they are all kept, or no more are.

    :param note_broken: is told if the line breaks.
    """
    window = _Window(line)

    def is_open_after(step: Callable[[], None]) -> bool:
        # Not around the whole loop: an error while rows are encoded does not come from the receiver.
        try:
            step()
        except BROKEN as error:
            note_broken(error)
            _log.warning("the rest of a partition is not received, because its receiver breaks off: %s", error)
            return False
        return not window.is_closed

    for rows, batch in encoded:
        # An empty body would mean that no more come.
        if rows.body and not is_open_after(partial(window.send, rows, batch)):
            break
    else:
        is_open_after(window.end)
    return Taken(window.kept, tuple(batch for batch, _ in window.held))


class _Window:
    """
    A task's end of the line: ``held`` are the rows that were sent and are not acknowledged, in their order.

    ``kept`` counts those that are; ``is_closed`` if the receiver keeps no more.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._size = 0
        self._sent = 0
        self.held: deque[tuple[pa.RecordBatch, int]] = deque()
        self.kept = 0
        self.is_closed = False

    def send(self, rows: EncodedRows, batch: pa.RecordBatch) -> None:
        """Send these rows, and wait if too many are not acknowledged."""
        # Held before anything can fail, because they are not given again.
        self.held.append((batch, rows.size))
        self._size += rows.size
        self._sent += rows.count
        self._line.send_rows(rows)
        while (self._size > UNACKNOWLEDGED_BYTES or len(self.held) > _UNACKNOWLEDGED_BODIES) and not self.is_closed:
            self._hear()

    def end(self) -> None:
        """Wait until all are acknowledged, and say that there are no more."""
        while self.held and not self.is_closed:
            self._hear()
        if not self.is_closed:
            self._line.send_rows(EncodedRows(b"", self._sent))

    def _hear(self) -> None:
        self.is_closed = not self._line.hear()["kept"]
        if not self.is_closed:
            batch, size = self.held.popleft()
            self.kept += batch.num_rows
            self._size -= size
