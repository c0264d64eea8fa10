"""
Claim a checkpoint for one Spark Connect server, so that no other plans the same batches with rows of its own.

Runs in: the Python worker that a Connect server starts for a foreachBatch function, before the query is started.
Invariants: if two servers could both believe that ``offsets/N`` is theirs, the answer is that they can, unless a claim
on the folder stops the second one from starting; and a file system that is not known to belong to one machine counts as
shared.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from pgonce.offsets_store.checkpoint.files import ArrowFiles, LocalFiles, open_location, unreadable
from pgonce.offsets_store.errors import NOTHING, CheckpointError

from ..errors import SparkError

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

    :raises SparkError: CHECKPOINT_IN_USE.
    :raises CheckpointError: CHECKPOINT_UNREADABLE, if there can be no such folder.
    """
    files = open_location(location)
    if isinstance(files, ArrowFiles):
        return location.lower().startswith(_EXCLUSIVE)
    return isinstance(files, LocalFiles) and _claim_folder(Path(files.shown))


def refuse_replaced(location: str) -> None:
    """
    Refuse a folder that took the place of the one that this process has claimed: another query began there.

    :raises CheckpointError: OTHER_CHECKPOINT. Never for stores in which nothing is claimed.
    """
    files = open_location(location)
    if not isinstance(files, LocalFiles):
        return
    if not any(_is_at(descriptor, Path(files.shown)) for descriptor in _claims.values()):
        raise CheckpointError(
            "OTHER_CHECKPOINT",
            f"The checkpoint {files.shown} was deleted or moved while its query was running.",
            NOTHING,
            "Stop the query before you delete its checkpoint, and start it again afterwards.",
        )


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
        # The folder may have been deleted, and made again under its name, before it was locked.
        if not is_held and _is_at(descriptor, folder):
            _claims[path] = descriptor
            return True
        if time.monotonic() >= deadline:
            holders = _holders(os.fstat(descriptor))
            os.close(descriptor)
            raise SparkError.usual(
                "CHECKPOINT_IN_USE",
                f"Another process works on the checkpoint {folder}: a worker of another server, of a query that is "
                f"still running, or one that was left behind ({holders}).",
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


# A lock on a folder of NFS is known on the machine that took it and nowhere else: the kernel's client has no flock for
# folders, and takes a local one. It is the same with FUSE (gcsfuse, s3fs, Databricks' /Volumes). Only these belong to
# one machine.
_OF_ONE_MACHINE = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


def is_of_one_machine(descriptor: int) -> bool:
    """
    Whether no other machine writes to an open folder, as far as the kind of its file system tells.

    A system that does not list its mounts as Linux does is taken for a developer's own machine.
    """
    try:
        about_folder = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return True
    return kind_of(about_folder, mounts) in _OF_ONE_MACHINE


def kind_of(about_folder: str, mounts: bytes) -> str | None:
    """
    The kind of file system that a folder is on; None if its mount is not listed.

    Not by the longest path: a mount may be hidden by a later one on a shorter path.

    :param about_folder: the text of ``/proc/self/fdinfo/N``, which has a line ``mnt_id``.
    :param mounts: the text of ``/proc/self/mountinfo``, whose lines begin with such an id: proc_pid_mountinfo(5).
    """
    mount_id = dict(line.split(":", 1) for line in about_folder.splitlines())["mnt_id"].strip()
    for line in mounts.decode(errors="surrogateescape").splitlines():
        if line.split(" ", 1)[0] == mount_id:
            return line.partition(" - ")[2].split(" ")[0]
    return None
