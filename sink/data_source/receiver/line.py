"""
How do tasks and commits talk to the receiver?

Runs at both ends. Invariant: a line uses TLS 1.3 from its first byte. The caller says nothing until it has seen the
certificate that the plan names, and the receiver listens to nobody who does not know the secret. Only bodies of a COPY
and JSON are sent, never objects, and each is preceded by its length: a line that ends too early is broken.
"""

from __future__ import annotations

import hmac
import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from .certificate import context_for

CONNECT_SECONDS = 5
# The receiver reads at once what arrives, and while it commits it says so every second. If it is silent for this long,
# it is frozen, or its host is gone.
SILENCE_SECONDS = 60
SECRET_BYTES = 32

# What breaks a line. That includes errors of TLS, and a wrong certificate or secret: only a stranger has one of those.
BROKEN = (OSError, EOFError)
# The ones among them that mean that nobody answered in time, while connecting or afterwards.
SILENT = (TimeoutError,)

_LENGTH = struct.Struct("!Q")
# A host that vanished silently is noticed after a minute, whether something was sent to it (TCP_USER_TIMEOUT, in
# milliseconds: keepalives wait while sent data is not acknowledged) or not.
_NOTICED = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


@dataclass(frozen=True)
class Address:
    """
    Where the receiver of one planned batch listens, and its certificate.

    ``token`` is the token of the batch's commit, by which the receiver knows the batch. All this travels with the plan
    to the tasks, and with their commit messages to the commit.
    """

    host: str
    port: int
    certificate: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    token: UUID

    def dial(self, patience: int | None = None) -> Line:
        """
        Open a line to it, on which no wait takes longer than ``patience`` seconds (else :data:`SILENCE_SECONDS`).

        :raises OSError: or another of :data:`BROKEN`, if that fails.
        """
        context = context_for(self.certificate)
        connected = socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS)
        line = Line(connected, context, patience or SILENCE_SECONDS, dialled=True)
        try:
            line.show(self.secret)
        except BaseException:
            line.close()
            raise
        return line


class Line:
    """
    One connection: messages as JSON, and bodies of a COPY as they are.

    :param connected: belongs to this line from now on, which closes it even if the handshake fails.
    :param patience: seconds that any wait for the other side may take; 0 means for ever.
    :raises OSError: if the other side does not present what ``context`` asks for.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, patience: int, *, dialled: bool) -> None:
        try:
            # A message does not wait until the one before is acknowledged, which would take 40 ms, twice a task.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _NOTICED.items():
                if hasattr(socket, name):
                    connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            connected.settimeout(patience)
            # There is one time limit for the whole handshake, so that nobody can draw it out byte by byte.
            self._socket = context.wrap_socket(connected, server_side=not dialled, suppress_ragged_eofs=False)
        except BaseException:
            connected.close()
            raise
        self.be_patient(patience)

    def be_patient(self, seconds: int) -> None:
        """Change how long a wait may take."""
        self._socket.settimeout(seconds or None)

    def show(self, secret: bytes) -> None:
        """Show the secret to the other side, which has already shown its certificate."""
        self._socket.sendall(secret)

    def refuse_stranger(self, secret: bytes) -> None:
        """
        Refuse a caller that does not begin with the secret.

        :raises OSError: for such a caller.
        """
        # The secret is sent in one piece and arrives in one, so there is only one wait: a stranger cannot draw it out.
        if not hmac.compare_digest(self._socket.recv(SECRET_BYTES), secret):
            raise OSError("the caller does not know the secret")

    def say(self, **message: Any) -> None:
        """Send a message."""
        said = json.dumps(message).encode()
        self._socket.sendall(_LENGTH.pack(len(said)) + said)

    def hear(self) -> dict[str, Any]:
        """Wait for a message."""
        heard: dict[str, Any] = json.loads(self.next_body())
        return heard

    def send_body(self, body: bytes) -> None:
        """Send rows; an empty body means that no more come."""
        self._socket.sendall(_LENGTH.pack(len(body)))
        if body:
            self._socket.sendall(body)

    def next_body(self) -> bytes:
        """Wait for rows."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        body = bytearray(size)
        missing = memoryview(body)
        while missing:
            count = self._socket.recv_into(missing)
            if count == 0:
                raise EOFError("the other side hung up")
            missing = missing[count:]
        # Not turned into bytes: COPY, files and json read it as it is, and a copy would cost as much as receiving it.
        return cast("bytes", body)

    def close(self) -> None:
        """End it."""
        self._socket.close()
