"""
A server that answers as a test says, such as that of a cloud which gives tokens.

Runs in: pytest, in a thread, over real HTTP. What a request must be is what a test says; what came is kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    """One request."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """Parsed as JSON or as a form, whichever it says that it is."""
        is_json = "json" in self.headers.get("content-type", "")
        return json.loads(self.raw) if is_json else _first_of_each(self.raw.decode())


# Status, and what is answered: as JSON, or a text as it is.
Answer = tuple[int, "dict[str, Any] | str"]


@dataclass
class HttpServer:
    """Where it listens, what it has been asked, and who answers each path."""

    url: str
    routes: dict[tuple[str, str], Callable[[Request], Answer]]
    requests: list[Request] = field(default_factory=list)

    def asked(self, path: str) -> list[Request]:
        """The requests for one path."""
        return [request for request in self.requests if request.path == path]


def _first_of_each(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text).items()}


@contextmanager
def serving(routes: dict[tuple[str, str], Callable[[Request], Answer]]) -> Iterator[HttpServer]:
    """Serve ``routes`` (method and path) while the block runs; any other path is not found."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            where = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(where.path, _first_of_each(where.query), headers, raw)
            server.requests.append(request)
            answer = routes.get((self.command, where.path), lambda _: (404, {"error": "not_found"}))
            status, said = answer(request)
            text = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_HEAD = _answer  # noqa: N815 (the names that http.server calls)
        do_POST = do_PUT = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = HttpServer(f"http://127.0.0.1:{listening.server_port}", routes)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
