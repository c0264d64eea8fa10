"""
Remove a server when the process that started it has ended or was killed.

Runs in: a small Python process next to the server, in a session of its own. Invariant: when the owner is gone, in an
orderly way or by SIGKILL, the server's processes and directory go as well. But a server must outlive its owner's
*children*: the demo kills its Spark driver, never the Postgres.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_GRACE_SECONDS = 5.0


class SafetyNet:
    """
    Watch over one server from another process until :meth:`release`.

    :param pid: the server; nothing else is signalled. A server's helpers must end with it, as Postgres's do.
    :param how: the signal that ends it fast (SIGQUIT for Postgres, SIGKILL for a JVM).
    :param directory: deleted after the server's end.
    """

    def __init__(self, pid: int, how: signal.Signals, directory: Path) -> None:
        # The pipe is the watch: its write end closes with the owner, however the owner ends. Python opens it
        # non-inheritable, so no child of the owner keeps it open.
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", __file__, str(pid), str(int(how)), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """The server was stopped properly: its process id may belong to another process now, so never signal it."""
        self._watcher.kill()
        self._watcher.wait()
        if self._watcher.stdin:
            self._watcher.stdin.close()


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie (a container's process 1 may never reap orphans)."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat")
        if status.exists():
            return status.read_text().rpartition(")")[2].split()[0] != "Z"
        os.kill(pid, 0)
        return True
    return False


def wait_until_gone(pid: int, seconds: float) -> bool:
    """Wait for a process, which need not be our child; return whether it ended in time."""
    until = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _watch(pid: int, how: int, directory: str) -> None:
    sys.stdin.read()
    with suppress(ProcessLookupError):
        os.kill(pid, how)
        if not wait_until_gone(pid, _GRACE_SECONDS):
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid, _GRACE_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
