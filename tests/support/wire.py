"""
Read as much of Postgres's wire protocol (version 3) as is needed to see COMMIT and COPY go by.

Runs in: the proxy's threads; no I/O but `receive`. Invariant: a COMMIT is seen however it is sent: as a
simple query, or parsed once and executed later through a named statement. One hidden at the end of a longer
query string is not.
"""

from __future__ import annotations

import re
import socket
import struct
from contextlib import suppress

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
SYNC = b"S" + struct.pack("!i", 4)

_COMMIT = re.compile(rb"\s*(COMMIT|END)\b(?!\s+PREPARED)", re.IGNORECASE)
_BEGIN = re.compile(rb"\s*(BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)
_COPY = re.compile(rb"\s*COPY\b", re.IGNORECASE)


class Transcript:
    """
    What one client said: `said` since its last BEGIN, `copied` bytes of data in its last COPY.

    `also` finds the statements that commit by themselves, outside a transaction: `said` begins with each of them.

    Messages: https://www.postgresql.org/docs/current/protocol-message-formats.html
    """

    def __init__(self, also: re.Pattern[bytes] | None = None) -> None:
        self._also = also
        self.said = b""
        self.copied = 0
        self._prepared: dict[bytes, bytes] = {}
        self._commit_statements: set[bytes] = set()
        self._commit_portals: set[bytes] = set()

    def hear(self, kind: bytes, body: bytes) -> bool:
        """Take in one message; tell whether it makes the server commit."""
        match kind:
            case b"Q":
                return self._query(body)
            case b"P":
                name, query, _ = body.split(b"\0", 2)
                self._prepared[name] = query
                _put(self._commit_statements, name, self._query(query))
            case b"B":
                portal, statement, _ = body.split(b"\0", 2)
                if statement:
                    # Its text was sent once, perhaps in an earlier transaction.
                    self._say(self._prepared.get(statement, b""))
                _put(self._commit_portals, portal, statement in self._commit_statements)
            case b"E":
                return body.split(b"\0", 1)[0] in self._commit_portals
            case b"d":
                self.copied += len(body)
        return False

    def _query(self, query: bytes) -> bool:
        if _COPY.match(query):
            self.copied = 0
        self._say(query)
        return _COMMIT.match(query) is not None or self._commits_by_itself(query)

    def _say(self, query: bytes) -> None:
        if _BEGIN.match(query) or self._commits_by_itself(query):
            self.said = b""
        self.said += query

    def _commits_by_itself(self, query: bytes) -> bool:
        return self._also is not None and self._also.search(query) is not None


def _put(names: set[bytes], name: bytes, belongs: bool) -> None:
    # A name may be used again for something else.
    if belongs:
        names.add(name)
    else:
        names.discard(name)


def receive_startup(source: socket.socket) -> tuple[int, bytes]:
    """One message of the start of a connection, which has no kind: its code and its bytes; none when gone."""
    head = receive(source, 4)
    body = receive(source, struct.unpack("!i", head)[0] - 4) if head else b""
    return (struct.unpack("!i", body[:4])[0], head + body) if body else (0, b"")


def receive_message(source: socket.socket) -> tuple[bytes, bytes, bytes]:
    """One message: its kind, its body, and its bytes as they came; all empty when the other side has gone."""
    head = receive(source, 5)
    if not head:
        return b"", b"", b""
    length = struct.unpack("!i", head[1:])[0] - 4
    body = receive(source, length)
    # A message cut short by the end of its connection is none.
    return (head[:1], body, head + body) if len(body) == length else (b"", b"", b"")


def receive(source: socket.socket, length: int) -> bytes:
    """Exactly so many bytes, or none when the other side has gone."""
    data = bytearray()
    while len(data) < length:
        try:
            piece = source.recv(min(length - len(data), 1 << 20))
        except OSError:
            return b""
        if not piece:
            return b""
        data += piece
    return bytes(data)


def close(*sockets: socket.socket) -> None:
    """Close, and wake the threads that read from it."""
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
