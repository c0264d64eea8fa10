"""The black hole does what the other tests and the laboratory rely on."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import black_hole
import pytest
from black_hole import BlackHole, refuse_without_tools
from maven import MissingTool
from support.fixtures.skips import unavailable
from support.patience import PATIENCE_SECONDS


@pytest.fixture
def line():
    """A listener, and one connection to it: the client's end, the server's end."""
    try:
        refuse_without_tools()
    except MissingTool as missing:
        unavailable(str(missing))
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        server = stack.enter_context(listener.accept()[0])
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(PATIENCE_SECONDS)
        yield client, server


def unacknowledged(end):
    """How many packets of this end have no acknowledgement: tcpi_unacked of Linux's struct tcp_info."""
    return int.from_bytes(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[24:28], sys.byteorder)


def wait_until(condition):
    """Wait for a condition."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("lost", "arrives"),
    [("requests", ()), ("answers", ("request",)), ("both", ())],
)
def test_nothing_is_acknowledged_and_all_comes_later(lost, arrives, line):
    """What one direction loses is not acknowledged either; when the hole is closed, the kernel sends it again."""
    client, server = line
    with BlackHole(server.getsockname()[1], lost) as between:
        client.sendall(b"request")
        wait_until(lambda: between.dropped)
        if arrives:
            assert server.recv(7) == b"request"
        else:
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recv(7)
            server.settimeout(PATIENCE_SECONDS)
        assert unacknowledged(client) == 1
    if not arrives:
        assert server.recv(7) == b"request"
    server.sendall(b"answer")
    assert client.recv(6) == b"answer"


_MAKER = """
import sys, time
from black_hole import BlackHole
BlackHole(int(sys.argv[1])).open()
print("open", flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_no_rule(line):
    """When the process that made a hole is killed, the hole goes, too."""
    client, server = line
    port = str(server.getsockname()[1])
    testbed = str(Path(black_hole.__file__).parent)
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKER, port],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": testbed},
    )
    try:
        assert maker.stdout.readline() == "open\n"
        client.sendall(b"request")
        assert rules_of(maker.pid)
    finally:
        maker.send_signal(signal.SIGKILL)
        maker.communicate()
    wait_until(lambda: not rules_of(maker.pid))
    assert server.recv(7) == b"request"


def rules_of(pid):
    """The tables that a process has made."""
    listed = subprocess.run(["nft", "list", "tables", "inet"], capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split() if name.startswith(f"pgonce_{pid}_")]
