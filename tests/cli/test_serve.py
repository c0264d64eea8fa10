"""The command `pgonce serve` as a process: it starts, answers, and ends when it is told to."""

from __future__ import annotations

import doctest
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from free_ports import free_port
from support.ledger_history import KAFKA, publish

from pgonce.cli import serve
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


def over(place, path):
    """Status and text of an answer through a Unix socket; None before it listens."""
    line = http.client.HTTPConnection("localhost", timeout=10)
    line.sock = socket.socket(socket.AF_UNIX)
    try:
        line.sock.connect(str(place))
    except OSError:
        return None
    line.request("GET", path)
    answer = line.getresponse()
    found = answer.status, answer.read().decode()
    line.close()
    return found


def test_through_a_unix_socket(url, store, tmp_path):
    """A proxy on this host reaches it where nobody else of the host may enter."""
    publish(url, 3, KAFKA)
    place = tmp_path / "serve.sock"
    command = [sys.executable, "-m", "pgonce", "serve", "--listen", f"unix:{place}"]
    process = subprocess.Popen(command, env={**os.environ, "PGONCE_URL": url}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline() == f"pgonce serve: unix:{place} (Ctrl-C ends it)\n"
        until = time.monotonic() + 30
        while (found := over(place, "/")) is None or ">orders<" not in found[1]:
            assert time.monotonic() < until, found
            time.sleep(0.05)
        assert found[0] == 200
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_on_an_address_that_others_reach(url, ledger):
    """It says that there is no login, and a probe by the address of the host is answered."""
    port = free_port()
    command = [sys.executable, "-m", "pgonce", "serve", "--listen", f"0.0.0.0:{port}"]
    process = subprocess.Popen(command, env={**os.environ, "PGONCE_URL": url}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline().startswith(f"pgonce serve: http://0.0.0.0:{port}/")
        assert process.stderr.readline() == (
            "pgonce serve: everyone who can connect to 0.0.0.0 can read it, because there is no login.\n"
        )
        until = time.monotonic() + 30
        while status(port, "/healthz", "10.1.2.3:9847") != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert status(port, "/healthz", "evil.example") == 421
    finally:
        process.kill()
        process.communicate()


def status(port: int, path: str, host: str) -> int | None:
    """The status of an answer to a request for this host; None before it listens."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        line.request("GET", path, headers={"Host": host})
        return line.getresponse().status
    except OSError:
        return None
    finally:
        line.close()


def test_without_the_extra_the_package_to_install_is_named(pgonce, monkeypatch):
    """Where a part is missing, the error names what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    failed = pgonce("serve")
    assert failed.exit_code == ExitCode.FAILED
    assert "[NOT_INSTALLED] pgonce serve needs the package uvicorn" in failed.stderr
    assert "pip install 'pgonce[serve]'" in failed.stderr


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("9000", ("127.0.0.1", 9000)), ("[::1]:1", ("[::1]", 1)),
        ("0.0.0.0:9847", ("0.0.0.0", 9847)), (":9847", ("127.0.0.1", 9847)),
    ],
)  # fmt: skip
def test_a_port_alone_is_one_of_this_host(given, found):
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
        ("postgresql://me:s3cret@db.example:5432/shop?sslmode=require", "shop at db.example:5432"),
        ("host=/tmp dbname=shop password=s3cret", "shop"), ("service=shop", "shop"), ("", "Postgres"),
    ],
)  # fmt: skip
def test_the_database_that_the_page_names(url, shown, monkeypatch):
    """Its name, host and port, and nothing else of the connection string."""
    for name in ("PGDATABASE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    assert database_of(url) == shown


def test_the_examples_in_its_docstrings_hold():
    """What the docstrings show is so."""
    assert doctest.testmod(serve).failed == 0
