"""
The rows that a receiver keeps, in a file on the driver's disk, from which a commit can read them without it.

Written in the receiver; read there, and in the commit worker if the receiver is gone. Invariant: a body is kept once
all of it is written, and the positions of its rows, after a header that says whose it is. What follows the last whole
one is not read. Nothing is forced to the disk: the file need only survive the receiver, because with the host Spark's
driver ends too, and its batch is run again.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from math import inf
from pathlib import Path

from ...positions import EncodedRows

# Of each body: partition, attempt, number of rows, and the bytes of the body and of the positions.
_HEADER = struct.Struct("!qqQQQ")
# So much of the disk is left to others, Spark among them: this many bytes, or a tenth of a small disk.
LEFT_FREE_BYTES = 1024 * 1024 * 1024
_LEFT_FREE_SHARE = 10

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# What a container may use, and what it uses: of cgroups of version 2 and 1, as they look from inside it.
_MEMORY = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class KeptBody:
    """Whose rows a body has, how many, and where its header is in the file; body and positions follow."""

    header: int
    partition_id: int
    attempt_id: int
    count: int
    size: int
    positions_size: int

    @property
    def start(self) -> int:
        """Where the body is."""
        return self.header + _HEADER.size

    @property
    def end(self) -> int:
        """Where the next header is."""
        return self.start + self.size + self.positions_size


class KeptRows:
    """The bodies of one batch, as its receiver writes them; the file is made for the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.size = 0
        """The size of the file."""

    def add(self, partition_id: int, attempt_id: int, rows: EncodedRows) -> KeptBody:
        """
        Keep these rows. Only one thread may do so at a time.

        :raises OSError: if there is no room; the file is then as it was before.
        """
        if self._file is None:
            self._file = FileIO(self._path, "xb+", opener=lambda path, flags: os.open(path, flags, 0o600))
        says = partition_id, attempt_id, rows.count, len(rows.body), len(rows.positions)
        file, kept = self._file.fileno(), KeptBody(self.size, *says)
        _leave_room(file, self.size, rows.size)
        try:
            _write(file, _HEADER.pack(*says), self.size)
            _write(file, rows.body, kept.start)
            _write(file, rows.positions, kept.start + kept.size)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, self.size)
            raise
        self.size = kept.end
        return kept

    def read(self, body: KeptBody) -> bytes:
        """Read a body, while others may be added."""
        assert self._file is not None  # noqa: S101 (it has the body)
        return _read(self._file.fileno(), body.start, body.size)

    def promised(self, promised: Mapping[int, tuple[int, int]]) -> PromisedRows:
        """Those of the rows that are promised, also if something has deleted the file meanwhile."""
        return PromisedRows(self._path if self._file is None else os.dup(self._file.fileno()), promised)

    def remove(self) -> None:
        """Delete the file. Who still reads it can do so."""
        with suppress(OSError):
            self._path.unlink()


class PromisedRows:
    """
    Those of a batch's kept rows that are promised, as a commit reads them.

    :param file: its path, or a descriptor that belongs to the object from now on.
    :param promised: for each partition, the attempt and how many of its rows: the first ones that were kept.
    :raises OSError: if there is no such file.
    :raises EOFError: if these rows are not there, in whole bodies.
    """

    def __init__(self, file: Path | int, promised: Mapping[int, tuple[int, int]]) -> None:
        self._file = FileIO(file, "rb")
        try:
            self._bodies = _of_promise(promised, _bodies(self._file.fileno()))
        except EOFError:
            self._file.close()
            raise

    def rows(self) -> Iterator[EncodedRows]:
        """The rows; they can be read as often as needed."""
        file = self._file.fileno()
        for body in self._bodies:
            positions = _read(file, body.start + body.size, body.positions_size)
            yield EncodedRows(_read(file, body.start, body.size), body.count, positions)


def _of_promise(promised: Mapping[int, tuple[int, int]], bodies: Iterable[KeptBody]) -> list[KeptBody]:
    missing, found = dict(promised), []
    for body in bodies:
        wanted, left = missing.get(body.partition_id, (None, 0))
        # The attempt may have sent more, without being told that they are kept.
        if wanted == body.attempt_id and left > 0:
            missing[body.partition_id] = body.attempt_id, left - body.count
            found.append(body)
    for partition_id, (attempt_id, left) in missing.items():
        if left:
            rows = promised[partition_id][1]
            raise EOFError(
                f"attempt {attempt_id} of partition {partition_id} promised {rows} rows, and {rows - left} are kept"
            )
    return found


def _bodies(file: int) -> Iterator[KeptBody]:
    """The whole bodies of a file."""
    end, start = os.fstat(file).st_size, 0
    while start + _HEADER.size <= end:
        body = KeptBody(start, *_HEADER.unpack(_read(file, start, _HEADER.size)))
        start = body.end
        if start <= end:
            yield body


def _leave_room(file: int, kept: int, size: int) -> None:
    found = os.fstatvfs(file)
    if found.f_blocks == 0:
        # Some file systems do not say how large they are.
        return
    left = min(LEFT_FREE_BYTES, found.f_blocks * found.f_frsize // _LEFT_FREE_SHARE)
    if found.f_bavail * found.f_frsize < size + left:
        raise OSError(errno.ENOSPC, "the rest of the driver's disk is left to others")
    # Many systems have /tmp in memory, as large as half of it. Who fills that has the driver killed.
    if is_in_memory(os.fstat(file).st_dev) and kept + size > memory_left():
        raise OSError(errno.ENOSPC, "the rest of the memory, which the temporary directory takes, is left to others")


@cache
def is_in_memory(device: int) -> bool:
    """Whether the files of this device are in memory, as far as Linux's /proc says so."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in (_PROC / "self/mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == number:
                return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def memory_left() -> float:
    """How many bytes of memory this host has left, or this container; infinite if that is not known."""
    found = [inf]
    with suppress(OSError, StopIteration):
        lines = (_PROC / "meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    for most, used in _MEMORY:
        # "max" is no number.
        with suppress(OSError, ValueError):
            found.append(int((_CGROUP / most).read_text()) - int((_CGROUP / used).read_text()))
    return min(found)


def _write(file: int, body: bytes, start: int) -> None:
    left = memoryview(body)
    while left:
        written = os.pwrite(file, left, start)
        left, start = left[written:], start + written


def _read(file: int, start: int, size: int) -> bytes:
    # Not by seeking: other threads read and write the same file.
    read = os.pread(file, size, start)
    while len(read) < size:
        more = os.pread(file, size - len(read), start + len(read))
        if not more:
            raise EOFError("the file of kept rows has been cut")
        read += more
    return read
