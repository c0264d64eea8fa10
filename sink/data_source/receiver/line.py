"""
How do tasks and commits speak with the receiver?

Runs at both ends. Invariant: a line is TLS 1.3 from its first byte; who dials has seen the certificate that the plan
names before it says anything, and who answers hears nobody who does not know the secret. What is heard are bodies of a
COPY and JSON, never objects, and each says beforehand how long it is: where a line ends too early, it broke.
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

from pgonce.sink.data_source.receiver.certificate import context_for

CONNECT_SECONDS = 5
# The receiver takes what comes at once, and says every second that it still commits. One that is silent for so long is
# frozen, or its host is gone.
SILENCE_SECONDS = 60
SECRET_BYTES = 32

# What breaks a line: also TLS's own errors, and a wrong certificate or secret, for nobody but a stranger has one.
BROKEN = (OSError, EOFError)
# Of these, where nobody answered in time: at connecting, and afterwards.
SILENT = (TimeoutError,)

_LENGTH = struct.Struct("!Q")
# A host that vanished without a word is noticed after a minute, whether something was sent to it (TCP_USER_TIMEOUT, in
# milliseconds: keepalives wait while sent data is not acknowledged) or not.
_NOTICED = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


@dataclass(frozen=True)
class Receiver:
    """
    Where the receiver of one planned batch listens, and by which certificate it is known; ``token`` is that of the
    batch's commit, and names it there.

    Travels with the plan to the tasks, and with their commit messages to the commit.
    """

    host: str
    port: int
    certificate: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    token: UUID

    def dial(self, patience: int | None = None) -> Line:
        """
        A line to it, on which no wait takes longer than ``patience`` seconds, or :data:`SILENCE_SECONDS`.

        :raises OSError: or another of :data:`BROKEN`, where there is none.
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

    :param connected: this line's own from now on, also where no line comes of it.
    :param patience: seconds that any wait for the other side may take; 0 is for ever.
    :raises OSError: where the other side does not show what ``context`` asks for.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, patience: int, *, dialled: bool) -> None:
        try:
            # A message follows another at once, and waits for no acknowledgement: 40 ms, twice a task.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _NOTICED.items():
                if hasattr(socket, name):
                    connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            connected.settimeout(patience)
            # The time limit is one for the whole handshake: nobody draws it out byte by byte.
            self._socket = context.wrap_socket(connected, server_side=not dialled, suppress_ragged_eofs=False)
        except BaseException:
            connected.close()
            raise
        self.be_patient(patience)

    def be_patient(self, seconds: int) -> None:
        """Change how long a wait may take."""
        self._socket.settimeout(seconds or None)

    def show(self, secret: bytes) -> None:
        """Show that the secret is known here; the certificate has shown to whom."""
        self._socket.sendall(secret)

    def refuse_stranger(self, secret: bytes) -> None:
        """
        Hear no more of one who does not begin with the secret.

        :raises OSError: where that is so.
        """
        # What was sent at once comes at once: one wait, however little a stranger says at a time.
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
        """Send rows; an empty body says that no more come."""
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
        # As it is, for COPY, a file and json read it as they do bytes: a copy would cost as much as the receiving.
        return cast("bytes", body)

    def close(self) -> None:
        """End it."""
        self._socket.close()
