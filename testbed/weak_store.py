"""
How does an object store behave on a bad day? A proxy in front of one that is slow, fails now and then, or lists late.

Runs in: any process, in threads. Invariant: what it lets through, it passes on as it is, signature and all; a key that
is hidden from listings can still be read by its name.
"""

from __future__ import annotations

import html
import re
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit

from typing_extensions import Self

_TIMEOUT_SECONDS = 60.0
_BUSY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
_ENTRY = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_OF_THE_LINE = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class WeakStore:
    """
    A store behind ``port``; its faults can be changed at any time.

    ``delay_seconds`` comes before every answer. Every ``fails_each``-th request fails, by turns with a 503 and with a
    broken line (0: none). A key is listed ``lists_after_seconds`` after it was written, but at once to a program
    in whose ``User-Agent`` ``shows_all_to`` is found.
    """

    def __init__(self, store_port: int) -> None:
        self.delay_seconds = 0.0
        self.fails_each = 0
        self.lists_after_seconds = 0.0
        self.shows_all_to: str | None = None
        self.failed = 0
        self.hidden = 0
        self._store_port = store_port
        self._written: dict[str, float] = {}
        self._requests = count(1)
        weak = self

        class Handler(_Passing):
            store = weak

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fails_now(self) -> str:
        """How this request fails; empty if it does not."""
        number = next(self._requests)
        if not self.fails_each or number % self.fails_each:
            return ""
        self.failed += 1
        return "broken" if (number // self.fails_each) % 2 else "busy"

    def ask(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> tuple[int, list, bytes]:
        """The store's own answer."""
        connection = HTTPConnection("127.0.0.1", self._store_port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def note_write(self, method: str, target: str) -> None:
        """Remember when a key was written."""
        if method in {"PUT", "POST"}:
            self._written[unquote(urlsplit(target).path).split("/", 2)[-1]] = time.monotonic()

    def without_late_keys(self, listing: bytes) -> bytes:
        """A listing as it was ``lists_after_seconds`` ago, as far as new keys go."""
        now = time.monotonic()

        def kept(entry: re.Match[bytes]) -> bytes:
            key = _KEY.search(entry[0])
            name = html.unescape(key[1].decode()) if key else ""
            # A listing may have its keys percent-encoded.
            written = self._written.get(name) or self._written.get(unquote(name)) or float("-inf")
            late = now - written < self.lists_after_seconds
            self.hidden += late
            return b"" if late else entry[0]

        return _ENTRY.sub(kept, listing)


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: WeakStore

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        body = self._body()
        time.sleep(self.store.delay_seconds)
        if how := self.store.fails_now():
            self.close_connection = True
            if how == "busy":
                self._answer(503, [("Content-Type", "application/xml")], _BUSY)
            return
        with suppress(HTTPException, OSError):
            status, headers, content = self.store.ask(self.command, self.path, self.headers.items(), body)
            self.store.note_write(self.command, self.path)
            if self._is_told_late() and "list-type" in parse_qs(urlsplit(self.path).query):
                content = self.store.without_late_keys(content)
            self._answer(status, headers, content)
            return
        self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815 (the names that the base class calls)

    def _is_told_late(self) -> bool:
        shown_all = self.store.shows_all_to
        knows_all = shown_all is not None and shown_all in self.headers.get("User-Agent", "")
        return self.store.lists_after_seconds > 0 and not knows_all

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # Passed on in one piece; the signature covers neither form.
        del self.headers["Transfer-Encoding"]
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        self.headers["Content-Length"] = str(len(found))
        return found

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OF_THE_LINE:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        # An answer to HEAD has the length of what it does not bring.
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
