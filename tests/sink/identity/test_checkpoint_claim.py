"""One Spark Connect server claims a checkpoint, and a second one is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgonce.offsets_store.errors import CheckpointError
from pgonce.sink.errors import SparkError
from pgonce.sink.identity import checkpoint_claim
from pgonce.sink.identity.checkpoint_claim import claim_checkpoint, is_of_one_machine, kind_of, refuse_replaced

_CLAIM = "import sys; from pgonce.sink.identity.checkpoint_claim import claim_checkpoint as c; print(c(sys.argv[1]))\n"


@contextmanager
def another_process(location):
    """A process that has claimed this location, and lives until the block ends."""
    script = _CLAIM + "sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, location], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"True\n"
        yield process
        process.stdin.close()


def claim_in_a_process(location):
    """What a process prints that claims this location, and then ends."""
    done = subprocess.run([sys.executable, "-c", _CLAIM, location], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def hasty(monkeypatch):
    """A second worker gives up at once."""
    monkeypatch.setattr(checkpoint_claim, "WAIT_FOR_CLAIM_SECONDS", 0.1)


def test_a_folder_is_claimed_by_one_process(tmp_path, hasty):
    """The second is told which process it is, by whatever name it calls the folder; then the folder is free."""
    folder = tmp_path / "checkpoint"
    (tmp_path / "link").symlink_to(folder)
    with another_process(str(folder)) as process:
        for name in (str(folder), f"file://{folder}", str(tmp_path / "link")):
            with pytest.raises(SparkError, match=rf"\[CHECKPOINT_IN_USE\].*process {process.pid}\b"):
                claim_checkpoint(name)
        assert list(folder.iterdir()) == []
    assert claim_in_a_process(str(folder)) == "True\n"


def test_a_killed_process_claims_nothing(tmp_path, hasty):
    """A claim ends with its process, however that ends."""
    folder = str(tmp_path / "checkpoint")
    with another_process(folder) as process:
        process.kill()
        process.wait()
        assert claim_in_a_process(folder) == "True\n"


def test_one_process_may_have_several_writers(tmp_path):
    """Two writers of one function claim the same checkpoint."""
    script = _CLAIM + "print(c(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\nTrue\n"


def test_a_folder_that_was_made_anew_is_claimed_anew(tmp_path):
    """A claim counts for the folder that has the name now, not for one that was deleted meanwhile."""
    folder = tmp_path / "checkpoint"
    with another_process(str(folder)) as process, ThreadPoolExecutor(1) as waiting:
        claimed = waiting.submit(claim_in_a_process, str(folder))
        time.sleep(1)
        folder.rmdir()
        folder.mkdir()
        assert claimed.result() == "True\n"
        assert process.poll() is None


def test_what_cannot_be_a_folder_is_refused_in_words(tmp_path):
    """A checkpoint where a file stands, or in what the kernel makes up, is an error with a way out."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "checkpoint", Path("/proc/self/checkpoint")):
        with pytest.raises(CheckpointError, match=rf"\[CHECKPOINT_UNREADABLE\].*{place}.*Help: "):
            claim_checkpoint(str(place))


def test_what_other_machines_may_write_to_is_not_claimed():
    """A folder that is not known to be on a disk of this machine could be claimed on two machines at a time."""
    assert claim_checkpoint("/proc/self/task") is False


@pytest.mark.parametrize(
    ("location", "is_exclusive"),
    [
        ("hdfs://name-node/checkpoint", True),
        ("abfss://container@account.dfs.core.windows.net/checkpoint", True),
        ("s3a://bucket/checkpoint", False),
        ("gs://bucket/checkpoint", False),
        ("viewfs://cluster/checkpoint", False),
    ],
)
def test_only_some_stores_let_one_of_two_claims_succeed(location, is_exclusive):
    """Where a file is created by renaming another, only some stores see to it that one of two succeeds."""
    assert claim_checkpoint(location) is is_exclusive


def test_a_folder_that_replaced_the_claimed_one_is_refused(tmp_path, monkeypatch):
    """Another query may have begun there: its files say nothing of this worker's batches."""
    monkeypatch.setattr(checkpoint_claim, "_claims", {})
    folder = tmp_path / "checkpoint"
    (tmp_path / "link").symlink_to(folder)
    claim_checkpoint(str(folder))
    refuse_replaced(str(folder))
    refuse_replaced(f"file://{tmp_path}/link/")
    refuse_replaced("hdfs://name-node/checkpoint")
    folder.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"\[OTHER_CHECKPOINT\]"):
        refuse_replaced(str(folder))
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"\[OTHER_CHECKPOINT\]"):
        refuse_replaced(str(folder))


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
