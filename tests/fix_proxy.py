"""
What happens when the line to Postgres breaks at the worst moment? A proxy that knows the protocol cuts it
there.

Runs in: pytest, a thread for each direction of each connection. Invariant: what no fault is armed for passes
unchanged; a fault strikes once (or as often as asked), at a message's border or, in COPY, inside a message;
and `hits` tells.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
import wire
from fix_postgres import PostgresServer, uri_of
from psycopg.conninfo import conninfo_to_dict

_CUTS_AT_COMMIT = ("cut_before_commit", "cut_during_commit", "cut_after_commit")
_AT_COMMIT = (*_CUTS_AT_COMMIT, "hold_before_commit", "hold_after_commit")
_SECONDS = 30.0


@dataclass
class Hold:
    """
    A connection stopped at a moment until the test lets it go on, or cuts it.

    ``client`` tells, once it is reached, which of this machine's sockets is the client's: its own port, and ours.
    """

    reached: threading.Event = field(default_factory=threading.Event)
    client: tuple[int, int] = (0, 0)
    _decided: threading.Event = field(default_factory=threading.Event)
    _goes_on: bool = False

    def wait(self, seconds: float = _SECONDS) -> None:
        """Wait until a connection is stopped here."""
        if not self.reached.wait(seconds):
            raise TimeoutError(f"No COMMIT came to the proxy within {seconds:.0f} s.")

    def release(self) -> None:
        """Let it go on as if nothing had been."""
        self._goes_on = True
        self._decided.set()

    def cut(self) -> None:
        """Cut it here."""
        self._decided.set()

    def decision(self, client: socket.socket) -> bool:
        """Stop here; True to go on."""
        with suppress(OSError):  # it may have gone already
            self.client = client.getpeername()[1], client.getsockname()[1]
        self.reached.set()
        self._decided.wait()
        return self._goes_on


@dataclass
class _Fault:
    kind: str
    touching: str
    times: int = 1
    after_bytes: int = 0
    hold: Hold | None = None


class Proxy:
    """
    Stands between clients and one server; :attr:`url` is the way through it.

    ``touching``, wherever it is taken, narrows a fault to a transaction in which the client has sent this
    text (the name of a table, say). `hits` counts the faults that struck, by method; `commits` the COMMITs
    that reached the server; `connections` all that came.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        with psycopg.connect(uri_of(parameters)) as connection:
            # libpq knows its defaults best.
            self._upstream = (connection.info.host, connection.info.port)
        self._parameters = {key: value for key, value in parameters.items() if key != "hostaddr"}
        self._lock = threading.Lock()
        self._armed: list[_Fault] = []
        self._holds: list[Hold] = []
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.passing = threading.Event()
        self.passing.set()
        self.hits: Counter[str] = Counter()
        self.commits = 0
        self.connections = 0
        self.port = 0
        # Called before each message of a client is passed on; what it does then, it does between two steps of a commit.
        self.before_message: Callable[[bytes, bytes], None] | None = None
        self.start()

    @property
    def url(self) -> str:
        """URI through the proxy, without TLS, which would hide the messages from it."""
        plain = {"host": "127.0.0.1", "port": self.port, "sslmode": "disable", "gssencmode": "disable"}
        return uri_of({**self._parameters, **plain})

    def cut_before_commit(self, touching: str = "", times: int = 1) -> None:
        """Keep COMMIT from the server and cut: nothing was written."""
        self._arm(_Fault("cut_before_commit", touching, times))

    def cut_after_commit(self, touching: str = "", times: int = 1) -> None:
        """Let the server commit, keep its answer from the client and cut: all was written, nobody knows."""
        self._arm(_Fault("cut_after_commit", touching, times))

    def cut_during_commit(self, touching: str = "", times: int = 1) -> None:
        """Cut the client off once COMMIT is on its way: the server may still be at it."""
        self._arm(_Fault("cut_during_commit", touching, times))

    def cut_in_copy(self, after_bytes: int = 0, touching: str = "", times: int = 1) -> None:
        """Cut inside the message of COPY data that takes a COPY past so many bytes."""
        self._arm(_Fault("cut_in_copy", touching, times, after_bytes))

    def hold_before_commit(self, touching: str = "") -> Hold:
        """Stop a connection before its COMMIT reaches the server."""
        return self._arm_hold("hold_before_commit", touching)

    def hold_after_commit(self, touching: str = "") -> Hold:
        """Stop a connection when the server has committed and the client does not know it yet."""
        return self._arm_hold("hold_after_commit", touching)

    def hold_in_copy(self, after_bytes: int = 0, touching: str = "") -> Hold:
        """Stop a connection in the middle of the message that takes a COPY past so many bytes."""
        return self._arm_hold("hold_in_copy", touching, after_bytes)

    def hold_at_connect(self) -> Hold:
        """Stop the next connection before the server hears of it."""
        return self._arm_hold("hold_at_connect", "")

    def disarm(self) -> None:
        """Forget the faults that have not struck."""
        with self._lock:
            self._armed.clear()

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Meanwhile take connections, and never answer; open ones fall silent too."""
        self.passing.clear()
        try:
            yield
        finally:
            self.passing.set()

    def start(self) -> None:
        """Listen, at the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Cut everything and refuse connections until :meth:`start`."""
        if self._listener:
            wire.close(self._listener)
            self._listener = None
        self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection there is; new ones are taken."""
        with self._lock:
            sockets, holds = list(self._open), list(self._holds)
            self._holds.clear()
        for hold in holds:
            hold.cut()
        wire.close(*sockets)

    def _arm(self, fault: _Fault) -> None:
        with self._lock:
            self._armed.append(fault)

    def _arm_hold(self, kind: str, touching: str, after_bytes: int = 0) -> Hold:
        hold = Hold()
        with self._lock:
            self._holds.append(hold)
        self._arm(_Fault(kind, touching, after_bytes=after_bytes, hold=hold))
        return hold

    def strike(self, kinds: tuple[str, ...], transcript: wire.Transcript) -> _Fault | None:
        """Take the first armed fault of these kinds that fits the transaction, and count it."""
        with self._lock:
            for fault in self._armed:
                fits = fault.touching.encode() in transcript.said
                if fault.kind in kinds and fits and transcript.copied >= fault.after_bytes:
                    fault.times -= 1
                    if fault.times == 0:
                        self._armed.remove(fault)
                    self.hits[fault.kind] += 1
                    return fault
        return None

    def count_commit(self) -> None:
        """A COMMIT goes to the server."""
        with self._lock:
            self.commits += 1

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._tracked(client), suppress(OSError):
            self.passing.wait()
            fault = self.strike(("hold_at_connect",), wire.Transcript())
            if fault and fault.hold and not fault.hold.decision(client):
                return
            with self._tracked(self._connected()) as server:
                _Conversation(self, client, server).run()

    @contextmanager
    def _tracked(self, one: socket.socket) -> Iterator[socket.socket]:
        if one.family == socket.AF_INET:
            # Nagle's algorithm would make a round trip through the proxy take 86 ms.
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # As a server's: where a client has vanished, the connection behind the proxy must not stay for ever.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, option):
                    one.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        with self._lock:
            self._open.add(one)
        try:
            yield one
        finally:
            with self._lock:
                self._open.discard(one)
            wire.close(one)

    def _connected(self) -> socket.socket:
        host, port = self._upstream
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


