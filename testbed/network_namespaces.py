"""
Give each executor a network of its own, where Postgres has another address than for the driver, or none.

Runs in: any process, as root, with iproute2 and nftables. A namespace has an interface, routes and a firewall of its
own, as a host has; a bridge joins it to this machine's network. Invariant: bridge and namespaces go when the block
ends; their names hold the process id, so those that a killed process left do no harm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from maven import MissingTool


@dataclass(frozen=True)
class Namespace:
    """One host: its address on the bridge, and how a command is run there."""

    name: str
    address: str

    @property
    def within(self) -> tuple[str, ...]:
        """What stands before a command that is to run there."""
        return ("ip", "netns", "exec", self.name)

    def refuse(self, port: int) -> None:
        """Answer its own connections to a port, on any host, as a firewall does that lets no connection through."""
        for rule in (
            "add table inet cut",
            "add chain inet cut out { type filter hook output priority 0; }",
            f"add rule inet cut out tcp dport {port} counter reject with tcp reset",
        ):
            _run(*self.within, "nft", rule)

    def connect_only_to(self, address: str, ports: Iterable[int]) -> None:
        """Send nothing that would open a connection to another port of a host, as a firewall does that says nothing."""
        for rule in (
            "add table inet only",
            "add chain inet only out { type filter hook output priority 0; }",
            f"add rule inet only out ip daddr {address} tcp flags & (syn | ack) == syn "
            f"tcp dport != {{ {', '.join(map(str, sorted(set(ports))))} }} counter drop",
        ):
            _run(*self.within, "nft", rule)

    def connect_anywhere(self) -> None:
        """End what :meth:`connect_only_to` has begun."""
        _run(*self.within, "nft", "delete table inet only")


@dataclass(frozen=True)
class Bridge:
    """The namespaces, and the address of this machine among them."""

    address: str
    namespaces: tuple[Namespace, ...]


@contextmanager
def namespaces(count: int) -> Iterator[Bridge]:
    """
    So many hosts behind one bridge.

    :raises MissingTool: if this process cannot make them.
    """
    refuse_without_tools()
    # A private network for each process: 10.x.y.0/24.
    net = f"10.{64 + os.getpid() // 250 % 64}.{os.getpid() % 250}"
    bridge = f"pgonce{os.getpid() % 1_000_000}"
    hosts = tuple(Namespace(f"{bridge}-{number}", f"{net}.{number + 2}") for number in range(count))
    try:
        try:
            _run("ip", "link", "add", bridge, "type", "bridge")
        except RuntimeError as error:
            raise MissingTool(f"This machine lets nobody make networks, not even root: {error}") from None
        _run("ip", "address", "add", f"{net}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, host in enumerate(hosts):
            here, there = f"pgv{number}h{os.getpid() % 100_000}", f"pgv{number}n{os.getpid() % 100_000}"
            _run("ip", "netns", "add", host.name)
            _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", host.name)
            _run("ip", "link", "set", here, "master", bridge, "up")
            _run(*host.within, "ip", "address", "add", f"{host.address}/24", "dev", there)
            for link in ("lo", there):
                _run(*host.within, "ip", "link", "set", link, "up")
        yield Bridge(f"{net}.1", hosts)
    finally:
        for host in hosts:
            # The interfaces go with the namespace, whose own end goes with its last process.
            with suppress(RuntimeError):
                _run("ip", "netns", "delete", host.name)
        with suppress(RuntimeError):
            _run("ip", "link", "delete", bridge)


def refuse_without_tools() -> None:
    """:raises MissingTool: if this process cannot make namespaces."""
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            raise MissingTool(f"The program {program} is missing: install {package}.")
    if os.geteuid() != 0 or not Path("/proc/self/ns/net").exists():
        raise MissingTool("Only root can make network namespaces: run this as root.")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
