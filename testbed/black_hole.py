"""
Make a host vanish silently: the kernel's firewall drops the packets of a server's TCP connections.

Runs in: any process, as root, with nftables. Unlike a proxy that falls silent, a black hole acknowledges nothing: for
both ends the other's host is gone. Invariant: the rules belong to a process of `nft` that ends with its input, and the
kernel removes them when it ends; so no rule outlives the process that made the hole, however that ends.

It drops what this machine receives: both ends, or the one that is to lose packets, must be here.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from typing import Literal

from maven import MissingTool
from typing_extensions import Self

Lost = Literal["requests", "answers", "both"]
"""What is lost: what clients send to the port, what it answers, or both."""

_SECONDS = 10.0


class BlackHole:
    """
    Drops the packets between a port of this machine and its clients, from :meth:`open` to :meth:`close`.

    Also a context manager. Connections, open or new, are neither cut nor refused: nothing is answered.

    :param port: the server's TCP port.
    :param lost: the direction in which packets are lost.
    :param percent: how many of them, by chance.
    """

    def __init__(self, port: int, lost: Lost = "both", percent: int = 100) -> None:
        self._table = f"pgonce_{os.getpid()}_{secrets.token_hex(4)}"
        self._port = port
        self._lost = lost
        self._chance = f"numgen random mod 100 < {percent} " if percent < 100 else ""
        self._nft: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Drop from now on."""
        refuse_without_tools()
        rules = {"requests": f"tcp dport {self._port}", "answers": f"tcp sport {self._port}"}
        lines = [f"add table inet {self._table} {{ flags owner; }}"]
        # Dropped when they arrive: if they were dropped on the way out, their sender would get an error.
        lines.append(f"add chain inet {self._table} incoming {{ type filter hook input priority -300; }}")
        for name, match in rules.items():
            if self._lost in (name, "both"):
                lines.append(f"add rule inet {self._table} incoming {match} {self._chance}counter drop")
        self._nft = subprocess.Popen(
            ["nft", "-i"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._nft.stdin is not None
        self._nft.stdin.write("".join(f"{line}\n" for line in lines))
        self._nft.stdin.flush()
        rules_wanted = len(lines) - 2
        until = time.monotonic() + _SECONDS
        while len(self._counters()) < rules_wanted:
            if time.monotonic() > until or self._nft.poll() is not None:
                self.close()
                raise MissingTool("This kernel takes no rules from nft: it needs nftables with owners of tables.")
            time.sleep(0.01)

    def close(self) -> None:
        """Let packets through again; a sender that still waits sends again what was lost."""
        if self._nft is None:
            return
        # The kernel takes the table away with the process.
        self._nft.kill()
        self._nft.communicate()
        self._nft = None

    @property
    def dropped(self) -> int:
        """How many packets are lost so far."""
        return sum(self._counters())

    def _counters(self) -> list[int]:
        # Not as JSON: nft 1.0.6 ends its text at the owner of a table.
        listed = subprocess.run(
            ["nft", "list", "table", "inet", self._table], capture_output=True, text=True, check=False
        )
        return [int(packets) for packets in re.findall(r"counter packets ([0-9]+) ", listed.stdout)]


def refuse_without_tools() -> None:
    """:raises MissingTool: if this process cannot make a black hole."""
    if shutil.which("nft") is None:
        raise MissingTool("The program nft, which drops packets, is missing: install nftables.")
    if os.geteuid() != 0:
        raise MissingTool("Only root can have packets dropped: run this as root.")
