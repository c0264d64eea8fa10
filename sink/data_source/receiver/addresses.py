"""
Find the addresses of the driver's host at which executors may reach a receiver.

Runs in the planner's worker. Invariant: where it is known at which addresses Spark's driver itself listens, a receiver
listens at those and at no others.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

# Executors try all at the same time, so more would only cost them sockets.
MOST_ADDRESSES = 8

_PROC = Path("/proc")
# The state LISTEN in /proc/net/tcp.
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_OWN = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
# The scope of an address in /proc/net/if_inet6 that leads beyond its link.
_GLOBAL = "00"
# Nothing is sent to these, which are for documentation: only the way to them is looked up.
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def driver_addresses(jvm: int | None) -> tuple[str, ...]:
    """
    Return the addresses to listen at, the likeliest first, at most :data:`MOST_ADDRESSES`.

    They are those at which Spark's driver listens for its executors, if these are known. They are unknown without
    Linux's /proc, and if the driver listens at all addresses (``spark.driver.bindAddress=0.0.0.0``); then all addresses
    of this host are returned. Loopback is returned only if there is nothing else.

    :param jvm: the process id of Spark's driver; None if it is unknown.
    """
    listening = _listening_at(jvm) if jvm else set()
    is_everywhere = not listening or any(ipaddress.ip_address(one).is_unspecified for one in listening)
    of_spark = {one for one in listening if not ipaddress.ip_address(one).is_unspecified}
    # Py4J always listens at loopback, and the UI at all addresses; neither is for executors.
    outside = [one for one in of_spark if not ipaddress.ip_address(one).is_loopback]
    if not outside and is_everywhere:
        outside = _of_this_host()
    chosen = outside or sorted(of_spark) or ["127.0.0.1"]
    return tuple(dict.fromkeys(sorted(chosen, key=_likeliest_first)))[:MOST_ADDRESSES]


def _likeliest_first(address: str) -> tuple[bool, bool, str]:
    found = ipaddress.ip_address(address)
    # Nearly all clusters speak IPv4; and 172.17.0.0/16 is the bridge of Docker on each host.
    return found.version != 4, found in ipaddress.ip_network("172.17.0.0/16"), address  # noqa: PLR2004 (IPv4)


def _listening_at(pid: int) -> set[str]:
    """The addresses at which this process listens; empty if they cannot be read."""
    try:
        descriptors = list((_PROC / str(pid) / "fd").iterdir())
        lines = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in (_PROC / str(pid) / "net" / name).read_text().splitlines()[1:]
        ]
    except OSError:
        # Not Linux, or another user's process.
        return set()
    sockets = {found[1] for one in descriptors if (found := _SOCKET.match(_leads_to(one)))}
    return {_address(words[1]) for words in lines if words[3] == _LISTENS and words[9] in sockets}


def _leads_to(descriptor: Path) -> str:
    # It may have been closed since.
    with suppress(OSError):
        return str(descriptor.readlink())
    return ""


def _address(written: str) -> str:
    """An address as /proc writes it: words of four bytes in this machine's order, in hexadecimal digits."""
    digits = written.partition(":")[0]
    words = (int(digits[start : start + 8], 16) for start in range(0, len(digits), 8))
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    # Java listens at IPv4's addresses by sockets of IPv6.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _of_this_host() -> list[str]:
    """All addresses of this host that others may reach."""
    found: list[str] = []
    with suppress(OSError):
        found += _OWN.findall((_PROC / "net/fib_trie").read_text())
    with suppress(OSError):
        for line in (_PROC / "net/if_inet6").read_text().splitlines():
            digits, _, _, scope, *_ = line.split()
            if scope == _GLOBAL:
                found.append(str(ipaddress.ip_address(bytes.fromhex(digits))))
    for family, far_away in () if found else _FAR_AWAY:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as towards:
            towards.connect((far_away, 9))
            found.append(towards.getsockname()[0])
    return [one for one in found if not ipaddress.ip_address(one).is_loopback]
