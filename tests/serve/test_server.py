"""Clients that take their time keep nobody else from an answer of `pgonce serve`."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress

import pytest
from support.ledger_history import KAFKA, QUERY, publish
from support.served import served

from pgonce.serve import server

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


@pytest.fixture
def site(url, store, monkeypatch):
    """A server that waits for a client for a second."""
    publish(url, 3, KAFKA)
    monkeypatch.setattr(server, "_PATIENCE_SECONDS", 1.0)
    with served(url) as site:
        yield site


def opened(site, sent=b""):
    """A connection on which these bytes were sent."""
    line = socket.create_connection(("127.0.0.1", site.port), timeout=20)
    line.sendall(sent)
    return line


def is_let_go(line):
    """Whether the server has closed it, once it says anything."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_requests_of_many_clients(site):
    """They do not use up the files that the process may open: the oldest are let go at once."""
    lines = [opened(site, HALF) for _ in range(300)]
    began = time.monotonic()
    assert site.get("/healthz").status == 200
    assert is_let_go(lines[0])
    assert time.monotonic() - began < 5
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    "sent",
    [b"", HALF, b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf"],
    ids=["nothing", "half a header", "half a body"],
)
def test_a_request_that_does_not_end(site, sent):
    """Its connection is not kept for long."""
    with opened(site, sent) as line:
        line.settimeout(10)
        while not is_let_go(line):
            pass


def test_an_answer_that_is_not_taken(site):
    """A client that reads nothing is let go too, although it has sent whole requests."""
    requests = b"GET /page/pgonce.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20_000
    with opened(site) as line, pytest.raises(ConnectionError):  # noqa: PT012 (the buffers take the first ones)
        for _ in range(100):
            line.sendall(requests)


def test_who_listens_for_events_stays(site):
    """That answer never ends, and nothing is to be sent meanwhile."""
    with opened(site, b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as line:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert line.recv(10_000)


def test_pages_that_wait_for_postgres(site, url, admin):
    """What asks nothing of Postgres is answered meanwhile, and a page that cannot be read soon says so."""

    def ask(number):
        return site.query(QUERY, more=f"&code=c{number}").status

    admin.autocommit = False
    with ThreadPoolExecutor(50) as pool:
        try:
            admin.execute("LOCK TABLE pgonce.dead_letters IN ACCESS EXCLUSIVE MODE")
            asked = [pool.submit(ask, number) for number in range(50)]
            time.sleep(0.5)
            for path in ("/healthz", "/metrics", "/"):
                began = time.monotonic()
                with suppress(TimeoutError):
                    site.get(path)
                assert time.monotonic() - began < 2, path
            assert any(one.result() == 503 for one in as_completed(asked))
        finally:
            admin.rollback()
            admin.autocommit = True
    assert ask(99) == 200
