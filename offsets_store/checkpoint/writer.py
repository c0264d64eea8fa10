"""
Write to a checkpoint: one file at a time, whole or not at all.

Runs on the driver before a start, and in the command ``pgonce``, for a query that does not run. Invariant: a file is
written under another name and then renamed, so that a reader sees either the old text or the new one, and never a part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from ..errors import CheckpointError
from .files import ArrowFiles, LocalFiles, open_location

T = TypeVar("T")


class CheckpointWriter:
    """
    A checkpoint that is written to; ``files`` reads the same place.

    :raises CheckpointError: CHECKPOINT_LOCATION. Every method that writes may raise CHECKPOINT_NOT_WRITTEN.
    """

    def __init__(self, location: str | LocalFiles | ArrowFiles) -> None:
        self.files = open_location(location) if isinstance(location, str) else location
        self.location = self.files.shown

    def put(self, name: str, data: bytes | None) -> None:
        """Give a file these bytes; with None, remove it."""
        if data is None:
            self.remove(name)
        else:
            self.write(name, data)

    def write(self, name: str, data: bytes, *, replace: bool = True) -> None:
        """
        Put a file in its place, whole.

        :param replace: whether it takes the place of a file that is there. In an object store, and on a disk without
            hard links, it does so anyway.
        """
        # Spark ignores names in offsets/ and commits/ that are not numbers too.
        folder, _, file = name.rpartition("/")
        unfinished = f"{folder}/.{file}.{uuid4()}.tmp".lstrip("/")
        if isinstance(self.files, LocalFiles):
            beside = self.files.path(unfinished)
            done = self._ask(lambda path: _write_locally(path, beside, data, replace=replace), name)
        else:
            done = self._write_by_arrow(self.files, name, unfinished, data)
        if not done:
            # A reader takes a folder that is a file for a missing one; here it is an error.
            raise _not_written(f"{self.location}/{name}", "its parent is not a folder")

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        if isinstance(self.files, LocalFiles):
            self._ask(os.unlink, name)
        else:
            files = self.files
            self._ask(lambda path: files.store.delete_file(path), name)  # noqa: PLW0108 (what connecting raises as well)

    def written_at(self, name: str) -> datetime | None:
        """When a file was written, by its store's clock; None if there is no such file, or the store does not say."""
        if isinstance(self.files, LocalFiles):
            seconds = self._ask(lambda path: Path(path).stat().st_mtime, name)
            return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
        files = self.files
        info = self._ask(lambda path: files.store.get_file_info(path), name)  # noqa: PLW0108 (as above)
        return info.mtime if info is not None else None

    def _write_by_arrow(self, files: ArrowFiles, name: str, unfinished: str, data: bytes) -> bool | None:
        done = None
        try:
            done = self._ask(lambda path: _write_and_move(files.store, path, files.path(unfinished), data), name)
        finally:
            if not done:
                # Tried once: the first failure is the one that is reported.
                with suppress(Exception):
                    files.store.delete_file(files.path(unfinished))
        return done

    def _ask(self, question: Callable[[str], T], name: str) -> T | None:
        return self.files.ask(question, name, failed=_not_written)


def _not_written(path: str, said: str) -> CheckpointError:
    return CheckpointError(
        "CHECKPOINT_NOT_WRITTEN",
        f"The checkpoint's {path} could not be written: {said}.",
        "Files that were written before stay.",
        "Let the user that runs this write to the checkpoint, and give the same command again. Credentials for stores "
        "other than disks come from the environment, not from Spark's settings.",
    )


def _write_locally(path: str, unfinished: str, data: bytes, *, replace: bool) -> bool:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        with Path(unfinished).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace or not _linked(path, unfinished):
            Path(unfinished).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(unfinished).unlink()
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        # The rename must survive a loss of power too: commits/N must never be there without offsets/N.
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _linked(path: str, unfinished: str) -> bool:
    """Whether there is a file in its place now, this one or an older one; False if the disk has no hard links."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return True
    except OSError:
        # What is wrong otherwise, the rename meets as well.
        return False
    return True


def _write_and_move(store: Any, path: str, unfinished: str, data: bytes) -> bool:
    # In an object store a folder is only the beginning of a name.
    if store.type_name in {"local", "hdfs"}:
        store.create_dir(path.rpartition("/")[0], recursive=True)
    with store.open_output_stream(unfinished) as stream:
        stream.write(data)
    store.move(unfinished, path)
    return True