class _Conversation:
    """One connection through the proxy; both sides are cut when it ends."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._transcript = wire.Transcript()
        self._discarding = False
        self._committed = threading.Event()
        self._hold: Hold | None = None

    def run(self) -> None:
        if not self._pass_startup():
            return
        answers = threading.Thread(target=self._pass_answers, daemon=True)
        answers.start()
        try:
            self._pass_messages()
        finally:
            wire.close(self._client, self._server)
            answers.join()

    def _pass_startup(self) -> bool:
        while True:
            code, message = wire.receive_startup(self._client)
            if code not in (wire.SSL_REQUEST, wire.GSS_REQUEST):
                self._server.sendall(message)
                return bool(message)
            self._client.sendall(b"N")

    def _pass_messages(self) -> None:
        while True:
            kind, body, message = wire.receive_message(self._client)
            if not kind:
                return
            self._proxy.passing.wait()
            if self._proxy.before_message is not None:
                self._proxy.before_message(kind, body)
            commits = self._transcript.hear(kind, body)
            if kind == b"d" and not self._goes_on_in_copy(message):
                return
            if commits and not self._goes_on_at_commit(kind, message):
                return
            if kind != b"d":
                self._server.sendall(message)

    def _goes_on_in_copy(self, message: bytes) -> bool:
        fault = self._proxy.strike(("cut_in_copy", "hold_in_copy"), self._transcript)
        if fault is None:
            self._server.sendall(message)
            return True
        half = len(message) // 2
        self._server.sendall(message[:half])
        if fault.hold is None or not fault.hold.decision(self._client):
            return False
        self._server.sendall(message[half:])
        return True

    def _goes_on_at_commit(self, kind: bytes, message: bytes) -> bool:
        fault = self._proxy.strike(_AT_COMMIT, self._transcript)
        struck = fault.kind if fault else ""
        held = fault.hold if fault else None
        if struck == "cut_before_commit":
            return False
        if struck == "hold_before_commit" and held and not held.decision(self._client):
            return False
        self._proxy.count_commit()
        if struck == "hold_after_commit":
            self._hold = held
        if struck not in ("cut_during_commit", "cut_after_commit"):
            return True
        self._discarding = True
        # The server keeps its answers to an extended query back until Sync.
        self._server.sendall(message + (wire.SYNC if kind == b"E" else b""))
        if struck == "cut_during_commit":
            wire.close(self._client)
        self._committed.wait(_SECONDS)
        return False

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while True:
                kind, body, message = wire.receive_message(self._server)
                if not kind:
                    break
                if self._discarding:
                    # ReadyForQuery outside a transaction: the server is done with COMMIT.
                    if (kind, body) == (b"Z", b"I"):
                        self._committed.set()
                    continue
                # CommandComplete: sent when the transaction is durable.
                if self._hold and kind == b"C" and not self._hold.decision(self._client):
                    break
                self._proxy.passing.wait()
                self._client.sendall(message)
        self._committed.set()
        wire.close(self._client)


@pytest.fixture
def proxy(postgres_server: PostgresServer, tcp_url: str) -> Iterator[Proxy]:
    """A proxy before the test's database: ``proxy.url`` is the way through it."""
    between = Proxy(conninfo_to_dict(tcp_url))
    yield between
    between.stop()
