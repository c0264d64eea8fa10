"""
A TCP port behind which a server is as far away as one says: each byte arrives a fixed time after it was sent.

Runs in: any process, in threads. Invariant: bytes keep their order, and what is sent meanwhile waits at the same time,
not one after the other.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress

from typing_extensions import Self

_CHUNK = 65536


class FarServer:
    """
    Leads connections to a server and delays them; a context manager.

    :param one_way_seconds: how long a byte travels; an answer takes twice as long.
    """

    def __init__(self, host: str, port: int, one_way_seconds: float) -> None:
        self._server = (host, port)
        self._delay = one_way_seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for source, sink in ((client, server), (server, client)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    travelling: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    threading.Thread(target=self._take, args=(source, travelling), daemon=True).start()
                    threading.Thread(target=_deliver, args=(travelling, sink), daemon=True).start()

    def _take(self, source: socket.socket, travelling: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"first"
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            travelling.put((time.monotonic() + self._delay, data))


def _deliver(travelling: queue.SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
    with suppress(OSError):
        while True:
            at, data = travelling.get()
            time.sleep(max(0.0, at - time.monotonic()))
            if not data:
                # The other side sends no more.
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)
