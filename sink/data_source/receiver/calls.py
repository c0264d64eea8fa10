"""
Call a receiver at the addresses at which it may be.

Runs in tasks and in the commit worker. Invariant: a line is handed on only if the other side has the certificate that
the plan names or, on this host, is of the same user.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .line import BROKEN, SILENT, Line, OtherUserError, context_for

CONNECT_SECONDS = 2.0

Address = str | tuple[str, int]
"""The name of a Unix socket on this host, or a host and a port."""

_MOST_REMEMBERED = 256
_Value = TypeVar("_Value")


class NotThereError(OSError):
    """No connection was accepted at any of the addresses of a receiver, or only by another user's process."""


@dataclass(frozen=True)
class Doors:
    """
    Where a receiver is called, and how it is recognized.

    :param certificate: of the one who answers at an address of a network; None if there is none.
    :param secret: what a caller shows.
    """

    addresses: tuple[Address, ...]
    certificate: bytes | None = field(repr=False)
    secret: bytes = field(repr=False)

    @property
    def is_for_other_hosts(self) -> bool:
        """Whether executors on other hosts may find it."""
        return any(not isinstance(address, str) for address in self.addresses)

    def also_at(self, host: str | None) -> Doors:
        """The same, and before the others, its port at the host by which executors know Spark's driver."""
        near = [address for address in self.addresses if isinstance(address, str)]
        far = [address for address in self.addresses if not isinstance(address, str)]
        # Spark writes an address of IPv6 in brackets.
        known = [(host.strip("[]"), port) for _, port in far] if host else []
        return replace(self, addresses=tuple(dict.fromkeys((*near, *known, *far))))

    def dial(self, patience: float) -> Line:
        """
        Open a line on which no wait takes longer than ``patience`` seconds, and show the secret.

        :raises NotThereError: if nothing accepts a connection, after two seconds at most.
        :raises OSError: or another of :data:`BROKEN`, if nothing answers as it must.
        """
        known = reached.get(self.secret)
        if known in self.addresses:
            try:
                line = self._answered(known, patience, CONNECT_SECONDS)
            except NotThereError as error:
                # It was there before, so it can be reached, and has ended.
                raise ConnectionError(str(error)) from error.__cause__
        else:
            address, line = self._first_answer(patience)
            _remember(reached, self.secret, address)
        try:
            line.show(self.secret)
        except BaseException:
            line.close()
            raise
        return line

    def note_silence(self, error: BaseException, *, is_unreached: bool = False) -> None:
        """Tasks of this process no longer wait for a receiver if ``error`` says that one has waited in vain."""
        if isinstance(error, SILENT) or isinstance(error.__cause__, SILENT):
            _remember(silent, self.secret, (is_unreached, time.monotonic()))

    def _first_answer(self, patience: float) -> tuple[Address, Line]:
        # On this host a process is there or not. The other addresses share the time.
        seconds = CONNECT_SECONDS / max(1, sum(not isinstance(address, str) for address in self.addresses))
        absent: list[NotThereError] = []
        stranger: BaseException | None = None
        for address in self.addresses:
            try:
                return address, self._answered(address, patience, seconds)
            except NotThereError as error:
                absent.append(error)
            except SILENT:
                raise
            except BROKEN as error:
                stranger = error
        raise stranger or _not_there(absent)

    def _answered(self, address: Address, patience: float, seconds: float) -> Line:
        try:
            connected = _connected(address, seconds)
        except (OSError, UnicodeError) as error:
            raise NotThereError(f"{_shown(address)}: {error}") from error
        context = context_for(self.certificate) if self.certificate else None
        try:
            return Line(connected, context, patience, dialled=True)
        except OtherUserError as error:
            raise NotThereError(f"{_shown(address)}: {error}") from error


# By the receivers' secrets, of which each has one of its own.
reached: dict[bytes, Address] = {}
# Those of which a call has cost time; whether it was because it is not there, and when.
silent: dict[bytes, tuple[bool, float]] = {}


def _remember(where: dict[bytes, _Value], secret: bytes, value: _Value) -> None:
    # Each planner's worker may start one, and executors live for months.
    if len(where) >= _MOST_REMEMBERED:
        where.clear()
    where[secret] = value


def _connected(address: Address, seconds: float) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=seconds)
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(seconds)
        connected.connect(address)
    except BaseException:
        connected.close()
        raise
    return connected


def _not_there(errors: Sequence[BaseException]) -> OSError:
    error = NotThereError("; ".join(map(str, errors)) or "it has no address")
    # Told apart, because to be refused costs nothing.
    error.__cause__ = next((one.__cause__ for one in errors if isinstance(one.__cause__, SILENT)), None)
    return error


def _shown(address: Address) -> str:
    return "this host" if isinstance(address, str) else f"{address[0]} port {address[1]}"
