"""
Signals to a process that have taken effect when the test goes on.

Runs in: pytest. SIGSTOP reaches one thread, which stops the others as soon as the kernel lets it run: on a busy machine
they go on for milliseconds, in which a receiver takes megabytes.
"""

from __future__ import annotations

import os
import signal

import psutil
from support.fixtures.driver import wait_until


def strike(pid: int, number: signal.Signals) -> None:
    """Send the signal; if it is SIGSTOP, wait until every thread of the process has stopped."""
    os.kill(pid, number)
    if number == signal.SIGSTOP:
        assert wait_until(lambda: _has_stopped(pid)), f"process {pid} did not stop"


def _has_stopped(pid: int) -> bool:
    try:
        states = {psutil.Process(thread.id).status() for thread in psutil.Process(pid).threads()}
    except psutil.NoSuchProcess:
        # A thread has ended meanwhile; one that is left is looked at again.
        return not psutil.pid_exists(pid)
    return states <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
