"""
A disk of its own for a server, which can be full.

Runs in: any process, as root: it is a file system in memory. Invariant: it is unmounted when its context ends, whatever
is still open there.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maven import MissingTool
from typing_extensions import Self

_BLOCK = b"\0" * (1 << 20)


class SmallDisk:
    """
    A file system of so many megabytes at a folder, which is created; a context manager.

    :raises MissingTool: on entering, if this process may not mount.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder = folder
        self._megabytes = megabytes

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={self._megabytes}m,mode=755", "tmpfs", str(self._folder)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self._folder.rmdir()
            raise MissingTool(f"A disk of its own cannot be mounted: {done.stderr.strip()}. Run this as root.")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
        self._folder.rmdir()

    @contextmanager
    def full(self) -> Iterator[None]:
        """No room is left while the block runs."""
        filler = self._folder / "filler"
        file = os.open(filler, os.O_CREAT | os.O_WRONLY)
        try:
            for size in (len(_BLOCK), 1 << 12):
                try:
                    while os.write(file, _BLOCK[:size]) == size:
                        pass
                except OSError:
                    # What is left is smaller than this.
                    continue
            yield
        finally:
            os.close(file)
            filler.unlink()


def refuse_without_disk() -> None:
    """:raises MissingTool: if this process may not mount."""
    with tempfile.TemporaryDirectory() as folder, SmallDisk(Path(folder) / "disk", 1):
        pass
