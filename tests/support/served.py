"""
A `pgonce serve` for a test: its real server on a free port, in a thread, and what a client hears of it.

Runs in: pytest, and in the benchmark of the page. Invariant: it ends with the block.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pgonce.serve.app import Settings, application, server
from pgonce.serve.lag import PartitionLags
from pgonce.serve.reader import Reader, Snapshot

EVERY_SECONDS = 0.2
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Served:
    """A running server."""

    port: int
    reader: Reader
    lag: PartitionLags

    def get(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Answer:
        """Ask for a path; ``host`` is what the header of that name says."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            line.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
            for name, value in headers.items():
                line.putheader(name.replace("_", "-"), value)
            line.endheaders()
            found = line.getresponse()
            names = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, names, found.read().decode())
        finally:
            line.close()

    def query(self, query_id: str, sink: str = "public.orders", more: str = "") -> Answer:
        """The page of a query."""
        return self.get(f"/queries/{quote(query_id, safe='')}?sink={quote(sink, safe='')}{more}")

    def look(self) -> Snapshot:
        """Wait until the ledger was looked at again, as a whole, and give what was seen."""
        # The look that is under way may have begun before.
        wanted = self.reader.snapshot.revision + 2
        until = time.monotonic() + PATIENCE_SECONDS
        while self.reader.snapshot.revision < wanted:
            assert time.monotonic() < until, "the ledger was not looked at"
            time.sleep(0.01)
        return self.reader.snapshot


@contextmanager
def served(url: str, *, every: float = EVERY_SECONDS, brokers: Any = None, **settings: Any) -> Iterator[Served]:
    """Serve a database, under the name that ``database`` gives it."""
    lag = PartitionLags(url, brokers)
    reader = Reader(url, every, lag.measured)
    made = Settings(**{"database": "the test's database", **settings})
    running = server(application(reader, made, lag), host="127.0.0.1", port=0, root_path=made.root_path)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while not running.started or reader.snapshot.revision == 0:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < until, "the server did not start in time"
        time.sleep(0.01)
    try:
        yield Served(running.servers[0].sockets[0].getsockname()[1], reader, lag)
    finally:
        running.should_exit = True
        thread.join(PATIENCE_SECONDS)
