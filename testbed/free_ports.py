"""
Find ports on which a server can be started now.

Runs in: any process. Invariant: the ports of one call differ, and no process listened on them when they were asked for.
Another process may take one before the server does, so a server that cannot start for that reason asks again.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_port() -> int:
    """A free port of 127.0.0.1."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many free ports of 127.0.0.1."""
    with ExitStack() as stack:
        # All are held at once, so that they differ.
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
