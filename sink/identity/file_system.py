"""
Is a folder on a disk of this machine, or might other machines write to it, too?

Runs in: the Python worker that a Connect server starts for a foreachBatch function. Invariant: a file system that is
not known to belong to one machine is taken for a shared one.
"""

from __future__ import annotations

from pathlib import Path

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
