"""The command `pgonce serve` as a process: it starts, answers, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from free_ports import free_port
from support.ledger_history import KAFKA, publish

from pgonce.cli.main import ExitCode
from pgonce.cli.serve import database_of, listening
from pgonce.offsets_store.errors import ConfigurationError


def test_from_its_start_to_its_end(url, store):
    """It says where it listens, answers under a proxy's path too, and ends at a signal although a page listens."""
    publish(url, 3, KAFKA)
    port = free_port()
    command = [sys.executable, "-m", "pgonce", "serve", "--listen", f"127.0.0.1:{port}", "--root-path", "seen/"]
    process = subprocess.Popen(command, env={**os.environ, "PGONCE_URL": url}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline() == f"pgonce serve: http://127.0.0.1:{port}/seen/ (Ctrl-C ends it)\n"
        text = asked(f"http://127.0.0.1:{port}/")
        assert 'href="/seen/page/pgonce.css' in text
        assert 'href="/seen/queries/' in text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=10) as events:
            assert events.readline() == b"retry: 2000\n"
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)
        assert time.monotonic() - began < 5
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def asked(address: str) -> str:
    """The page, once it has been read."""
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.read().decode()
            if ">orders<" in text:
                return text
        except OSError:
            pass
        assert time.monotonic() < until
        time.sleep(0.05)


def test_without_the_extra(pgonce, monkeypatch):
    """Where a part is missing, the error names what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    failed = pgonce("serve")
    assert failed.exit_code == ExitCode.FAILED
    assert "[NO_WEB_PARTS] pgonce serve needs the package uvicorn" in failed.stderr
    assert "pip install 'pgonce[serve]'" in failed.stderr


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("9000", ("127.0.0.1", 9000)), ("[::1]:1", ("[::1]", 1)),
        ("0.0.0.0:9847", ("0.0.0.0", 9847)), (":9847", ("127.0.0.1", 9847)),
    ],
)  # fmt: skip
def test_where_it_listens(given, found):
    """A port alone is one of this host, never of all."""
    assert listening(given) == found


@pytest.mark.parametrize("given", ["", "host", "host:", "host:99999", "::1:80", "http://host:80", "a b:80"])
def test_where_it_cannot_listen(given):
    """Another form is refused."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION"):
        listening(given)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@db.example:5432/shop?sslmode=require", "shop at db.example"),
        ("host=/tmp dbname=shop password=s3cret", "shop"), ("service=shop", "shop"), ("", "Postgres"),
    ],
)  # fmt: skip
def test_the_database_that_the_page_names(url, shown, monkeypatch):
    """Its name and its host, and nothing else of the connection string."""
    for name in ("PGDATABASE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    assert database_of(url) == shown
