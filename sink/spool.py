"""
Where are rows that have arrived kept for a second try, if they are more than memory should hold?

Runs on the driver and in the receiver. Invariant: any thread can read what is kept while another one adds to it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

from pgonce.offsets_store.errors import NOTHING, CommitError


@dataclass(frozen=True)
class InFile:
    """Where some bytes are in the file."""

    start: int
    size: int


class OverflowFile:
    """An unnamed file in the temporary directory, created for the first bytes and deleted with this object."""

    def __init__(self) -> None:
        self._file: Any = None

    def write(self, body: memoryview) -> InFile:
        """
        Add ``body`` at the end. Only one thread may do so at a time.

        :raises CommitError: ROWS_NOT_KEPT, if there is no room.
        """
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="pgonce-", buffering=0)  # noqa: SIM115 (ends with this object)
            start = os.lseek(self._file.fileno(), 0, os.SEEK_END)
            written = 0
            while written < len(body):
                written += self._file.write(body[written:])
        except OSError as error:
            raise CommitError(
                "ROWS_NOT_KEPT",
                "The batch is larger than what is kept in memory, and the rest could not be written to the driver's "
                f"temporary directory {tempfile.gettempdir()}: {error.strerror}.",
                NOTHING,
                "Make room there, or set TMPDIR to a larger disk, and start the query again.",
            ) from error
        return InFile(start, len(body))

    def read(self, lies: InFile) -> bytes:
        """What was written there."""
        # Not by seeking: another thread may be writing.
        return os.pread(self._file.fileno(), lies.size, lies.start)
