"""
A proxy in front of an object store that is slow, fails now and then, or lists late.

Runs in: any process, in threads. Invariant: what it lets through, it passes on as it is, signature and all; a key that
is hidden from listings can still be read by its name, and one that is still listed after it was deleted cannot.
"""

from __future__ import annotations

import html
import re
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, quote, unquote, urlsplit

from typing_extensions import Self

_TIMEOUT_SECONDS = 60.0
_BUSY = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
_ENTRY = re.compile(r"<Contents>.*?</Contents>|<CommonPrefixes>.*?</CommonPrefixes>", re.DOTALL)
_NAME = re.compile(r"<(Key|Prefix)>(.*?)</\1>", re.DOTALL)
_COUNT = re.compile(r"<KeyCount>\d+</KeyCount>")
_END = "</ListBucketResult>"
_OF_THE_LINE = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class WeakStore:
    """
    A store behind ``port``; its faults can be changed at any time.

    ``delay_seconds`` comes before every answer. Every ``fails_each``-th request fails, by turns with a 503 and with a
    broken line (0: none). With ``refuses_copies`` every copy fails, and so whatever is to be moved. A listing shows
    what was there ``lists_after_seconds`` ago: new keys and folders come late, and deleted ones stay for a while. A
    program in whose ``User-Agent`` ``shows_all_to`` is found sees what is there.

    ``asked`` counts requests, ``failed`` those that failed, ``hidden`` what listings did not have yet, and
    ``shown_too_long`` what they still had.
    """

    def __init__(self, store_port: int) -> None:
        self.delay_seconds = 0.0
        self.fails_each = 0
        self.lists_after_seconds = 0.0
        self.refuses_copies = False
        self.shows_all_to: str | None = None
        self.asked = 0
        self.failed = 0
        self.hidden = 0
        self.shown_too_long = 0
        self._store_port = store_port
        # When each key was written (True) or deleted (False).
        self._changes: dict[str, list[tuple[float, bool]]] = {}
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

    def fails_now(self, *, is_copy: bool) -> str:
        """How this request fails; empty if it does not."""
        number = next(self._requests)
        self.asked = number
        if is_copy and self.refuses_copies:
            self.failed += 1
            return "busy"
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

    def note_change(self, method: str, target: str) -> None:
        """Remember when a key was written or deleted."""
        url = urlsplit(target)
        # Other requests with a query are about a part of an upload, or about many keys.
        if method in {"PUT", "POST"} or (method == "DELETE" and not url.query):
            key = unquote(url.path).split("/", 2)[-1]
            self._changes.setdefault(key, []).append((time.monotonic(), method != "DELETE"))

    def settle(self) -> None:
        """Let listings have caught up with all that was written and deleted so far."""
        self._changes.clear()

    def as_it_was(self, listing: str, query: dict[str, list[str]]) -> str:
        """A listing as it was ``lists_after_seconds`` ago, as far as this proxy has seen what changed since."""
        asked = {name: values[0] for name, values in query.items()}
        is_coded = "encoding-type" in asked
        listed = {_name_in(entry[0], is_coded=is_coded): entry[0] for entry in _ENTRY.finditer(listing)}
        kept = {name: entry for name, entry in listed.items() if self._was_listed(name)}
        self.hidden += len(listed) - len(kept)
        if "continuation-token" not in asked:
            # Deleted since; or left out because a late key was counted.
            for name in self._names_then(asked.get("prefix", ""), asked.get("delimiter", "")):
                if name not in kept and len(kept) < int(asked.get("max-keys", 1000)):
                    kept[name] = _entry(name, is_coded=is_coded)
                    self.shown_too_long += name not in listed
        answer = _COUNT.sub(f"<KeyCount>{len(kept)}</KeyCount>", _ENTRY.sub("", listing))
        return answer.replace(_END, "".join(kept[name] for name in sorted(kept)) + _END)

    def _was_listed(self, name: str) -> bool:
        """Whether a key, or a folder with any key, was there then; what this proxy has not seen change was."""
        below = [key for key in self._changes if key.startswith(name)] if name.endswith("/") else [name]
        return not below or any(map(self._was_there, below))

    def _was_there(self, key: str) -> bool:
        changes = self._changes.get(key)
        if not changes:
            return True
        then = time.monotonic() - self.lists_after_seconds
        before = [is_there for when, is_there in changes if when <= then]
        # Before its first change it was what that change is not.
        return before[-1] if before else not changes[0][1]

    def _names_then(self, prefix: str, delimiter: str) -> set[str]:
        """The keys and folders that a listing had then, of those that this proxy has seen change."""
        found = set()
        for key in list(self._changes):
            if key.startswith(prefix) and self._was_there(key):
                first, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key[len(prefix) :], "", "")
                found.add(prefix + first + cut)
        return found


def _name_in(entry: str, *, is_coded: bool) -> str:
    found = _NAME.search(entry)
    name = html.unescape(found[2]) if found else ""
    return unquote(name) if is_coded else name


def _entry(name: str, *, is_coded: bool) -> str:
    said = html.escape(quote(name) if is_coded else name)
    if name.endswith("/"):
        return f"<CommonPrefixes><Prefix>{said}</Prefix></CommonPrefixes>"
    return (
        f"<Contents><Key>{said}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        "<Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: WeakStore

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _pass_on(self) -> None:
        body = self._body()
        time.sleep(self.store.delay_seconds)
        if how := self.store.fails_now(is_copy="x-amz-copy-source" in self.headers):
            self.close_connection = True
            if how == "busy":
                self._answer(503, [("Content-Type", "application/xml")], _BUSY)
            return
        with suppress(HTTPException, OSError):
            status, headers, content = self.store.ask(self.command, self.path, self.headers.items(), body)
            if status < HTTPStatus.BAD_REQUEST:
                self.store.note_change(self.command, self.path)
            query = parse_qs(urlsplit(self.path).query)
            if self._is_told_late() and "list-type" in query:
                content = self.store.as_it_was(content.decode(), query).encode()
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
