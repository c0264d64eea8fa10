"""On which kind of file system is a folder, and may other machines write there?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pgonce.sink.identity.file_system import is_of_one_machine, kind_of

MOUNTS = rb"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:44 / /mnt/a/b rw,relatime shared:20 - xfs /dev/sdb rw
41 22 0:45 / /mnt/a rw - nfs4 filer:/a rw,vers=4.2
4 22 0:46 / /mnt/with\040space\040-\040and\377 rw master:3 - fuse.gcsfuse bucket rw
"""
LINUX = pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="only Linux tells of open files there")


@pytest.mark.parametrize(("mount", "kind"), [(22, "ext4"), (40, "xfs"), (41, "nfs4"), (4, "fuse.gcsfuse"), (2, None)])
def test_the_kind_of_a_mount(mount, kind):
    """It is looked up by the id of the mount that an open folder is on."""
    assert kind_of(f"pos:\t0\nflags:\t0200000\nmnt_id:\t{mount}\nino:\t2\n", MOUNTS) == kind


@LINUX
@pytest.mark.parametrize("folder", [".", "/proc/self", "/sys"])
def test_it_says_what_df_says(folder, tmp_path):
    """Of real folders, df names the same kind; only a disk is of this machine alone."""
    folder = tmp_path / folder
    said = subprocess.run(["df", "--output=fstype", str(folder)], capture_output=True, text=True, check=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        about_folder = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
        assert kind_of(about_folder, Path("/proc/self/mountinfo").read_bytes()) == said.stdout.split()[-1]
        assert is_of_one_machine(descriptor) is (folder == tmp_path)
    finally:
        os.close(descriptor)
