"""
A server that gives tokens, as a cloud does: it checks what it is asked, and refuses what the documentation forbids.

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
    """One request: its body is parsed as JSON or as a form, whichever it says that it is."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]


# Status, and what is answered: as JSON, or a text as it is.
Answer = tuple[int, "dict[str, Any] | str"]


@dataclass
class TokenServer:
    """Where it listens, what it has been asked, and who answers each path."""

    url: str
    routes: dict[tuple[str, str], Callable[[Request], Answer]]
    requests: list[Request] = field(default_factory=list)

    def asked(self, path: str) -> list[Request]:
        """The requests for one path."""
        return [request for request in self.requests if request.path == path]


@contextmanager
def serving(routes: dict[tuple[str, str], Callable[[Request], Answer]]) -> Iterator[TokenServer]:
    """Serve ``routes`` (method and path) while the block runs; any other path is not found."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            where = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            is_json = "json" in self.headers.get("Content-Type", "")
            form = {name: values[0] for name, values in parse_qs(raw).items()}
            body = json.loads(raw) if is_json and raw else form
            query = {name: values[0] for name, values in parse_qs(where.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, where.path, query, headers, body)
            server.requests.append(request)
            answer = routes.get((self.command, where.path), lambda _: (404, {"error": "not_found"}))
            status, said = answer(request)
            text = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = _answer  # noqa: N815 (the name that http.server calls)
        do_POST = _answer  # noqa: N815
        do_PUT = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = TokenServer(f"http://127.0.0.1:{listening.server_port}", routes)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
