"""
Name a process of this host so that no other one is taken for it, ask whether it runs, and end it.

Runs in the planner's worker, the receiver and the commit worker, which are on one host. Invariant: a process id is used
again for other processes, so a process is known by its id and its start time, in its container, since the host booted;
only that process is ever killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# How long to wait until a killed process is gone. One that waits for a disk dies only afterwards.
_GONE_SECONDS = 5.0
_LOOK_SECONDS = 0.01
# In /proc/<pid>/stat, of the fields behind the name.
_STATE, _STARTED = 0, 19
_DEAD = ("Z", "X")


def this_place() -> str:
    """Where process ids mean what they mean here: this container, since its host booted."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return "here"


@dataclass(frozen=True)
class HostProcess:
    """A process of this host: its id, its start time in the kernel's words, and where both were read."""

    pid: int
    started: str
    place: str

    @property
    def is_of_this_place(self) -> bool:
        """Whether its id can be looked up here."""
        return self.place == this_place()

    def lives(self) -> bool:
        """Whether it runs, or is stopped; one that has ended and only waits for its parent does not live."""
        # Without a start time, it had already ended when it was named.
        return bool(self.started) and self.is_of_this_place and _started(self.pid) == self.started

    def kill(self) -> bool:
        """End it by SIGKILL, and wait a moment until it is gone. True if it was there, and is gone."""
        if not self.lives():
            return False
        # Its id was its own a moment ago, and goes to another process only after all other ids. Whatever cannot be done
        # to it, the ledger decides who commits: the caller goes on.
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _GONE_SECONDS
        while self.lives() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return not self.lives()


def host_process(pid: int) -> HostProcess:
    """The process that has this id now."""
    return HostProcess(pid, _started(pid), this_place())


def _started(pid: int) -> str:
    """When it started; an empty text if it does not live."""
    if Path("/proc/self/stat").exists():
        fields: list[str] = []
        # From its state on. The name before that may have any characters.
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[_STARTED] if fields and fields[_STATE] not in _DEAD else ""
    asked = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    # No argument comes from outside, and Postgres's libpq must find its libraries, so the environment stays as it is.
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return "" if said[:1] in _DEAD else said.partition(" ")[2].strip()
