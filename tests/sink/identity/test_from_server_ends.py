"""A Python worker of a Spark Connect server ends soon after its server."""

from __future__ import annotations

import subprocess
import sys
import time

from safety_net import is_alive

_WORKER = (
    "import sys, time; from pgonce.sink.identity.from_server import end_with_server; "
    "end_with_server(); print(flush=True); time.sleep(600)"
)
_SERVER = (
    "import subprocess, sys; worker = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE); "
    "worker.stdout.readline(); print(worker.pid)"
)


def test_a_worker_whose_server_is_gone_ends_by_itself():
    """A worker whose server is gone ends by itself."""
    server = [sys.executable, "-c", _SERVER, _WORKER]
    done = subprocess.run(server, capture_output=True, text=True, check=True, timeout=60)
    pid, until = int(done.stdout), time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < until, "it did not end"
        time.sleep(0.05)
