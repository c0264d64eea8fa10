"""
The rows that a receiver keeps, in a file on the driver's disk, from which a commit can read them without it.

Written in the receiver; read there, and in the commit worker if the receiver is gone. Invariant: a body is kept once
all of it is written, after a header that says whose it is. What follows the last whole body is not read. Nothing is
forced to the disk: the file need only survive the receiver, because with the host Spark's driver ends too, and its
batch is run again.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from math import inf
from pathlib import Path

# Of each body: partition, attempt, number of rows, and size in bytes.
_HEADER = struct.Struct("!qqQQ")
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
    """Where a body is in its file."""

    start: int
    size: int


class KeptRows:
    """The bodies of one batch, as its receiver writes them; the file is made for the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.size = 0
        """The size of the file."""

    def add(self, partition_id: int, attempt_id: int, rows: int, body: bytes) -> KeptBody:
        """
        Keep a body. Only one thread may do so at a time.

        :raises OSError: if there is no room; the file is then as it was before.
        """
        if self._file is None:
            self._file = FileIO(self._path, "xb+", opener=_for_this_user)
        file, kept = self._file.fileno(), KeptBody(self.size + _HEADER.size, len(body))
        _leave_room(file, self.size, len(body))
        try:
            _write(file, _HEADER.pack(partition_id, attempt_id, rows, len(body)), self.size)
            _write(file, body, kept.start)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, self.size)
            raise
        self.size = kept.start + kept.size
        return kept

    def read(self, body: KeptBody) -> bytes:
        """Read a body, while others may be added."""
        assert self._file is not None  # noqa: S101 (it has the body)
        return _read(self._file.fileno(), body)

    def remove(self) -> None:
        """Delete the file. Who still reads it can do so."""
        with suppress(OSError):
            self._path.unlink()


class PromisedRows:
    """
    Those of a batch's kept rows that are promised, as a commit reads them that has no receiver.

    :param promised: for each partition, the attempt and how many of its rows: the first ones that were kept.
    :raises OSError: if there is no such file.
    :raises EOFError: if it does not have these rows.
    """

    def __init__(self, path: Path, promised: Mapping[int, tuple[int, int]]) -> None:
        self._file = FileIO(path, "rb")
        missing = dict(promised)
        self._bodies: list[KeptBody] = []
        for partition_id, attempt_id, rows, body in _bodies(self._file.fileno()):
            wanted, left = missing.get(partition_id, (None, 0))
            # The attempt may have sent more, without being told that they are kept.
            if wanted == attempt_id and left > 0:
                missing[partition_id] = attempt_id, left - rows
                self._bodies.append(body)
        for partition_id, (attempt_id, left) in missing.items():
            if left:
                self._file.close()
                raise EOFError(f"{path} has other rows of attempt {attempt_id} of partition {partition_id}")

    def bodies(self) -> Iterator[bytes]:
        """The rows, as bodies of a binary COPY; they can be read as often as needed."""
        return (_read(self._file.fileno(), body) for body in self._bodies)


def _bodies(file: int) -> Iterator[tuple[int, int, int, KeptBody]]:
    """The whole bodies of a file, each with its partition, attempt and number of rows."""
    end, start = os.fstat(file).st_size, 0
    while start + _HEADER.size <= end:
        partition_id, attempt_id, rows, size = _HEADER.unpack(_read(file, KeptBody(start, _HEADER.size)))
        body = KeptBody(start + _HEADER.size, size)
        start = body.start + size
        if start <= end:
            yield partition_id, attempt_id, rows, body


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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


def _read(file: int, body: KeptBody) -> bytes:
    # Not by seeking: other threads read and write the same file.
    read = os.pread(file, body.size, body.start)
    while len(read) < body.size:
        more = os.pread(file, body.size - len(read), body.start + len(read))
        if not more:
            raise EOFError("the file of kept rows has been cut")
        read += more
    return read
