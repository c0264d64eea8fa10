"""Who may work on a checkpoint of Spark Connect, and who is told that somebody else does?"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from safety_net import is_alive

from pgonce.sink.errors import SparkError
from pgonce.sink.identity import checkpoint_claim
from pgonce.sink.identity.checkpoint_claim import claim_checkpoint

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
            with pytest.raises(SparkError, match=rf"\[CHECKPOINT_CLAIMED\].*process {process.pid}\b"):
                claim_checkpoint(name)
        assert list(folder.iterdir()) == []
    done = subprocess.run([sys.executable, "-c", _CLAIM, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_killed_process_claims_nothing(tmp_path, hasty):
    """A claim ends with its process, however that ends."""
    folder = str(tmp_path / "checkpoint")
    with another_process(folder) as process:
        process.kill()
        process.wait()
        done = subprocess.run([sys.executable, "-c", _CLAIM, folder], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"


def test_one_process_may_have_several_writers(tmp_path):
    """Two writers of one function claim the same checkpoint."""
    script = _CLAIM + "print(c(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\nTrue\n"


def test_an_orphan_ends(tmp_path):
    """A worker whose server is gone ends by itself, and the folder is free."""
    folder = str(tmp_path / "checkpoint")
    script = (
        "import subprocess, sys; "
        "worker = subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE); "
        "worker.stdout.readline(); print(worker.pid)"
    )
    worker = _CLAIM + "sys.stdout.flush(); import time; time.sleep(600)"
    done = subprocess.run(
        [sys.executable, "-c", script, worker, folder], capture_output=True, text=True, check=True, timeout=60
    )
    pid, until = int(done.stdout), time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < until, "it did not end"
        time.sleep(0.05)
    done = subprocess.run([sys.executable, "-c", _CLAIM, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


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
def test_stores(location, is_exclusive):
    """Where a file is created by renaming another, only some stores see to it that one of two succeeds."""
    assert claim_checkpoint(location) is is_exclusive
