"""
How do tasks and commits speak with the receiver?

Runs at both ends. Invariant: nobody is heard who has not shown that he knows the secret, and what is heard are bodies
of a COPY and JSON, never objects.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any
from uuid import UUID

CONNECT_SECONDS = 5
# The receiver takes what comes at once, and says every second that it still commits. One that is silent for so long is
# frozen, or its host is gone.
SILENCE_SECONDS = 60

# What breaks a line; a wrong secret too, for nobody but a stranger has one.
BROKEN = (OSError, EOFError, AuthenticationError)
# Of these, where nobody answered in time: at connecting, and afterwards.
SILENT = (TimeoutError, BlockingIOError)


@dataclass(frozen=True)
class Receiver:
    """
    Where the receiver of one planned batch listens; ``token`` is that of the batch's commit, and names it there.

    Travels with the plan to the tasks, and with their commit messages to the commit.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    token: UUID

    def dial(self, patience: int | None = None) -> Line:
        """
        A line to it, on which no wait takes longer than ``patience`` seconds, or :data:`SILENCE_SECONDS`.

        :raises OSError: or another of :data:`BROKEN`, where there is none.
        """
        connected = socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS)
        connected.settimeout(None)
        line = Line(connected, patience or SILENCE_SECONDS)
        try:
            line.identify(self.secret, dialled=True)
        except BaseException:
            line.close()
            raise
        return line


class Line:
    """
    One connection: messages as JSON, and bodies of a COPY as they are.

    :param patience: seconds that any wait for the other side may take; 0 is for ever.
    """

    def __init__(self, connected: socket.socket, patience: int) -> None:
        self._socket = connected
        # A message follows another at once, and waits for no acknowledgement: 40 ms, twice a task.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A task's host that vanished without a word is noticed after a minute.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.be_patient(patience)
        self._connection = Connection(os.dup(connected.fileno()))

    def be_patient(self, seconds: int) -> None:
        """Change how long a wait may take."""
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))

    def identify(self, secret: bytes, *, dialled: bool) -> None:
        """
        Show that the secret is known here, and ask the other side to.

        :raises OSError: or another of :data:`BROKEN`, where one of them fails.
        """
        steps = (answer_challenge, deliver_challenge)
        try:
            for step in steps if dialled else reversed(steps):
                step(self._connection, secret)
        except (ValueError, AssertionError) as error:
            # No such hash on this host, or a listener of somebody else's.
            raise OSError(f"the other side is no receiver of ours, or no hash is common to both: {error}") from None

    def say(self, **message: Any) -> None:
        """Send a message."""
        self._connection.send_bytes(json.dumps(message).encode())

    def hear(self) -> dict[str, Any]:
        """Wait for a message."""
        heard: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return heard

    def send_body(self, body: bytes) -> None:
        """Send rows; an empty body says that no more come."""
        self._connection.send_bytes(body)

    def next_body(self) -> bytes:
        """Wait for rows."""
        return self._connection.recv_bytes()

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._connection.close()
        self._socket.close()
