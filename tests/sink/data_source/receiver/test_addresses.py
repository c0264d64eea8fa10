"""Where a receiver listens, if nobody says: where Spark's driver does."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pgonce.sink.data_source.receiver import addresses
from pgonce.sink.data_source.receiver.addresses import MOST_ADDRESSES, driver_addresses

LISTENING = """
import socket, sys
opened = []
for host in sys.argv[1:]:
    one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if one.family == socket.AF_INET6:
        # As Java does.
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    one.bind((host, 0))
    one.listen()
    opened.append(one)
print("listening", flush=True)
sys.stdin.read()
"""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says where a process listens")


@contextmanager
def driver(*hosts):
    """A process that listens at these addresses, as Spark's driver does; its id."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, *hosts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "listening\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def of_this_host():
    """All addresses of this machine that others may reach, or loopback if there are none."""
    return driver_addresses(None)


def test_without_a_driver_they_are_all_addresses_of_the_host():
    """Each of them is this host's own, and loopback is only returned if there is nothing else."""
    found = of_this_host()
    assert 0 < len(found) <= MOST_ADDRESSES
    assert len(set(found)) == len(found)
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        socket.create_server((address, 0), family=family).close()
    is_loopback = [ipaddress.ip_address(one).is_loopback for one in found]
    assert not any(is_loopback) or found == ("127.0.0.1",)


@linux_only
def test_they_are_those_at_which_the_driver_listens():
    """Loopback, where Py4J always listens, is not one of them if the driver listens at another address as well."""
    with driver("127.0.0.1") as pid:
        assert driver_addresses(pid) == ("127.0.0.1",)
    outside = of_this_host()[0]
    with driver("127.0.0.1", outside) as pid:
        assert driver_addresses(pid) == (outside,)
    # As Spark's UI does.
    with driver("127.0.0.1", outside, "0.0.0.0") as pid:
        assert driver_addresses(pid) == (outside,)


@linux_only
@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_a_driver_that_listens_everywhere_leaves_all_addresses(everywhere):
    """As with spark.driver.bindAddress=0.0.0.0."""
    with driver("127.0.0.1", everywhere) as pid:
        assert driver_addresses(pid) == of_this_host()


@linux_only
def test_java_listens_at_ipv4_by_sockets_of_ipv6():
    """Such an address is the one of IPv4."""
    with driver("::ffff:127.0.0.1") as pid:
        assert driver_addresses(pid) == ("127.0.0.1",)


def test_a_driver_that_cannot_be_looked_at_leaves_all_addresses(monkeypatch, tmp_path):
    """Of a process that is gone, or without /proc, only the host's addresses are known."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert driver_addresses(gone.pid) == of_this_host()
    monkeypatch.setattr(addresses, "_PROC", tmp_path)
    for address in driver_addresses(os.getpid()):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        socket.create_server((address, 0), family=family).close()


def test_the_likeliest_come_first(monkeypatch):
    """A host may have more addresses than tasks should try."""
    many = ["fd00::7", "172.17.0.1", *(f"10.0.0.{number}" for number in range(1, 10)), "10.0.0.1"]
    monkeypatch.setattr(addresses, "_of_this_host", lambda: many)
    assert driver_addresses(None) == tuple(f"10.0.0.{number}" for number in range(1, 9))
    monkeypatch.setattr(addresses, "_of_this_host", lambda: many[:3])
    assert driver_addresses(None) == ("10.0.0.1", "172.17.0.1", "fd00::7")
