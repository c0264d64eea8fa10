"""On which kind of file system is a folder, and may other machines write there?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pgonce.sink.identity.checkpoint_claim import claim_checkpoint
from pgonce.sink.identity.file_system import is_of_one_machine, kind_of

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
31 22 0:27 / /proc rw,nosuid - proc proc rw
40 22 0:44 / /checkpoints rw,relatime shared:20 - nfs4 filer:/checkpoints rw,vers=4.2
41 40 0:45 / /checkpoints/scratch rw - tmpfs tmpfs rw
42 22 0:46 / /mnt/with\040space rw master:3 - fuse.gcsfuse bucket rw
43 22 0:47 / /twice rw - nfs4 filer:/old rw
44 22 254:9 / /twice rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/spark/checkpoint", "ext4"),
        ("/", "ext4"),
        ("/checkpoints", "nfs4"),
        ("/checkpoints/orders", "nfs4"),
        ("/checkpoints-of-others", "ext4"),
        ("/checkpoints/scratch/orders", "tmpfs"),
        ("/mnt/with space/orders", "fuse.gcsfuse"),
        ("/twice/orders", "xfs"),
    ],
)
def test_the_mount_that_holds_a_path(path, kind):
    """It is the innermost one, and of several on one folder the last."""
    assert kind_of(path, MOUNTS) == kind


def test_without_mounts_nothing_is_known():
    """A path that no mount holds is on no kind of file system."""
    assert kind_of("/checkpoint", "") is None


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux lists mounts there")
def test_it_says_what_the_system_says(tmp_path):
    """Of a real folder, df names the same kind."""
    said = subprocess.run(["df", "--output=fstype", str(tmp_path)], capture_output=True, text=True, check=True)
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert kind_of(os.path.realpath(tmp_path), mounts) == said.stdout.split()[-1]


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux lists mounts there")
def test_a_disk_is_claimed_and_what_is_not_one_is_not(tmp_path):
    """A folder that need not exist is on a disk of this machine; what the kernel makes up is not, nor is it claimed."""
    (tmp_path / "link").symlink_to("/proc/self")
    assert is_of_one_machine(tmp_path / "not" / "there")
    assert claim_checkpoint("/proc/self/checkpoint") is False
    assert claim_checkpoint(str(tmp_path / "link" / "checkpoint")) is False
