"""
Can two Spark Connect servers plan the same batch of one checkpoint, each with rows of its own?

Runs in: the Python worker that a Connect server starts for a foreachBatch function, before the query is started.
Invariant: where two servers could both believe that ``offsets/N`` is theirs, the answer is yes, unless a claim on the
folder keeps the second one from starting.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

from pgonce.offsets_store.checkpoint.files import ArrowFiles, LocalFiles, open_location
from pgonce.offsets_store.errors import NOTHING
from pgonce.sink.errors import SparkError
from pgonce.sink.identity.file_system import is_of_one_machine

# Spark renames a file to offsets/N. Of two servers that do so at the same time, these stores refuse one: HDFS in its
# name node, Azure's by the header If-None-Match. S3 copies. On a disk, Hadoop looks and then renames: of 3,000 pairs
# that did so at the same moment, two both believed that the entry was theirs.
_EXCLUSIVE = ("hdfs:", "abfs:", "abfss:")

WAIT_FOR_CLAIM_SECONDS = 15.0
_PAUSE_SECONDS = 0.05
_ORPHANED_SECONDS = 1.0

# Folder to open descriptor. They are never closed: the system does so when this process ends.
_claims: dict[str, int] = {}


def claim_checkpoint(location: str) -> bool:
    """
    Whether this worker's server is the only one that can write entries of this checkpoint, or Spark itself sees to it.

    On a disk of this machine, the folder is claimed for as long as this process lives. A worker ends with its query.
    On NFS and the like no claim reaches other machines.

    :raises SparkError: CHECKPOINT_CLAIMED.
    """
    files = open_location(location)
    if isinstance(files, ArrowFiles):
        return location.lower().startswith(_EXCLUSIVE)
    if isinstance(files, LocalFiles) and is_of_one_machine(Path(files.shown)):
        _claim_folder(Path(files.shown))
        return True
    return False


def _claim_folder(folder: Path) -> None:
    path = os.path.realpath(folder)
    if path in _claims:
        return
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + WAIT_FOR_CLAIM_SECONDS
    while True:
        try:
            # Of the folder itself: a file of ours would be one that Spark does not expect there.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
                continue
            os.close(descriptor)
            raise SparkError(
                "CHECKPOINT_CLAIMED",
                f"Another process works on the checkpoint {folder}: a worker of another server, of a query that is "
                f"still running, or one that was left behind ({_holders(folder)}).",
                NOTHING,
                "Stop the query that runs there, or end that process; then start this one again.",
            ) from None
        break
    _claims[path] = descriptor
    threading.Thread(target=_end_with, args=[os.getppid()], name="pgonce-orphaned", daemon=True).start()


def _end_with(parent: int) -> None:
    """
    End this process when its server is gone; a transaction that is open then is rolled back.

    Without this, a worker that waits for a server that does not answer would keep the checkpoint for ten minutes.
    """
    while os.getppid() == parent:
        time.sleep(_ORPHANED_SECONDS)
    os._exit(1)


def _holders(folder: Path) -> str:
    """The processes that hold the claim, as far as Linux lists them here."""
    inode = f":{folder.stat().st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    pids = [fields[4] for fields in map(str.split, lines) if len(fields) > 5 and fields[5].endswith(inode)]  # noqa: PLR2004
    return f"process {', '.join(sorted(set(pids)))}" if pids else "on another machine, or in another container"
