"""
Keep the rows that a second try would need: in memory up to a bound, the rest in a file.

Runs on the driver. Invariant: any thread can read what is kept while another one adds to it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pgonce.offsets_store.errors import NOTHING, CommitError

T = TypeVar("T")


@dataclass(frozen=True)
class _InFile:
    """Where in the file the bytes of an item are."""

    start: int
    size: int


class Spool(Generic[T]):
    """
    Items in the order in which they were added: in memory up to a bound, the rest in a file.

    The file is unnamed, in the temporary directory. It is created for the first item that needs it, and deleted with
    this object.

    :param in_memory_bytes: the items up to this size, all together, stay in memory as they are.
    :param to_bytes: makes the bytes that are written for an item.
    :param from_bytes: makes the item from them.
    """

    def __init__(
        self, in_memory_bytes: int, to_bytes: Callable[[T], memoryview], from_bytes: Callable[[bytes], T]
    ) -> None:
        self._in_memory_bytes = in_memory_bytes
        self._to_bytes = to_bytes
        self._from_bytes = from_bytes
        self._items: list[T | _InFile] = []
        self._file: Any = None
        self.size = 0
        """Bytes that were added so far."""

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> T:
        item = self._items[number]
        if isinstance(item, _InFile):
            # Not by seeking: another thread may be writing.
            return self._from_bytes(os.pread(self._file.fileno(), item.size, item.start))
        return item

    def add(self, item: T, size: int) -> None:
        """
        Add an item of ``size`` bytes. Only one thread may do so at a time.

        :raises CommitError: ROWS_NOT_KEPT, if there is no room.
        """
        self.size += size
        fits = self.size <= self._in_memory_bytes
        self._items.append(item if fits else self._write(self._to_bytes(item)))

    def _write(self, body: memoryview) -> _InFile:
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
        return _InFile(start, len(body))
