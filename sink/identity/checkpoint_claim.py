"""
Can two Spark Connect servers plan the same batch of one checkpoint, each with rows of its own?

Runs in: the Python worker that a Connect server starts for a foreachBatch function, before the query is started.
Invariant: where two servers could both believe that ``offsets/N`` is theirs, the answer is yes, unless a claim on the
folder keeps the second one from starting.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from pgonce.offsets_store.checkpoint.files import ArrowFiles, LocalFiles, open_location, unreadable
from pgonce.offsets_store.errors import NOTHING

from ..errors import SparkError
from .file_system import is_of_one_machine

# Spark renames a file to offsets/N. Of two servers that do so at the same time, these stores refuse one: HDFS in its
# name node, Azure's by the header If-None-Match. S3 copies. On a disk, Hadoop looks and then renames: of 3,000 pairs
# that did so at the same moment, two both believed that the entry was theirs.
_EXCLUSIVE = ("hdfs:", "abfs:", "abfss:")

WAIT_FOR_CLAIM_SECONDS = 15.0
_PAUSE_SECONDS = 0.05

# Folder to open descriptor. They are never closed: the system does so when this process ends.
_claims: dict[str, int] = {}


def claim_checkpoint(location: str) -> bool:
    """
    Whether this worker's server is the only one that can write entries of this checkpoint, or Spark itself sees to it.

    On a disk of this machine, the folder is claimed for as long as this process lives. A worker ends with its query.
    No claim of a folder on NFS and the like reaches other machines.

    :raises SparkError: CHECKPOINT_CLAIMED.
    :raises CheckpointError: CHECKPOINT_UNREADABLE, if there can be no such folder.
    """
    files = open_location(location)
    if isinstance(files, ArrowFiles):
        return location.lower().startswith(_EXCLUSIVE)
    return isinstance(files, LocalFiles) and _claim_folder(Path(files.shown))


def _claim_folder(folder: Path) -> bool:
    path = os.path.realpath(folder)
    if path in _claims:
        return True
    deadline = time.monotonic() + WAIT_FOR_CLAIM_SECONDS
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise unreadable(str(folder), str(error)) from error
        if not is_of_one_machine(descriptor):
            os.close(descriptor)
            return False
        try:
            # Of the folder itself: a file of ours would be one that Spark does not expect there.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = False
        except BlockingIOError:
            is_held = True
        # Somebody may have deleted the folder, and made another one of its name, before it was locked.
        if not is_held and _is_at(descriptor, folder):
            _claims[path] = descriptor
            return True
        if time.monotonic() >= deadline:
            holders = _holders(os.fstat(descriptor))
            os.close(descriptor)
            raise SparkError(
                "CHECKPOINT_CLAIMED",
                f"Another process works on the checkpoint {folder}: a worker of another server, of a query that is "
                f"still running, or one that was left behind ({holders}).",
                NOTHING,
                "Stop the query that runs there, or end that process; then start this one again.",
            )
        os.close(descriptor)
        time.sleep(_PAUSE_SECONDS)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _holders(folder: os.stat_result) -> str:
    """The processes that hold the claim, as far as Linux lists them here."""
    locked = f"{os.major(folder.st_dev):02x}:{os.minor(folder.st_dev):02x}:{folder.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    pids = [fields[4] for fields in map(str.split, lines) if len(fields) > 5 and fields[5] == locked]  # noqa: PLR2004
    return f"process {', '.join(sorted(set(pids)))}" if pids else "in another container, or not listed here"
