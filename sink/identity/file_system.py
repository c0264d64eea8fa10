"""
Is a folder on a disk of this machine, or might other machines write to it, too?

Runs in: the Python worker that a Connect server starts for a foreachBatch function. Invariant: a file system that is
not known to belong to one machine is taken for a shared one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# A lock on a folder of NFS is known on the machine that took it and nowhere else: the kernel's client has no flock for
# folders, and takes a local one. FUSE (gcsfuse, s3fs, Databricks' /Volumes) leaves it to a program. So these count.
_OF_ONE_MACHINE = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_of_one_machine(folder: Path) -> bool:
    """
    Whether no other machine writes to ``folder``, which need not exist, as far as the kind of its file system tells.

    Systems that do not list their mounts as Linux does are taken for a developer's own machine.
    """
    try:
        mounts = _MOUNTS.read_bytes()
    except OSError:
        return True
    return kind_of(os.path.realpath(folder), os.fsdecode(mounts)) in _OF_ONE_MACHINE


def kind_of(path: str, mounts: str) -> str | None:
    """
    The kind of file system that an absolute ``path`` without links is on; None if no mount holds it.

    :param mounts: the text of ``/proc/self/mountinfo``: proc_pid_mountinfo(5).
    """
    found, longest = None, -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4]).rstrip("/")
        # Of several mounts on one folder, the last one hides the others.
        if len(point) >= longest and f"{path}/".startswith(f"{point}/"):
            found, longest = after.split(" ")[0], len(point)
    return found
